"""Where the batches of a run come from: data points on its device, of which each step takes some by their indices."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..data.dataset import Bits
from ..functional.arithmetic import unpack
from .optimizer import kernels
from .rng import Order

Inputs = Any
"""The inputs of a loss: a tensor, or tuples and dictionaries of tensors."""


class Batches(ABC):
    """The batches of the members of a program. The first axis of every tensor counts members."""

    @abstractmethod
    def prepare(self, step: int) -> Hashable:
        """Do what the host has to do before a step. Steps with equal results do the same work on the same memory."""

    @abstractmethod
    def write(self, out: Int64[Tensor, "steps members rows"], first: int) -> None:
        """Write the indices of the points of all members for the steps from `first` on."""

    @abstractmethod
    def take(self, index: Int64[Tensor, "members rows"], part: int) -> Inputs:
        """Return the inputs of a part of a step, without waiting for the device."""


class Feed(ABC):
    """Where the batches of a run come from."""

    rows: int
    """The number of indices of a step."""

    @abstractmethod
    def fetch(self, step: int) -> None:
        """Read the data of a step if they are not in memory. Raise if there are none."""

    @abstractmethod
    def close(self) -> None:
        """End what reads the data, such as worker processes. Reading may begin again afterwards."""

    @abstractmethod
    def inputs(self, step: int, device: torch.device) -> list[Inputs]:
        """Return the inputs of all parts of a step, without a member axis."""

    @staticmethod
    @abstractmethod
    def shared(feeds: Sequence[Any], device: torch.device) -> Batches:
        """Return the batches of several members on a device."""


class Points(ABC):
    """Data points on a device."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of points."""

    @abstractmethod
    def take(self, index: Int64[Tensor, "*batch"]) -> Inputs:
        """Return the inputs of some points, without waiting for the device."""

    @property
    @abstractmethod
    def identity(self) -> Any:
        """A key that is equal for points in the same memory."""

    @classmethod
    @abstractmethod
    def joined(cls, sets: Sequence[Any]) -> Any:
        """Concatenate sets of points."""


class PackedPoints(Points):
    """Points of packed bits, which become floats of 0 and 1."""

    def __init__(self, bits: Bits) -> None:
        self._packed, self._width = bits.packed.contiguous(), bits.width
        self._identity = id(bits.packed)

    def __len__(self) -> int:
        return len(self._packed)

    def take(self, index: Int64[Tensor, "*batch"]) -> Tensor:
        """Return the bits of some points."""
        kernel = kernels("bits", self._packed) if index.dim() == 2 else None
        if kernel is not None:
            found: Tensor = kernel.unpack(self._packed, index, self._width)
            return found
        return unpack(self._packed[index], self._width).float()

    @property
    def identity(self) -> Any:
        """The identity of the tensor of packed bits."""
        return self._identity

    @classmethod
    def joined(cls, sets: Sequence[Any]) -> Any:
        """Concatenate sets of bits of one width."""
        return cls(Bits(torch.cat([each._packed for each in sets]), sets[0]._width))


class TensorPoints(Points):
    """Points given as tensors, or as tuples and dictionaries of tensors, with points along the first axis."""

    def __init__(self, tensors: Inputs) -> None:
        self._leaves, self._tree = tree_flatten(tensors)
        sizes = {len(leaf) for leaf in self._leaves}
        if len(sizes) != 1:
            found = " and ".join(str(len(leaf)) for leaf in self._leaves) or "no tensor"
            raise ValueError(f"data must have as many data points in every tensor, got {found}")
        self._size = sizes.pop()

    def __len__(self) -> int:
        return self._size

    def take(self, index: Int64[Tensor, "*batch"]) -> Inputs:
        """Return the inputs of some points."""
        return tree_unflatten([leaf[index] for leaf in self._leaves], self._tree)

    @property
    def identity(self) -> Any:
        """The identities of the tensors."""
        return tuple(id(leaf) for leaf in self._leaves)

    @classmethod
    def joined(cls, sets: Sequence[Any]) -> Any:
        """Concatenate points of one structure."""
        parts = zip(*(each._leaves for each in sets), strict=True)
        return cls(tree_unflatten([torch.cat(part) for part in parts], sets[0]._tree))


@dataclass(frozen=True, eq=False)
class Indexed(Feed):
    """Points on the device of a run, and the order in which steps take them, in parts of equal size."""

    points: Points
    order: Order
    parts: int = 1

    @property
    def rows(self) -> int:  # type: ignore[override]
        """The number of indices of a step."""
        return self.order.batch

    def sliced(self, rank: int, ranks: int) -> "Indexed":
        """Return the slice of one of several ranks of every part."""
        return replace(self, order=self.order.sliced(self.parts, rank, ranks))

    def fetch(self, step: int) -> None:
        """Do nothing: the points are on the device."""

    def close(self) -> None:
        """Do nothing: the points are on the device."""

    def inputs(self, step: int, device: torch.device) -> list[Inputs]:
        """Return the inputs of all parts of a step."""
        return [self.points.take(part.to(device)) for part in self.order.indices(step).chunk(self.parts)]

    @staticmethod
    def shared(feeds: Sequence["Indexed"], device: torch.device) -> "IndexedBatches":
        """Return the batches of several members, whose points are on the device."""
        return IndexedBatches(feeds)


class IndexedBatches(Batches):
    """The points of several members in one set, without copies of those that members share."""

    def __init__(self, feeds: Sequence[Indexed]) -> None:
        sets = {feed.points.identity: feed.points for feed in feeds}
        starts = dict(zip(sets, accumulate((len(each) for each in sets.values()), initial=0), strict=False))
        first, *others = sets.values()
        self._points = type(first).joined([first, *others]) if others else first
        self._starts = [starts[feed.points.identity] for feed in feeds]
        self._orders, self._rows = [feed.order for feed in feeds], feeds[0].rows // feeds[0].parts

    def prepare(self, step: int) -> Hashable:
        """Do nothing: steps find their points on the device."""
        return None

    def write(self, out: Int64[Tensor, "steps members rows"], first: int) -> None:
        """Write the indices of the points of all members for the steps from `first` on."""
        spans = {key: order.span(first, len(out)) for key, order in {each.key: each for each in self._orders}.items()}
        for member, (order, start) in enumerate(zip(self._orders, self._starts, strict=True)):
            torch.add(spans[order.key], start, out=out[:, member])

    def take(self, index: Int64[Tensor, "members rows"], part: int) -> Inputs:
        """Return the inputs of a part of a step."""
        return self._points.take(index[:, part * self._rows : (part + 1) * self._rows])
