"""Binary data sets: points of packed bits, with splits for training, validation and test."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float32, Integer, UInt8
from numpy.typing import NDArray
from torch import Tensor

from ..functional.arithmetic import unpack
from ..spelling import did_you_mean

SPLITS = ("train", "valid", "test")
CHUNK = 4_096
"""The number of points to unpack at once when all are needed."""


@dataclass(frozen=True, eq=False)
class Bits:
    """Points of `width` bits each, packed in the order of `numpy.packbits(axis=1)`.

    Index with an integer, a slice or a tensor of indices. Points are unpacked on the device of `packed`.

    >>> bits = Bits.pack(torch.tensor([[1, 0, 1], [0, 1, 1]]))
    >>> bits.packed
    tensor([[160],
            [ 96]], dtype=torch.uint8)
    >>> bits[torch.tensor([1, 0])]
    tensor([[0, 1, 1],
            [1, 0, 1]], dtype=torch.uint8)
    >>> bits.rate
    tensor([0.5000, 0.5000, 1.0000])
    """

    packed: UInt8[Tensor, "points bytes"]
    width: int

    def __post_init__(self) -> None:
        if not isinstance(self.packed, Tensor):
            raise TypeError(f"packed must be a tensor, got {type(self.packed).__name__}")
        if isinstance(self.width, bool) or not isinstance(self.width, int):
            raise TypeError(f"width must be an integer, got {type(self.width).__name__}")
        shape = tuple(self.packed.shape)
        if self.packed.dtype != torch.uint8 or len(shape) != 2:
            raise ValueError(f"packed must be of uint8 and have two axes, got {self.packed.dtype} of shape {shape}")
        if self.width < 1:
            raise ValueError(f"width must be positive, got {self.width}")
        if shape[0] == 0:
            raise ValueError("packed must have at least one point, got none")
        if shape[1] != columns(self.width):
            raise ValueError(f"packed must have {columns(self.width)} bytes for {self.width} bits, got {shape[1]}")

    @classmethod
    def pack(cls, array: NDArray[Any] | Tensor) -> Self:
        """Pack an array of zeros and ones of any dtype, with an axis of points and one of bits."""
        if not isinstance(array, (np.ndarray, Tensor)):
            raise TypeError(f"array must be an array or a tensor, got {type(array).__name__}")
        if array.ndim != 2:
            raise ValueError(f"array must have an axis of points and one of bits, got shape {tuple(array.shape)}")
        device = array.device if isinstance(array, Tensor) else "cpu"
        entries = array.numpy(force=True) if isinstance(array, Tensor) else array
        strange = (entries != 0) & (entries != 1)
        if strange.any():
            index = tuple(np.argwhere(strange)[0].tolist())
            raise ValueError(f"array must be bits of 0 and 1, got {entries[index]} at index {index}")
        return cls(torch.from_numpy(np.packbits(entries != 0, axis=1)).to(device), entries.shape[1])

    def to(self, device: torch.device | str) -> Self:
        """Move the bits to a device."""
        return type(self)(self.packed.to(device), self.width)

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: Integer[Tensor, "*batch"] | slice | int) -> UInt8[Tensor, "... {self.width}"]:
        # torch would treat uint8 and bool as a mask, with a data-dependent shape
        if isinstance(index, Tensor) and index.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"index must be of int64 or int32, got {index.dtype}")
        return unpack(self.packed[index], self.width)

    def spread(self, points: int) -> UInt8[Tensor, "points width"]:
        """Return `points` evenly spaced data points. (The first ones may be alike, since data may be sorted.)"""
        return self[torch.linspace(0, len(self) - 1, points, device=self.packed.device).round().long()]

    @cached_property
    def rate(self) -> Float32[Tensor, "{self.width}"]:
        """Return the mean of every bit."""
        count = torch.zeros(self.width, dtype=torch.int64, device=self.packed.device)
        for start in range(0, len(self), CHUNK):
            count += self[start : start + CHUNK].sum(0)
        return (count.double() / len(self)).float()


def columns(width: int) -> int:
    """Return the number of bytes that `width` packed bits need."""
    return -(-width // 8)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Three splits of bits, and a description of their source.

    `train` excludes the validation points; `whole` includes them, for runs without model selection.

    >>> import torch
    >>> data = Dataset("dots", *(Bits.pack(torch.eye(points, 5)) for points in (3, 2, 1)), source="made up.")
    >>> len(data.train), len(data.whole.train), len(data.split("valid")), data.width
    (3, 5, 2, 5)
    >>> data.digest == data.to("cpu").digest != data.whole.digest
    True
    """

    name: str
    train: Bits
    valid: Bits
    test: Bits
    source: str
    """One sentence that describes the data and their binarization."""

    def __post_init__(self) -> None:
        widths = [self.split(name).width for name in SPLITS]
        if len(set(widths)) > 1:
            got = f"{widths[0]}, {widths[1]} and {widths[2]}"
            raise ValueError(f"train, valid and test must have points of the same width, got {got} in {self.name!r}")

    @property
    def width(self) -> int:
        """Return the number of bits per point."""
        return self.train.width

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the width, the split sizes and the packed bits. Name and device do not change it."""
        splits = [self.split(name) for name in SPLITS]
        digest = hashlib.sha256(np.array([self.width, *map(len, splits)], "<i8").tobytes())
        for split in splits:
            digest.update(split.packed.numpy(force=True).tobytes())
        return digest.hexdigest()

    @property
    def whole(self) -> Self:
        """Return a copy whose `train` also contains the points of `valid`."""
        packed = torch.cat([self.train.packed, self.valid.packed])
        source = f"{self.source.removesuffix('.')}; the validation points are among those for training."
        return replace(self, train=Bits(packed, self.width), source=source)

    def to(self, device: torch.device | str) -> Self:
        """Move the data to a device."""
        return replace(self, train=self.train.to(device), valid=self.valid.to(device), test=self.test.to(device))

    def split(self, name: str) -> Bits:
        """Return `train`, `valid` or `test`."""
        if name not in SPLITS:
            raise ValueError(f"unknown split {name!r}{did_you_mean(name, SPLITS)}")
        split: Bits = getattr(self, name)
        return split
