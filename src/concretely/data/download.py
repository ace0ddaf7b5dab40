"""Downloads that are whole and right, or not there."""

import errno
import hashlib
import re
import shutil
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from ..evaluation.progress import counting
from ..file import atomic_write, file_lock

TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as cut."""
PIECE = 2**18
"""The most bytes that are taken from the network at once."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DownloadError(OSError):
    """Why a file could not be downloaded, and how to come by it otherwise."""


def fetch(url: str, path: Path, *, digest: str, size: int | None = None, manual: str, progress: bool = False) -> None:
    """Download a file unless it is there; whatever has its name afterwards has its digest.

    `digest` is the name of a hash and its value, such as `md5:21ec…`; `size` is the number of bytes, where it is
    known. `manual` tells how to come by the file by hand, and ends every error.

    What has arrived stays beside `path`, under a name that ends in `.part`, and the next call goes on from there. Of
    processes that ask for the same file at once, one downloads it and the others wait.
    """
    if path.exists():
        if wrong := _mismatch(path, digest):
            raise DownloadError(f"{path} {wrong}: remove it to have it downloaded again, or {manual}")
        return
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(path.with_name(f"{path.name}.lock")):
            if path.exists():  # brought by another process meanwhile
                return
            _complete(part, url, size=size, progress=progress)
            if wrong := _mismatch(part, digest):
                part.unlink()
                raise DownloadError(f"what arrived {wrong}, and was deleted")
            with atomic_write(path) as place:
                part.replace(place)
    except OSError as error:
        reason = why(error, path.parent)
        raise DownloadError(f"{path.name!r} could not be downloaded: {reason}; try again, or {manual}") from None


def _complete(part: Path, url: str, *, size: int | None, progress: bool) -> None:
    """Download what a part lacks."""
    have = part.stat().st_size if part.exists() else 0
    if have == size:
        return
    if size is not None and have > size:  # a part of something else
        have = 0
    answer, start = _ask(url, have)
    with answer:
        total = size if answer.length is None else start + answer.length
        if size is not None and total != size:  # such as the page of a network that wants a login first
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
    """The answer to a request for a file from a byte on, and the byte from which it is given."""
    request = Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        answer: HTTPResponse = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416 and start:  # the file ends before that byte: the part is one of something else
            return _ask(url, 0)
        raise DownloadError(f"the server answered {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise DownloadError(f"there is no connection to {url} ({reason})") from None
    span = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    given = int(span[1]) if span and answer.status == 206 else 0  # servers may give all instead
    if given not in (0, start):
        answer.close()
        return _ask(url, 0)
    return answer, given


def _pieces(answer: HTTPResponse) -> Iterator[bytes]:
    """The bytes of an answer as they arrive."""
    try:
        while piece := answer.read1(PIECE):
            yield piece
    except (OSError, HTTPException) as error:
        raise DownloadError(f"the connection was cut ({error})") from None


def _mismatch(path: Path, digest: str) -> str | None:
    """What is wrong with the content of a file, if anything is."""
    name, _, value = digest.partition(":")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(name, usedforsecurity=False)).hexdigest()
    return None if found == value else f"must have the {name} {value}, got {found}"


def why(error: OSError, folder: Path) -> str:
    """Why a file could not be brought into a folder, in words."""
    if isinstance(error, DownloadError):
        return str(error)
    if error.errno in FULL:
        return f"the disk of {folder} is full ({error.strerror})"
    return f"{folder} cannot be written to ({error.strerror})"
