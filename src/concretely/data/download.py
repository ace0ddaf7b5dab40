"""The data folder, resumable downloads with checksums, and imports of optional packages that read data."""

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPException, HTTPResponse
from importlib import import_module
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any, NamedTuple, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ..environment import pip_install
from ..evaluation.progress import counting
from ..file import FULL, atomic_write, file_lock, open_append, open_regular
from ..spelling import printable

TIMEOUT = 30.0
"""Seconds without data before a connection times out."""
DEADLINE = 1_800.0
"""Seconds after which a download ends, even if data still arrive."""
PIECE = 2**18
"""The maximum number of bytes to read at once."""

T = TypeVar("T")


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
        raise ImportError(f"{what} needs {package}, which is not installed: {pip_install(package)}") from error


def fetch(
    url: str, path: Path, *, digest: str, size: int, exact: bool = True, manual: str, progress: bool = False
) -> None:
    """Download a file unless it exists, and verify its digest.

    `digest` is a hash name and value, such as `md5:21ec…`. `size` is the number of bytes or, unless `exact`, an upper
    limit; no byte beyond it is written. `manual` is the end of every error message, and says how to get the file by
    hand. A download that is interrupted, or not complete after `DEADLINE` seconds, stays in a `.part` file, and the
    next call resumes it. If several processes fetch the same file, one downloads it and the others wait.
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
            _complete(part, url, size=size, exact=exact, progress=progress)
            if wrong := _mismatch(part, digest):
                part.unlink()
                raise DownloadError(f"the content {wrong}, and was deleted")
            with atomic_write(path) as place:
                part.replace(place)
    except OSError as error:
        reason = printable(why(error, path.parent))  # it may contain text from the server
        raise DownloadError(f"{path.name!r} could not be downloaded: {reason}; try again, or {manual}") from None


def _complete(part: Path, url: str, *, size: int, exact: bool, progress: bool) -> None:
    """Download the rest of a partial file."""
    have = part.stat().st_size if part.exists() else 0
    if exact and have == size:
        return
    pieces = _until(time.monotonic() + DEADLINE, _request(url, have if have < size else 0))
    start, total, _ = next(pieces)
    if total is not None and (total != size if exact else total > size):  # such as the login page of a network
        raise DownloadError(f"the server has {total} bytes for it instead of {'' if exact else 'at most '}{size}")
    if not start:
        part.unlink(missing_ok=True)
    needed, free = (size if total is None else total) - start, shutil.disk_usage(part.parent).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"{needed} bytes are needed, {free} are free")
    arrived, title = start, f"downloading {part.stem}"
    with open_append(part) as file, counting(title, total or size, shown=progress) as advance:
        advance(start)
        for _, _, piece in pieces:
            file.write(piece[: size - arrived])
            arrived += len(piece)
            advance(len(piece))
            if arrived > size:
                part.unlink()
                raise DownloadError(f"the server sends more than {size} bytes for it, and what it sent was deleted")
    expected = size if exact else total
    if expected is not None and arrived < expected:
        raise DownloadError(f"the connection was cut after {arrived} of {expected} bytes")


class _Piece(NamedTuple):
    """A piece of a response, with the byte at which the response starts and, if the server sends it, the file size."""

    start: int
    total: int | None
    content: bytes


def _request(url: str, start: int) -> Iterator[_Piece]:
    """Request a file from `start` on, or from byte 0; yield an empty piece, then the bytes as they arrive."""
    response = _ask(url, start)
    if response is None and start:
        response = _ask(url, 0)
    if response is None:
        raise DownloadError("the server answers with another range of bytes than the one that was asked for")
    answer, start = response
    with answer:
        total = None if answer.length is None else start + answer.length
        yield _Piece(start, total, b"")
        try:
            while content := answer.read1(PIECE):
                yield _Piece(start, total, content)
        except (OSError, HTTPException, ValueError) as error:
            raise DownloadError(f"the connection was cut ({error})") from None


def _ask(url: str, start: int) -> tuple[HTTPResponse, int] | None:
    """Return the response and the byte at which it starts, or None if that is neither `start` nor the first."""
    request = Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        answer: HTTPResponse = build_opener(_Redirections).open(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416 and start:  # the part is longer than the file
            return None
        raise DownloadError(f"the server answered {error.code} {error.reason}") from None
    except (OSError, HTTPException, ValueError) as error:  # a ValueError for a redirection to something else
        reason = error.reason if isinstance(error, URLError) else error
        raise DownloadError(f"could not connect to {url} ({reason})") from None
    span = re.match(r"bytes (\d{1,18})-", answer.headers.get("Content-Range", ""))
    given = int(span[1]) if span and answer.status == 206 else 0  # servers may ignore the range
    if given not in (0, start):
        answer.close()
        return None
    return answer, given


class _Redirections(HTTPRedirectHandler):
    """Follow redirections, and close the connection even if the new address is invalid, which urllib does not."""

    def http_error_302(self, req: Request, fp: Any, code: int, msg: str, headers: Any) -> Any:
        with closing(fp):
            return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _until(deadline: float, items: Iterator[T]) -> Iterator[T]:
    """Yield the items of an iterator that runs in a thread, and raise an error at a deadline.

    A server can keep a connection busy at every stage, from the handshake to the last byte, so that a limit on idle
    time is not enough. A thread can be left alone wherever it waits.
    """
    queue: Queue[tuple[T] | Exception | None] = Queue(maxsize=8)
    left = Event()

    def put(item: tuple[T] | Exception | None) -> None:
        while not left.is_set():
            with suppress(Full):
                queue.put(item, timeout=0.1)
                break

    def work() -> None:
        try:
            for item in items:
                put((item,))
                if left.is_set():
                    return
            put(None)
        except Exception as error:
            put(error)
        finally:
            getattr(items, "close", lambda: None)()

    Thread(target=work, daemon=True).start()
    try:
        while (rest := deadline - time.monotonic()) > 0:
            try:
                item = queue.get(timeout=rest)
            except Empty:
                break
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item[0]
    finally:
        left.set()
    raise DownloadError(f"it was not complete after {DEADLINE:,.0f} seconds; what has arrived is kept")


def _mismatch(path: Path, digest: str) -> str | None:
    """Return a description of a wrong checksum, or None if it is right."""
    name, _, value = digest.partition(":")
    with open_regular(path) as file:
        actual = hashlib.file_digest(file, lambda: hashlib.new(name, usedforsecurity=False)).hexdigest()
    return None if actual == value else f"must have the {name} {value}, got {actual}"


def why(error: OSError, folder: Path) -> str:
    """Describe why a file could not be written to a folder."""
    if isinstance(error, DownloadError):
        return str(error)
    if error.errno in FULL:
        return f"the disk of {folder} is full ({error.strerror})"
    return f"{folder} cannot be written to ({error.strerror})"
