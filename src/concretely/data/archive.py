"""Load data sets from `.npz` files."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray

from .dataset import SPLITS, Bits, Dataset, columns
from .grey import SEED, Rule, binarized, how

Arrays = dict[str, NDArray[Any]]


def load(path: Path, *, width: int | None, rule: Rule) -> Dataset:
    """Load the arrays `train`, `test` and optionally `valid` of a file, with points along the first axis.

    Without `valid`, `train` is shuffled and a tenth of it is held out. Other axes are flattened. The first rule that
    applies determines the format of all arrays:

    - packed bits, in the order of `numpy.packbits(axis=1)`: the file has a number `width`, or `width` is not the number
      of columns but packs into it;
    - bits: all numbers are 0 or 1;
    - grey values from 0 to 255: all arrays are uint8;
    - grey values from 0 to 1: all arrays are floating.

    One `numpy.random.RandomState(0)` shuffles `train` if needed, then draws the bits of `train`, `valid` and `test`.
    """
    arrays = read(path, ("train", "test"), optional=("valid", "width"))
    declared = _declared(path, arrays.pop("width")) if "width" in arrays else None
    arrays = {name: _flat(_place(path, name), arrays[name]) for name in SPLITS if name in arrays}
    found = {array.shape[1] for array in arrays.values()}
    if len(found) > 1:
        sizes = ", ".join(f"{array.shape[1]} in {name!r}" for name, array in arrays.items())
        raise ValueError(f"arrays of {str(path)!r} must all have the same width, got {sizes}")
    random = RandomState(SEED)
    held_out = "" if "valid" in arrays else _hold_out(path, arrays, random)
    is_packed = width is not None and arrays["train"].shape[1] == columns(width) != width
    is_packed = is_packed and all(array.dtype == np.uint8 for array in arrays.values())
    wanted = declared or (width if is_packed else None)
    if wanted:
        for name, array in arrays.items():
            require_bytes(path, name, array, columns=columns(wanted))
        splits, meaning = {name: Bits(torch.from_numpy(array), wanted) for name, array in arrays.items()}, "packed bits"
    elif all(((array == 0) | (array == 1)).all() for array in arrays.values()):
        splits, meaning = {name: Bits.pack(array) for name, array in arrays.items()}, "bits"
    else:
        top = _top(path, arrays)
        splits = binarized(arrays, rule, top=top, random=random)
        meaning = f"grey values from 0 to {top}, {how(rule)}"
    return Dataset(str(path), **splits, source=f"{str(path)!r}, {meaning}{held_out}.")


def read_all(path: Path) -> Arrays:
    """Read all arrays of a file, without unpickling."""
    return read(path, (), optional=None)


def read(path: Path, names: tuple[str, ...], *, optional: tuple[str, ...] | None = ()) -> Arrays:
    """Read arrays from a file, without unpickling. If `optional` is None, read all."""
    try:
        stream = path.open("rb")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"data file {str(path)!r} does not exist") from error
    except OSError as error:
        raise OSError(f"data file {str(path)!r} cannot be read ({error.strerror})") from error
    with stream:
        try:
            file = np.load(stream, allow_pickle=False)
        except Exception as error:  # numpy and zipfile raise many types for a broken file
            raise ValueError(f"{str(path)!r} must be an .npz file of numpy, got another format") from error
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError(f"{str(path)!r} must be an .npz file of numpy, got a single array")
        for name in names:
            if name not in file:
                found = ", ".join(map(repr, file)) or "nothing"
                raise ValueError(f"{str(path)!r} must have an array {name!r}, got {found}")
        wanted = file.files if optional is None else (*names, *optional)
        return {name: _read(path, name, file) for name in wanted if name in file}


def stored(path: Path, names: tuple[str, ...], *, columns: int) -> Arrays:
    """Read byte arrays from a file in the data folder. If it is broken, the error tells the user to delete it."""
    try:
        arrays = read(path, names)
        for name, array in arrays.items():
            require_bytes(path, name, array, columns=columns)
    except ValueError as error:
        raise ValueError(f"{error}; delete the file to download the data again") from error
    return arrays


def require_bytes(path: Path, name: str, array: NDArray[Any], *, columns: int) -> None:
    """Raise unless an array is uint8 with `columns` columns."""
    if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != columns or not len(array):
        raise ValueError(f"{_place(path, name)} must have {columns} columns of uint8, got {_form(array)}")


def _read(path: Path, name: str, file: Any) -> NDArray[Any]:
    """Read one array from a file."""
    try:
        array = np.asarray(file[name])
    except Exception as error:  # as in `read`
        raise ValueError(f"{_place(path, name)} must be an array of numbers, got {_fault(error)}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{_place(path, name)} must be an array of numbers, got {array.dtype}")
    return array


def _fault(error: Exception) -> str:
    """Describe an unreadable array, given the error from reading it."""
    if "Object arrays" in str(error):
        return "objects"
    if "is encrypted" in str(error):
        return "encrypted data"
    if isinstance(error, NotImplementedError):
        return "an unknown compression"
    if isinstance(error, MemoryError):
        return "one that does not fit into memory"
    return "damaged data"


def _declared(path: Path, width: NDArray[Any]) -> int:
    """Return the number of packed bits per point that a file declares."""
    if width.size != 1 or width.dtype.kind not in "iu" or width.item() < 1:
        raise ValueError(f"{_place(path, 'width')} must be a positive integer, got {_form(width)}")
    return int(width.item())


def _flat(place: str, array: NDArray[Any]) -> NDArray[Any]:
    """Flatten all axes after the first."""
    if array.ndim < 2 or array.size == 0:
        raise ValueError(f"{place} must have an axis of points and one of bits or grey values, got shape {array.shape}")
    return array.reshape(len(array), -1)


def _hold_out(path: Path, arrays: Arrays, random: RandomState) -> str:
    """Move a tenth of the training points to validation, and return a description."""
    train = arrays["train"]
    if len(train) < 2:
        raise ValueError(
            f"{_place(path, 'train')} must have at least two points, since one is held out for validation, got 1"
        )
    held = max(len(train) // 10, 1)
    train = train[random.permutation(len(train))]
    arrays["train"], arrays["valid"] = train[:-held], train[-held:]
    return f", {held} of {len(train)} training points held out for validation after a shuffle from seed {SEED}"


def _top(path: Path, arrays: Arrays) -> int:
    """Return the largest possible grey value, 255 for bytes or else 1; raise if the numbers are not grey values."""
    if all(array.dtype == np.uint8 for array in arrays.values()):
        return 255
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            outside, must = ~((array >= 0) & (array <= 1)), "lie between 0 and 1"
        else:
            outside, must = (array != 0) & (array != 1), "be bits, since not all arrays are uint8 or floating"
        if outside.any():
            index = tuple(np.argwhere(outside)[0].tolist())
            raise ValueError(f"{_place(path, name)} must {must}, got {array[index]} of {array.dtype} at index {index}")
    return 1


def _place(path: Path, name: str) -> str:
    """Name an array of a file, for errors."""
    return f"array {name!r} of {str(path)!r}"


def _form(array: NDArray[Any]) -> str:
    """Describe an array by its value if it is a number, else by its dtype and shape."""
    return f"{array.item()}" if array.ndim == 0 else f"{array.dtype} of shape {array.shape}"
