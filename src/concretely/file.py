"""Atomic writes, and locks on files and directories."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

try:
    import fcntl
except ImportError:  # only POSIX has it
    fcntl = None  # type: ignore[assignment]

DRAFT = ".draft"
"""Suffix of the temporary directories that `atomic_write` creates."""
LEFT = f".*-{8 * '[a-z0-9_]'}{DRAFT}"
"""Pattern of their names; `tempfile` draws the eight characters."""


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
    # in the same folder, so that the rename stays within one file system
    with TemporaryDirectory(
        dir=path.parent, prefix=f".{path.name}-", suffix=DRAFT, ignore_cleanup_errors=True
    ) as folder:
        temporary = Path(folder, path.name)
        yield temporary
        _flush(temporary)
        temporary.replace(path)
    _flush(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


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

    Temporary directories left behind by a dead process are removed. On file systems without locks, nothing is locked
    and nothing is removed.
    """
    with ExitStack() as stack:
        try:
            locked = stack.enter_context(_lock(folder / ".lock", wait=False))
        except BlockingIOError:
            remedy = "wait for it, or choose another folder"
            raise ValueError(f"{str(folder)!r} is in use by another process: {remedy}") from None
        for left in folder.glob(LEFT) if locked else ():
            if left.is_dir():
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
            path.unlink(missing_ok=True)  # unlink before the release: afterwards another process may hold the lock


@contextmanager
def _lock(path: Path, *, wait: bool) -> Iterator[bool]:
    """Create and lock a file; yield False if the file system has no locks.

    If another process holds the lock, wait for it or raise `BlockingIOError`.
    """
    if fcntl is None:
        yield False
        return
    while True:
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = True
            except BlockingIOError:
                raise
            except OSError:  # the file system has no locks
                locked = False
            if _is_open_file(path, file.fileno()):
                yield locked
                return
        # the previous holder has removed the file: try again


def _is_open_file(path: Path, descriptor: int) -> bool:
    """Return whether a path still names an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _flush(path: Path) -> None:
    """Sync a file or a directory to disk."""
    if os.name != "posix" and path.is_dir():
        return  # only POSIX can open directories
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
