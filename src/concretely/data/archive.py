"""Data from an `.npz` file of numpy."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray

from .bits import Bits, columns
from .dataset import SPLITS, Dataset
from .grey import Rule, binarize, how

SEED = 0

Arrays = dict[str, NDArray[Any]]


def load(path: Path, *, width: int | None, rule: Rule) -> Dataset:
    """The arrays `train`, `test` and, where there is one, `valid` of a file, of points along the first axis.

    If there is no `valid`, a tenth of `train` is held out for it after a shuffle. Further axes are flattened. What the
    arrays mean is decided for all of them together, by the first of these that holds:

    - the file has a number `width`, or `width` is asked for and is not the number of columns but would pack into
      them: bytes are packed bits, in the order of `numpy.packbits(axis=1)`;
    - all numbers are 0 or 1: they are bits;
    - all are bytes: they are grey values from 0 to 255;
    - all are floating: they are grey values from 0 to 1.

    Grey values become bits by the rule. One stream of random numbers, of `numpy.random.RandomState(0)`, shuffles
    `train` if need be, and then draws the bits of `train`, `valid` and `test`.
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
    wanted = declared or (width if _fits(arrays, width) else None)
    if wanted:
        for name, array in arrays.items():
            require_bytes(path, name, array, columns=columns(wanted))
        splits, meaning = {name: Bits(torch.from_numpy(array), wanted) for name, array in arrays.items()}, "packed bits"
    elif all(_is_bits(array) for array in arrays.values()):
        splits, meaning = {name: Bits.pack(array) for name, array in arrays.items()}, "bits"
    else:
        top = _top(path, arrays)
        bits = {name: binarize(arrays[name], rule, top=top, random=random) for name in SPLITS}
        splits = {name: Bits.pack(array) for name, array in bits.items()}
        meaning = f"grey values from 0 to {top}, {how(rule, SEED)}"
    return Dataset(str(path), **splits, source=f"{str(path)!r}, {meaning}{held_out}.")


def read(path: Path, names: tuple[str, ...], *, optional: tuple[str, ...] = ()) -> Arrays:
    """Arrays of a file by their names, none of which may be pickled."""
    try:
        stream = path.open("rb")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"data file {str(path)!r} does not exist") from error
    except OSError as error:
        raise OSError(f"data file {str(path)!r} cannot be read ({error.strerror})") from error
    with stream:
        try:
            file = np.load(stream, allow_pickle=False)
        except Exception as error:  # of a broken file, numpy, zipfile and what they call raise about anything
            raise ValueError(f"{str(path)!r} must be an .npz file of numpy, got something else") from error
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError(f"{str(path)!r} must be an .npz file of numpy, got a single array")
        for name in names:
            if name not in file:
                known = ", ".join(map(repr, file)) or "nothing"
                raise ValueError(f"{str(path)!r} must have an array {name!r}, got {known}")
        return {name: _read(path, name, file) for name in (*names, *optional) if name in file}


def stored(path: Path, names: tuple[str, ...], *, columns: int) -> Arrays:
    """Arrays of bytes of a file in the data folder, which is made anew if it is not there."""
    try:
        arrays = read(path, names)
        for name, array in arrays.items():
            require_bytes(path, name, array, columns=columns)
    except ValueError as error:
        raise ValueError(f"{error}; remove the file to have the data downloaded again") from error
    return arrays


def require_bytes(path: Path, name: str, array: NDArray[Any], *, columns: int) -> None:
    """Refuse an array that is not of so many bytes for each point."""
    if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != columns or not len(array):
        raise ValueError(f"{_place(path, name)} must have {columns} columns of uint8, got {_form(array)}")


def _read(path: Path, name: str, file: Any) -> NDArray[Any]:
    """One array of a file."""
    try:
        array = np.asarray(file[name])
    except Exception as error:  # as in `read`
        raise ValueError(f"{_place(path, name)} must be an array of numbers, got {_fault(error)}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{_place(path, name)} must be an array of numbers, got {array.dtype}")
    return array


def _fault(error: Exception) -> str:
    """What an array is instead, by the error that its reading ends in."""
    if "Object arrays" in str(error):
        return "objects"
    if "is encrypted" in str(error):
        return "an encrypted one"
    if isinstance(error, NotImplementedError):
        return "one that is compressed in an unknown way"
    if isinstance(error, MemoryError):
        return "one that does not fit into memory"
    return "a damaged one"


def _declared(path: Path, width: NDArray[Any]) -> int:
    """The number of bits of a point that a file says it has packed."""
    if width.size != 1 or width.dtype.kind not in "iu" or width.item() < 1:
        raise ValueError(f"{_place(path, 'width')} must be a positive integer, got {_form(width)}")
    return int(width.item())


def _flat(place: str, array: NDArray[Any]) -> NDArray[Any]:
    """An array with all axes after the first made one."""
    if array.ndim < 2 or array.size == 0:
        raise ValueError(f"{place} must have points and, for each, bits or grey values, got shape {array.shape}")
    return array.reshape(len(array), -1)


def _hold_out(path: Path, arrays: Arrays, random: RandomState) -> str:
    """Move a tenth of the training points to validation, and say so."""
    train = arrays["train"]
    if len(train) < 2:
        raise ValueError(f"{_place(path, 'train')} must have two points or more, of which one is held out, got 1")
    held = max(len(train) // 10, 1)
    train = train[random.permutation(len(train))]
    arrays["train"], arrays["valid"] = train[:-held], train[-held:]
    return f", {held} of {len(train)} training points held out for validation after a shuffle from seed {SEED}"


def _fits(arrays: Arrays, width: int | None) -> bool:
    """Whether arrays can only be packed if they are to have this width."""
    if width is None or any(array.dtype != np.uint8 for array in arrays.values()):
        return False
    return bool(width != arrays["train"].shape[1] == columns(width))


def _is_bits(array: NDArray[Any]) -> bool:
    """Whether all numbers are 0 or 1."""
    return array.dtype == np.bool_ or bool(((array == 0) | (array == 1)).all())


def _top(path: Path, arrays: Arrays) -> int:
    """The value that grey values are a fraction of, refused if they are not grey."""
    if all(array.dtype == np.uint8 for array in arrays.values()):
        return 255
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            outside, must = ~((array >= 0) & (array <= 1)), "lie between 0 and 1"
        else:
            outside, must = (array != 0) & (array != 1), "be bits, as not all arrays are of uint8 or floating"
        if outside.any():
            index = tuple(np.argwhere(outside)[0].tolist())
            raise ValueError(f"{_place(path, name)} must {must}, got {array[index]} of {array.dtype} at index {index}")
    return 1


def _place(path: Path, name: str) -> str:
    """The name of an array of a file."""
    return f"array {name!r} of {str(path)!r}"


def _form(array: NDArray[Any]) -> str:
    """The type and the shape of an array, and its value if it is a number."""
    return f"{array.item()}" if array.ndim == 0 else f"{array.dtype} of shape {array.shape}"
