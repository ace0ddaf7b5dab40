"""One process at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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
