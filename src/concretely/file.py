"""Atomic writes, reads of regular files, digests, and locks on files and directories.

Files may come from other people. So locks follow no links and change no content, and no call waits for a pipe.
"""

import errno
import hashlib
import json
import os
import shutil
import stat
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from io import BufferedReader, BufferedWriter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .mount import is_local

try:
    import fcntl
except ImportError:  # only POSIX has it
    fcntl = None  # type: ignore[assignment]

DRAFT = ".draft"
"""Suffix of the temporary directories that `atomic_write` creates."""
LEFT = f".*-{8 * '[a-z0-9_]'}{DRAFT}"
"""Pattern of the names of these directories; `tempfile` draws the eight characters."""

TRIES, PAUSE = 1000, 0.01
"""How often, and after how many seconds, a file that another machine has replaced on NFS is opened again."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk, a full quota and the largest file that a process may write."""

_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; on success, sync it to disk and rename it to `path`.

    If writing fails or the process dies, `path` keeps its old content.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp(), "note.txt")
    >>> with atomic_write(path) as temporary:
    ...     written = temporary.write_text("whole")
    >>> path.read_text()
    'whole'
    """
    try:
        with _draft(path) as folder:
            temporary = folder / path.name
            yield temporary
            _flush(temporary)
            temporary.replace(path)
        _flush(path.parent)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error  # not the name of the temporary file


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """Yield a temporary directory in the folder of a path, so that a rename stays within one file system.

    It is locked while it is in use. If another process removes it as a leftover before it is locked, a new one is
    created.
    """
    while True:
        with (
            TemporaryDirectory(
                dir=path.parent, prefix=f".{path.name}-", suffix=DRAFT, ignore_cleanup_errors=True
            ) as folder,
            _try_lock(Path(folder)) as locked,
        ):
            if locked is not False:
                yield Path(folder)
                return


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading. Raise an `OSError` for a pipe, a socket, a device or a directory.

    Links are followed, and nothing waits for a writer, as opening a pipe would.
    """
    descriptor = os.open(path, os.O_RDONLY | _NO_WAIT | _BINARY)
    _require_regular(descriptor, path)
    with open(descriptor, "rb") as file:
        yield file


@contextmanager
def open_append(path: Path) -> Iterator[BufferedWriter]:
    """Open a regular file, which is created if needed, to append to it. Links are not followed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK | _NO_WAIT | _BINARY, 0o666)
    _require_regular(descriptor, path)
    with open(descriptor, "ab") as file:
        yield file


def read_bytes(path: Path, *, most: int | None = None) -> bytes:
    """Read a regular file, of at most `most` bytes if that is given.

    >>> from tempfile import mkdtemp
    >>> write_text(path := Path(mkdtemp(), "note.txt"), "whole")
    >>> read_bytes(path, most=5)
    b'whole'
    """
    for left in reversed(range(TRIES)):
        try:
            with open_regular(path) as file:
                content = file.read(-1 if most is None else most + 1)
            break
        except OSError as error:
            if error.errno != errno.ESTALE or not left:
                raise
            time.sleep(PAUSE)  # on NFS, another machine has replaced the file: read the new one
    if most is not None and len(content) > most:
        raise ValueError(f"{str(path)!r} must have at most {most:,} bytes, got more")
    return content


def parse_json(content: bytes) -> Any:
    """Parse JSON that may come from someone else.

    Raise an error unless it can be written again: text without halves of surrogate pairs, integers of 64 bits.

    >>> parse_json(b'{"seed": 3}')
    {'seed': 3}
    """
    try:
        value = json.loads(content.decode(), parse_int=_integer)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeError:
        raise ValueError("it holds text that is not valid Unicode") from None
    return value


def parse_toml(content: bytes) -> dict[str, Any]:
    """Parse TOML that may come from someone else.

    >>> parse_toml(b"seed = 3")
    {'seed': 3}
    """
    try:
        return tomllib.loads(content.decode())
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeError:
        raise ValueError("it holds text that is not valid Unicode") from None
    except ValueError:  # the only other reason is an integer of thousands of digits, which Python refuses
        raise ValueError("it holds an integer of too many digits") from None


def _integer(digits: str) -> int:
    number = int(digits) if len(digits) <= 20 else 2**63
    if not -(2**63) <= number < 2**63:
        raise ValueError("it holds an integer of more than 64 bits")
    return number


def json_digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object. The order of its keys does not change it."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def writable_dir(folder: Path) -> None:
    """Create a directory if needed, or raise an error that says why it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        why = "" if os.access(folder, os.W_OK) else os.strerror(errno.EACCES)
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise ValueError(f"out must be a folder that can be written to, got {str(folder)!r}: {why}")


@contextmanager
def exclusive_dir(folder: Path) -> Iterator[None]:
    """Lock a directory for this process; raise if another process holds it. The lock ends with the process.

    Temporary directories left behind by dead processes are removed. On file systems without locks, nothing is locked
    and nothing is removed.
    """
    with ExitStack() as stack:
        try:
            locked = stack.enter_context(_lock(folder / ".lock", wait=False))
        except BlockingIOError:
            remedy = "wait for it, or choose another folder"
            raise ValueError(f"{str(folder)!r} is in use by another process: {remedy}") from None
        for left in folder.glob(LEFT) if locked else ():
            with _try_lock(left) as is_left:
                if is_left:
                    shutil.rmtree(left, ignore_errors=True)
        yield


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold a lock file, after waiting for other processes to release it. The lock ends with the process.

    On file systems without locks, nothing waits.
    """
    with _lock(path, wait=True):
        try:
            yield
        finally:
            # on NFS the file stays, as another machine could still open and lock it after its removal
            if is_local(path.parent):
                path.unlink(missing_ok=True)  # before the release: afterwards another process may hold the lock


@contextmanager
def try_file_lock(path: Path) -> Iterator[bool]:
    """Hold a lock file if no other process holds it, and yield whether this one does. The lock ends with the process.

    The file stays. Raise an error on file systems without locks, where two processes would both hold it.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp(), "lock")
    >>> with try_file_lock(path) as first, try_file_lock(path) as second:
    ...     first, second
    (True, False)
    """
    with ExitStack() as stack:
        try:
            locked = stack.enter_context(_lock(path, wait=False))
        except BlockingIOError:
            yield False
            return
        if not locked:
            kinds = "such as NFSv4, or Lustre that is mounted with flock"
            raise ValueError(f"{str(path.parent)!r} must be on a file system with locks, {kinds}, got one without")
        yield True


@contextmanager
def _lock(path: Path, *, wait: bool) -> Iterator[bool]:
    """Create and lock a regular file; yield False if the file system has no locks.

    If another process holds the lock, wait for it or raise `BlockingIOError`. A link is not followed and an existing
    file keeps its content, as the folder may come from someone else. A file that another machine has removed is stale
    on NFS: it is opened again.
    """
    if fcntl is None:
        yield False
        return
    left = TRIES
    while True:
        try:
            descriptor = _open_lock(path)
        except OSError as error:
            left -= 1
            if error.errno != errno.ESTALE or not left:
                raise
            time.sleep(PAUSE)
            continue
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = True
            except BlockingIOError:
                raise
            except OSError as error:
                if error.errno == errno.ESTALE and left:
                    left -= 1
                    continue
                locked = False  # the file system has no locks
            if _is_open_file(path, descriptor):
                yield locked
                return
        finally:
            os.close(descriptor)
        # someone has removed the file: try again


@contextmanager
def _try_lock(folder: Path) -> Iterator[bool | None]:
    """Lock a directory, and yield whether that has succeeded, or None if the file system has no locks.

    It fails if another process holds the lock, or if there is no such directory any more.
    """
    if fcntl is None:
        yield None
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK | _NO_WAIT)
    except OSError:
        yield False
        return
    try:
        locked: bool | None = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked = False
        except OSError:  # the file system has no locks
            locked = None
        yield locked if _is_open_file(folder, descriptor) else False
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    """Return the descriptor of a lock file, which is created if needed."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK | _NO_WAIT, 0o666)
    except OSError:
        if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            raise _not_a_lock(path) from None
        raise
    try:
        is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    if not is_regular:
        os.close(descriptor)
        raise _not_a_lock(path)
    return descriptor


def _not_a_lock(path: Path) -> ValueError:
    return ValueError(f"a lock must be a regular file, got a link or something else at {str(path)!r}: remove it")


def _require_regular(descriptor: int, path: Path) -> None:
    """Close a descriptor and raise an error if it is not that of a regular file."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        os.close(descriptor)
        raise
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def _is_open_file(path: Path, descriptor: int) -> bool:
    """Return whether a path still names an open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return False
        raise


def _flush(path: Path) -> None:
    """Sync a file or a directory to disk."""
    if os.name != "posix" and path.is_dir():
        return  # only POSIX can open directories
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
