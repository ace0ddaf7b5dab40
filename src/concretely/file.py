"""Files that are whole or not there, and files and folders that one process has at a time."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

try:
    import fcntl
except ImportError:  # there is none outside POSIX
    fcntl = None  # type: ignore[assignment]

DRAFT = ".draft"
"""How the names of folders end in which files are written."""


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

    The drafts that such a process has left are cleared away.
    """
    if fcntl is None:
        yield
        return
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{str(folder)!r} is being worked in by another process") from None
        for left in folder.glob(f".*{DRAFT}"):
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until no other process is alone at this path, which has an empty file meanwhile.

    A process that dies lets go of it. Where files cannot be locked, nobody waits.
    """
    if os.name != "posix":
        yield
        return
    descriptor = _hold(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _hold(path: Path) -> int:
    """A descriptor that holds a file until it is closed."""
    import fcntl  # on POSIX only

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)  # of a file that was removed by whoever held it before


def _flush(path: Path) -> None:
    """Have the system write a file or a folder to the disk, where it can."""
    if os.name != "posix" and path.is_dir():
        return  # only there can folders be opened
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
