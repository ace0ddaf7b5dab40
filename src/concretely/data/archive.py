"""Load data sets from `.npz` files."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray

from .dataset import SPLITS, Bits, Dataset, columns
from .grey import SEED, Rule, binarize, how
from .npz import MAX_BYTES, Stored, open_arrays

Arrays = dict[str, NDArray[Any]]


def load(path: Path, *, width: int | None, rule: Rule, max_bytes: int = MAX_BYTES) -> Dataset:
    """Load the arrays `train`, `test` and optionally `valid` of a file, with points along the first axis.

    Without `valid`, `train` is shuffled and a tenth of it is held out. Other axes are flattened. The first rule that
    applies determines the format of all arrays:

    - packed bits, in the order of `numpy.packbits(axis=1)`: the file has a number `width`, or `width` is not the number
      of columns but packs into it;
    - bits: all numbers are 0 or 1;
    - grey values from 0 to 255: all arrays are uint8;
    - grey values from 0 to 1: all arrays are floating.

    One `numpy.random.RandomState(0)` shuffles `train` if needed, then draws the bits of `train`, `valid` and `test`.

    The arrays are read by parts, once to find their format and once to pack their bits. Only the training points of
    grey values are read as a whole, and only if they must be shuffled before their bits are drawn. `max_bytes` limits
    the memory that all arrays would take.
    """
    with open_arrays(path, ("train", "test"), optional=("valid", "width"), max_bytes=max_bytes) as stored_arrays:
        declared = _declared(stored_arrays.pop("width")) if "width" in stored_arrays else None
        arrays = {name: stored_arrays[name] for name in SPLITS if name in stored_arrays}
        widths = {name: _width(array) for name, array in arrays.items()}
        if len(set(widths.values())) > 1:
            sizes = ", ".join(f"{width} in {name!r}" for name, width in widths.items())
            raise ValueError(f"arrays of {str(path)!r} must all have the same width, got {sizes}")
        random = RandomState(SEED)
        order = None if "valid" in arrays else _shuffled(arrays["train"], random)
        is_packed = width is not None and widths["train"] == columns(width) != width
        is_packed = is_packed and all(array.dtype == np.uint8 for array in arrays.values())
        wanted, meaning = declared or (width if is_packed else None), "packed bits"
        if wanted:
            for array in arrays.values():
                _require_bytes(array, columns=columns(wanted))
            packed = {name: array.rows() for name, array in arrays.items()}
        else:
            wanted, (packed, meaning) = widths["train"], _packed(arrays, rule, order, random)
    held_out = ""
    if order is not None:
        held, train = max(len(order) // 10, 1), packed["train"][order]
        packed = {"train": train[:-held], "valid": train[-held:], "test": packed["test"]}
        held_out = f", {held} of {len(order)} training points held out for validation after a shuffle from seed {SEED}"
    splits = {name: Bits(torch.from_numpy(packed[name]), wanted) for name in SPLITS}
    return Dataset(str(path), **splits, source=f"{str(path)!r}, {meaning}{held_out}.")


def _packed(
    arrays: Mapping[str, Stored], rule: Rule, order: NDArray[np.intp] | None, random: RandomState
) -> tuple[Arrays, str]:
    """Return the packed bits of arrays of bits or grey values, in the order of the file, and a description of them.

    The bits of grey values of `train` are drawn in the given order.
    """
    top = _top(arrays)
    if top is None:
        return {name: _pack(part != 0 for part in array.parts()) for name, array in arrays.items()}, "bits"
    packed = {}
    for name, array in arrays.items():
        own = order if name == "train" else None
        packed[name] = _pack(binarize(part, rule, top=top, random=random) for part in array.parts(own))
        if own is not None:
            packed[name] = packed[name][np.argsort(own)]
    return packed, f"grey values from 0 to {top}, {how(rule)}"


def stored(path: Path, names: tuple[str, ...], *, columns: int) -> Arrays:
    """Read byte arrays from a file in the data folder. If it is broken, the error says to delete it."""
    try:
        with open_arrays(path, names) as arrays:
            for array in arrays.values():
                _require_bytes(array, columns=columns)
            return {name: array.rows() for name, array in arrays.items()}
    except ValueError as error:
        raise ValueError(f"{error}; delete the file to download the data again") from error


def _require_bytes(array: Stored, *, columns: int) -> None:
    """Raise unless an array is uint8 with `columns` columns."""
    if array.dtype != np.uint8 or len(array.shape) < 2 or not array.size or array.size // len(array) != columns:
        raise ValueError(f"{array.place} must have {columns} columns of uint8, got {_form(array)}")


def _declared(array: Stored) -> int:
    """Return the number of packed bits per point that a file declares."""
    if array.size != 1 or array.dtype.kind not in "iu" or array.read().item() < 1:
        width = _form(array) if array.shape else array.read().item()
        raise ValueError(f"{array.place} must be a positive integer, got {width}")
    return int(array.read().item())


def _width(array: Stored) -> int:
    """Return the number of columns, with all axes after the first flattened."""
    if len(array.shape) < 2 or not array.size:
        must = "must have an axis of points and one of bits or grey values"
        raise ValueError(f"{array.place} {must}, got shape {array.shape}")
    return array.size // len(array)


def _shuffled(train: Stored, random: RandomState) -> NDArray[np.intp]:
    """Return the order of the training points, of which the last tenth is held out for validation."""
    if len(train) < 2:
        raise ValueError(
            f"{train.place} must have at least two points, since one is held out for validation, got {len(train)}"
        )
    return random.permutation(len(train))


def _pack(parts: Iterator[NDArray[np.bool_]]) -> NDArray[np.uint8]:
    return np.concatenate([np.packbits(part, axis=1) for part in parts])


def _top(arrays: Mapping[str, Stored]) -> int | None:
    """Return the largest possible grey value, 255 for bytes or else 1, or None if all numbers are 0 or 1.

    Raise an error if the numbers are not grey values.
    """
    are_bits, fault = True, ""
    for array in arrays.values():
        start = 0
        for part in array.parts():
            other = (part != 0) & (part != 1)
            are_bits = are_bits and not other.any()
            if not fault:
                fault = _fault(array, part, other, start=start)
            start += len(part)
    if are_bits:
        return None
    if all(array.dtype == np.uint8 for array in arrays.values()):
        return 255
    if fault:
        raise ValueError(fault)
    return 1


def _fault(array: Stored, part: NDArray[Any], other: NDArray[np.bool_], *, start: int) -> str:
    """Describe the first number of a part that is no grey value from 0 to 1 or, in an array of integers, no bit."""
    must = "be bits, since not all arrays are uint8 or floating"
    if array.dtype.kind == "f":
        other, must = ~((part >= 0) & (part <= 1)), "lie between 0 and 1"
    if not other.any():
        return ""
    row, column = divmod(int(other.argmax()), other.shape[1])
    got = f"{part[row, column]} of {array.dtype} at index {(start + row, column)}"
    return f"{array.place} must {must}, got {got}"


def _form(array: Stored) -> str:
    return f"{array.dtype} of shape {array.shape}"
