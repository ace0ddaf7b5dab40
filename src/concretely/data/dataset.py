"""Binary data sets with splits for training, validation and test."""

import hashlib
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from ..spelling import did_you_mean
from .bits import Bits

SPLITS = ("train", "valid", "test")


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
            found = f"{widths[0]}, {widths[1]} and {widths[2]}"
            raise ValueError(f"train, valid and test must have points of the same width, got {found} in {self.name!r}")

    @property
    def width(self) -> int:
        """Return the number of bits per point."""
        return self.train.width

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the width, the split sizes and the packed bits; it ignores name and device."""
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
