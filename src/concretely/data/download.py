"""The data folder, resumable downloads with checksums, and imports of optional packages that read data."""

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from ..evaluation.progress import counting
from ..file import atomic_write, file_lock

TIMEOUT = 30.0
"""Seconds without data before a connection times out."""
PIECE = 2**18
"""The maximum number of bytes to read at once."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DownloadError(OSError):
    """Raised if a download fails. The message says why, and how to get the file by hand."""


def folder() -> Path:
    """Return the data folder, `CONCRETELY_DATA` or by default the user's cache. It may not exist yet."""
    if named := os.environ.get("CONCRETELY_DATA"):
        try:
            return Path(named).expanduser().absolute()
        except RuntimeError as error:
            raise ValueError(f"CONCRETELY_DATA must name a folder, got {named!r} of an unknown user") from error
    platformdirs = need("platformdirs", "platformdirs", what="the default data folder")
    return Path(platformdirs.user_cache_path("concretely"))


def need(module: str, package: str, *, what: str) -> Any:
    """Import a module; if it is missing, raise an error that names the package to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {package}, which is not installed: pip install {package}") from error


def fetch(url: str, path: Path, *, digest: str, size: int | None = None, manual: str, progress: bool = False) -> None:
    """Download a file unless it exists, and verify its digest.

    `digest` is a hash name and value, such as `md5:21ec…`. `manual` is the end of every error message, and says how to
    get the file by hand. An interrupted download stays in a `.part` file, and the next call resumes it. If several
    processes fetch the same file, one downloads it and the others wait.
    """
    if path.exists():
        if wrong := _mismatch(path, digest):
            raise DownloadError(f"{path} {wrong}: delete it to download it again, or {manual}")
        return
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(path.with_name(f"{path.name}.lock")):
            if path.exists():  # another process has downloaded it
                return
            _complete(part, url, size=size, progress=progress)
            if wrong := _mismatch(part, digest):
                part.unlink()
                raise DownloadError(f"the content {wrong}, and was deleted")
            with atomic_write(path) as place:
                part.replace(place)
    except OSError as error:
        reason = why(error, path.parent)
        raise DownloadError(f"{path.name!r} could not be downloaded: {reason}; try again, or {manual}") from None


def _complete(part: Path, url: str, *, size: int | None, progress: bool) -> None:
    """Download the rest of a partial file."""
    have = part.stat().st_size if part.exists() else 0
    if have == size:
        return
    if size is not None and have > size:  # a part of another file
        have = 0
    answer, start = _ask(url, have)
    with answer:
        total = size if answer.length is None else start + answer.length
        if size is not None and total != size:  # such as the login page of a network
            raise DownloadError(f"the server has {total} bytes for it instead of {size}")
        if not start:
            part.unlink(missing_ok=True)
        free = shutil.disk_usage(part.parent).free
        if total is not None and total - start > free:
            raise OSError(errno.ENOSPC, f"{total - start} bytes are needed, {free} are free")
        title = f"downloading {part.stem}"
        with part.open("ab") as file, counting(title, total or 0, shown=progress) as advance:
            advance(start)
            for piece in _pieces(answer):
                file.write(piece)
                advance(len(piece))
    arrived = part.stat().st_size
    if total is not None and arrived < total:
        raise DownloadError(f"the connection was cut after {arrived} of {total} bytes")


def _ask(url: str, start: int) -> tuple[HTTPResponse, int]:
    """Request a file from byte `start`; return the response and the byte at which it starts."""
    request = Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        answer: HTTPResponse = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416 and start:  # the part is longer than the file
            return _ask(url, 0)
        raise DownloadError(f"the server answered {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise DownloadError(f"could not connect to {url} ({reason})") from None
    span = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    given = int(span[1]) if span and answer.status == 206 else 0  # servers may ignore the range
    if given not in (0, start):
        answer.close()
        return _ask(url, 0)
    return answer, given


def _pieces(answer: HTTPResponse) -> Iterator[bytes]:
    """Yield the bytes of a response as they arrive."""
    try:
        while piece := answer.read1(PIECE):
            yield piece
    except (OSError, HTTPException) as error:
        raise DownloadError(f"the connection was cut ({error})") from None


def _mismatch(path: Path, digest: str) -> str | None:
    """Return a description of a wrong checksum, or None if it is right."""
    name, _, value = digest.partition(":")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(name, usedforsecurity=False)).hexdigest()
    return None if found == value else f"must have the {name} {value}, got {found}"


def why(error: OSError, folder: Path) -> str:
    """Describe why a file could not be written to a folder."""
    if isinstance(error, DownloadError):
        return str(error)
    if error.errno in FULL:
        return f"the disk of {folder} is full ({error.strerror})"
    return f"{folder} cannot be written to ({error.strerror})"
