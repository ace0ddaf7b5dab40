"""Files that are whole or not there, and files and folders that one process has at a time."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

try:
    import fcntl
except ImportError:  # there is none outside POSIX
    fcntl = None  # type: ignore[assignment]

DRAFT = ".draft"
"""How the names of folders end in which files are written."""
LEFT = f".*-{8 * '[a-z0-9_]'}{DRAFT}"
"""The names that `draft` gives to such folders, eight letters of which are drawn by `tempfile`."""


@contextmanager
def draft(path: Path) -> Iterator[Path]:
    """Where to write a file, which takes the place of `path` in one step once it is whole and on the disk.

    If writing fails, or the process dies, `path` is what it was before.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp(), "note.txt")
    >>> with draft(path) as place:
    ...     written = place.write_text("whole")
    >>> path.read_text()
    'whole'
    """
    # beside its destination, so that moving it is one step of the file system
    with TemporaryDirectory(
        dir=path.parent, prefix=f".{path.name}-", suffix=DRAFT, ignore_cleanup_errors=True
    ) as folder:
        place = Path(folder, path.name)
        yield place
        _flush(place)
        place.replace(path)
    _flush(path.parent)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Have a folder to oneself, or refuse if another process has it; a process that dies gives it back.

    The drafts that such a process has left are cleared away. Where files cannot be locked, nobody is refused and
    nothing is cleared away.
    """
    with ExitStack() as stack:
        try:
            locked = stack.enter_context(_lock(folder / ".lock", wait=False))
        except BlockingIOError:
            remedy = "wait for it, or choose another folder"
            raise ValueError(f"{str(folder)!r} is being worked in by another process: {remedy}") from None
        for left in folder.glob(LEFT) if locked else ():
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
        yield


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until no other process is alone at this path, which has an empty file meanwhile.

    A process that dies lets go of it. Where files cannot be locked, nobody waits.
    """
    with _lock(path, wait=True):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # before it is let go of, since the next one may hold it from then on


@contextmanager
def _lock(path: Path, *, wait: bool) -> Iterator[bool]:
    """Lock a file, which is made if need be, and say whether it is: not where files cannot be locked.

    If another process has it locked, wait for that or raise `BlockingIOError`.
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
            except OSError:  # some file systems have no locks
                locked = False
            if _names(path, file.fileno()):
                yield locked
                return
        # else it was removed by whoever held it before


def _names(path: Path, descriptor: int) -> bool:
    """Whether a path is that of an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _flush(path: Path) -> None:
    """Have the system write a file or a folder to the disk, where it can."""
    if os.name != "posix" and path.is_dir():
        return  # only there can folders be opened
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
