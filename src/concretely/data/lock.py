"""One process at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until no other process has this file to itself, and have it until the end.

    The file is made if it is not there, and removed at the end if it is empty. A process that dies lets go of it.
    """
    descriptor = _hold(path)
    try:
        yield
    finally:
        if path.exists() and path.stat().st_size == 0:
            path.unlink()
        os.close(descriptor)


def _hold(path: Path) -> int:
    """A descriptor that holds the file until it is closed."""
    if os.name != "posix":  # there an open file could not be moved, so that this one is not held
        path.touch()
        return os.open(os.devnull, os.O_RDONLY)
    import fcntl

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):  # some file systems cannot do it
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # whoever had the file before may have moved or removed it
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)
