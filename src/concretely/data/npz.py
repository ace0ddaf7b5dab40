"""Read the arrays of `.npz` files by parts, without unpickling and within a limit of memory.

A small file can hold large arrays, since zeros compress well. So the size of all arrays is known, and limited, before
any of them is read.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..file import open_regular

MAX_BYTES = 2**30
"""The default limit of the memory that all arrays of a file would take together, in bytes."""
PART = 2**24
"""The number of bytes of an array to read at once, if a row is not larger."""
SOME = 8
"""The maximum number of arrays that an error lists."""

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
"""The functions that read the header of an array, by the version of its format."""


@dataclass(frozen=True)
class Stored:
    """An array of an open file that has not been read yet."""

    path: Path
    name: str
    archive: ZipFile
    member: ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    in_columns: bool
    """Whether it is stored column by column, in Fortran's order."""
    start: int
    """The byte of its first entry."""

    @property
    def place(self) -> str:
        """A name of the array and its file, for errors."""
        return f"array {self.name!r} of {str(self.path)!r}"

    @property
    def size(self) -> int:
        """The number of its entries."""
        return math.prod(self.shape)

    def read(self) -> NDArray[Any]:
        """Read the whole array."""
        with _faults(self.place), self.archive.open(self.member) as file:
            return np.asarray(npy.read_array(file, allow_pickle=False))

    def rows(self) -> NDArray[Any]:
        """Read the whole array, with all axes after the first flattened."""
        return self.read().reshape(len(self), -1)

    def parts(self, order: NDArray[np.intp] | None = None) -> Iterator[NDArray[Any]]:
        """Yield the rows, some at a time, with all axes after the first flattened; with `order`, in another order."""
        width = self.size // len(self)
        rows = max(1, PART // (width * self.dtype.itemsize))
        if self.in_columns or order is not None:
            whole = self.rows()
            order = np.arange(len(self)) if order is None else order
            yield from (whole[order[start : start + rows]] for start in range(0, len(self), rows))
            return
        with _faults(self.place), self.archive.open(self.member) as file:
            _header(file)
            for start in range(0, len(self), rows):
                count = min(rows, len(self) - start) * width
                part = np.frombuffer(_exactly(file, count * self.dtype.itemsize), self.dtype)
                yield part.reshape(-1, width)

    def __len__(self) -> int:
        return self.shape[0]


@contextmanager
def open_arrays(
    path: Path, names: tuple[str, ...], *, optional: tuple[str, ...] | None = (), max_bytes: int = MAX_BYTES
) -> Iterator[dict[str, Stored]]:
    """Open a file and yield its arrays of numbers by name; raise if one is missing or all together are too large.

    If `optional` is None, these are all arrays of the file.
    """
    with _opened(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        for name in names:
            if name not in members:
                some = [repr(name) for name in islice(members, SOME)] + ["…"] * (len(members) > SOME)
                got = ", ".join(some) or "nothing"
                raise ValueError(f"{str(path)!r} must have an array {name!r}, got {got}")
        wanted = [*members] if optional is None else [name for name in (*names, *optional) if name in members]
        arrays = {name: _stored(path, name, archive, members[name]) for name in wanted}
        size = sum(array.size * array.dtype.itemsize for array in arrays.values())
        if size > max_bytes:
            remedy = "raise the limit (--max-bytes, or max_bytes in Python) if the file is what you expect"
            raise ValueError(f"arrays of {str(path)!r} must have at most {max_bytes:,} bytes, got {size:,}: {remedy}")
        for array in arrays.values():
            if array.member.file_size != array.start + array.size * array.dtype.itemsize:
                raise ValueError(f"{array.place} must be an array of numbers, got damaged data")
        yield arrays


def read_all(path: Path, *, max_bytes: int = MAX_BYTES) -> dict[str, NDArray[Any]]:
    """Read all arrays of a file."""
    with open_arrays(path, (), optional=None, max_bytes=max_bytes) as arrays:
        return {name: array.read() for name, array in arrays.items()}


@contextmanager
def _opened(path: Path) -> Iterator[ZipFile]:
    with ExitStack() as stack:
        stream = _stream(path, stack)
        if stream.peek(len(npy.MAGIC_PREFIX)).startswith(npy.MAGIC_PREFIX):
            raise ValueError(f"{str(path)!r} must be an .npz file of numpy, got a single array")
        try:
            archive = stack.enter_context(ZipFile(stream))
        except Exception as error:  # zipfile raises many types for a broken file
            raise ValueError(f"{str(path)!r} must be an .npz file of numpy, got another format") from error
        yield archive


def _stream(path: Path, stack: ExitStack) -> BufferedReader:
    try:
        return stack.enter_context(open_regular(path))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"data file {str(path)!r} does not exist") from error
    except (OSError, ValueError) as error:  # a ValueError for a name that no file can have
        why = error.strerror if isinstance(error, OSError) else error
        raise OSError(f"data file {str(path)!r} cannot be read ({why})") from error


def _stored(path: Path, name: str, archive: ZipFile, member: ZipInfo) -> Stored:
    """Read the header of an array."""
    place = f"array {name!r} of {str(path)!r}"
    with _faults(place), archive.open(member) as file:
        shape, in_columns, dtype = _header(file)
        if min(shape, default=0) < 0:
            raise ValueError(f"negative shape {shape}")
        start = file.tell()
    if dtype.hasobject or dtype.kind not in "biuf":
        got = "objects" if dtype.hasobject else dtype
        raise ValueError(f"{place} must be an array of numbers, got {got}")
    return Stored(path, name, archive, member, shape, dtype, in_columns, start)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the shape, the order and the dtype of an array, up to its first entry."""
    header: tuple[tuple[int, ...], bool, np.dtype[Any]] = HEADERS[npy.read_magic(file)](file)
    return header


def _exactly(file: IO[bytes], count: int) -> bytes:
    content = file.read(count)  # a member of an archive returns less only at its end
    if len(content) < count:
        raise EOFError(f"{count - len(content)} bytes are missing")
    return content


@contextmanager
def _faults(place: str) -> Iterator[None]:
    """Describe in one sentence any of the many errors that numpy and zipfile raise for a broken array."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{place} must be an array of numbers, got {_fault(error)}") from error


def _fault(error: Exception) -> str:
    if "is encrypted" in str(error):
        return "encrypted data"
    if isinstance(error, NotImplementedError):
        return "an unknown compression"
    if isinstance(error, MemoryError):
        return "one that does not fit into memory"
    return "damaged data"
