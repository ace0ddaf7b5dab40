"""Arrays of `.npz` files as they are, for models of one's own: real values, labels, masks."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .dataset import SPLITS
from .grey import SEED
from .npz import MAX_BYTES, read_all

HELD_OUT = 0.1
"""The share of the training points that is held out for validation if the file has none."""

Inputs = Tensor | dict[str, Tensor]
"""The inputs of data points: one tensor, or several by name."""


@dataclass(frozen=True, eq=False)
class Arrays:
    """Splits of data points, each one tensor or several by name, with points along the first axis."""

    name: str
    splits: Mapping[str, Inputs]
    holds_out: bool = False
    """Whether the file has no validation points, so that some of its training points are held out for them."""

    def split(self, name: str) -> Inputs:
        """Return the inputs of `train`, `valid` or `test`."""
        if name not in self.splits:
            got = ", ".join(map(repr, self.splits))
            raise ValueError(f"data must have a split {name!r}, got {got} in {self.name!r}")
        return self.splits[name]

    def size(self, name: str) -> int:
        """Return the number of points of a split."""
        return len(next(iter(_tensors(self.split(name)).values())))

    @cached_property
    def source(self) -> str:
        """The sizes of the splits and the shape of a point, and how many values are not finite."""
        words = {"train": "training", "valid": f"validation{' (held out of train)' * self.holds_out}", "test": "test"}
        sizes = ", ".join(f"{self.size(split):,} {words[split]}" for split in self.splits)
        shapes = " and ".join(
            f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape[1:])}".strip()
            for name, tensor in _tensors(self.splits["train"]).items()
        )
        odd = {
            split: sum(int((~tensor.isfinite()).sum()) for tensor in _tensors(inputs).values())
            for split, inputs in self.splits.items()
        }
        remarks = [f" {count:,} values of {split} are not finite." for split, count in odd.items() if count]
        return f"{self.name!r}: {sizes} points of {shapes}.{''.join(remarks)}"

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the names, shapes and values of all splits."""
        digest = hashlib.sha256()
        for split, inputs in self.splits.items():
            for name, tensor in _tensors(inputs).items():
                digest.update(f"{split} {name} {tuple(tensor.shape)} {tensor.dtype}".encode())
                digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def to(self, device: torch.device | str) -> Self:
        """Move the data to a device."""
        moved = {name: _moved(inputs, device) for name, inputs in self.splits.items()}
        return replace(self, splits=moved)


def load_arrays(path: Path, *, max_bytes: int | None = None) -> Arrays:
    """Load a file with arrays `train`, or `train_NAME` for several inputs, and likewise `test` and `valid`.

    Arrays keep their dtypes, except that floats of any size and bits (bool, or uint8 of 0 and 1) become float32. All
    splits must have the dtypes of `train`. Without `valid`, `train` is shuffled by `numpy.random.RandomState(0)` and a
    tenth of it is held out. `max_bytes` limits the memory of all arrays, by default to 1 GiB.
    """
    splits = dict[str, dict[str, NDArray[Any]]]()
    for key, array in read_all(path, max_bytes=max_bytes or MAX_BYTES).items():
        split, _, name = key.partition("_")
        if split not in SPLITS:
            must = "must have arrays train, or train_x, train_y and so on, and likewise for valid and test"
            raise ValueError(f"{str(path)!r} {must}, got {key!r}")
        splits.setdefault(split, {})[name] = array
        if "" in splits[split] and len(splits[split]) > 1:
            named = f"{split}_{next(filter(None, splits[split]))}"
            raise ValueError(f"{str(path)!r} must have {split!r} or arrays such as {named!r}, got both")
    if "train" not in splits:
        raise ValueError(f"{str(path)!r} must have an array 'train' or arrays 'train_NAME', got none")
    holds_out = "valid" not in splits
    _require_alike(path, "train", splits["train"], splits["train"])
    dtypes = {name: _loaded_dtype(array) for name, array in splits["train"].items()}
    if holds_out:
        points = len(next(iter(splits["train"].values())))
        if points < 2:
            must = "must have at least two training points, of which one is held out, or arrays for valid"
            raise ValueError(f"{str(path)!r} {must}, got one point")
        order, held = np.random.RandomState(SEED).permutation(points), max(1, int(HELD_OUT * points))
        shuffled = {name: array[order] for name, array in splits["train"].items()}
        splits["valid"] = {name: array[-held:] for name, array in shuffled.items()}
        splits["train"] = {name: array[:-held] for name, array in shuffled.items()}
    for split, arrays in splits.items():
        _require_alike(path, split, arrays, splits["train"])
    ordered = {split: _inputs(path, split, splits[split], dtypes) for split in SPLITS if split in splits}
    return Arrays(str(path), ordered, holds_out)


def _require_alike(
    path: Path, split: str, arrays: Mapping[str, NDArray[Any]], like: Mapping[str, NDArray[Any]]
) -> None:
    """Raise unless all arrays of a split have equally many points, at least one, with the shapes of training points."""
    where = f"the split {split!r} of {str(path)!r}"
    if arrays.keys() != like.keys():
        got, expected = (", ".join(sorted(named)) or "one array" for named in (arrays, like))
        raise ValueError(f"{where} must have the inputs {expected}, as train has, got {got}")
    if len(sizes := {array.shape[:1] for array in arrays.values()}) > 1 or () in sizes or (0,) in sizes:
        got = " and ".join(str(array.shape) for array in arrays.values())
        raise ValueError(f"{where} must have as many data points in every array, at least one, got {got}")
    for name, array in arrays.items():
        if array.shape[1:] != like[name].shape[1:]:
            got = f"{array.shape[1:]} and {like[name].shape[1:]} in train"
            raise ValueError(f"{where} must have points of the same shape as train, got {got}")


def _inputs(path: Path, split: str, arrays: Mapping[str, NDArray[Any]], dtypes: Mapping[str, np.dtype[Any]]) -> Inputs:
    """Return the inputs of a split with the dtypes of training points; raise if its arrays have others."""
    for name, array in arrays.items():
        if _loaded_dtype(array) != dtypes[name] and array.dtype.newbyteorder("=") != dtypes[name]:
            place = f"array {split + '_' * bool(name) + name!r} of {str(path)!r}"
            got = f"{array.dtype.name}{f' of values up to {array.max()}' if array.dtype == np.uint8 else ''}"
            raise ValueError(f"{place} must have the dtype of train, which is read as {dtypes[name].name}, got {got}")
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array, dtypes[name])) for name, array in arrays.items()}
    return tensors[""] if tensors.keys() == {""} else tensors


def _loaded_dtype(array: NDArray[Any]) -> np.dtype[Any]:
    """Return the dtype with which an array is read, in the byte order of this machine."""
    is_bits = array.dtype == np.bool_ or (array.dtype == np.uint8 and bool((array <= 1).all()))
    return np.dtype(np.float32) if is_bits or array.dtype.kind == "f" else array.dtype.newbyteorder("=")


def _tensors(inputs: Inputs) -> dict[str, Tensor]:
    return inputs if isinstance(inputs, dict) else {"": inputs}


def _moved(inputs: Inputs, device: torch.device | str) -> Inputs:
    return inputs.to(device) if isinstance(inputs, Tensor) else {name: part.to(device) for name, part in inputs.items()}
