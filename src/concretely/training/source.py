"""The data of a user as the feed of a run: tensors, data sets of torch, loaders, iterables, and sets of bits."""

import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate
from torch.utils.data import Dataset as TorchDataset

from ..data import WIDTHS, Dataset, load_data
from ..data.arrays import Arrays, load_arrays
from ..data.dataset import Bits
from ..spelling import did_you_mean
from .feed import Feed, Indexed, Inputs, PackedPoints, Points, TensorPoints
from .rng import Order, Purpose, seed_of
from .stream import (
    EndOfDataError,
    Stream,
    StreamBatches,
    epoch_length,
    seeded_everything,
    to_device,
    why_not_replayable,
)

SHARE = 1 / 4
"""The share of the free memory of a GPU that data may take."""
LARGEST = 2**30
"""The maximum number of bytes of a data set of torch that is read into memory as a whole."""
TRIED = 8
"""The number of points that are read twice, to see whether a data set returns the same points again."""

Note = Callable[[str], None]
"""Receives messages for the user, one sentence each."""


class ItemPoints(Points):
    """The points of a data set of torch, read one by one."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def take(self, index: Int64[Tensor, " batch"]) -> Inputs:
        """Read and collate some points."""
        return default_collate([self._items[place] for place in index.tolist()])

    @property
    def identity(self) -> Any:
        """The identity of the data set."""
        return id(self._items)

    @classmethod
    def joined(cls, sets: Any) -> Any:
        """Raise, as a run takes its own points on the host."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class HostIndexed(Feed):
    """Points in the memory of the host, in the same order as those of `Indexed`."""

    points: Points
    order: Order
    parts: int = 1
    is_random: bool = False
    """Whether points differ from one reading to the next."""
    rows = 0

    def sliced(self, rank: int, ranks: int) -> "HostIndexed":
        """Return the slice of one of several ranks of every part."""
        return replace(self, order=self.order.sliced(self.parts, rank, ranks))

    def host(self, step: int) -> list[Inputs]:
        """Return the batches of a step. Points that are read with random numbers follow from the seed and the step."""
        with seeded_everything(seed_of(self.order.seed, Purpose.ORDER, step)):
            return [self.points.take(part) for part in self.order.indices(step).chunk(self.parts)]

    def fetch(self, step: int) -> None:
        """Do nothing: all points are in memory."""

    def close(self) -> None:
        """Do nothing: no process reads the points."""

    def inputs(self, step: int, device: torch.device) -> list[Inputs]:
        """Return the batches of a step, on a device."""
        return [to_device(batch, device) for batch in self.host(step)]

    @staticmethod
    def shared(feeds: Any, device: torch.device) -> StreamBatches:
        """Return the batches of several members on a device."""
        return StreamBatches(feeds, device)


@dataclass(frozen=True, eq=False)
class Source:
    """The data of a run. Either `points` or `batches` is given."""

    name: str
    device: torch.device
    points: Points | None = None
    batches: Iterable[Any] | None = None
    is_resident: bool = False
    """Whether the points are on the device."""
    is_random: bool = False
    """Whether points differ from one reading to the next."""
    hashed: Inputs = ()
    """The tensors that the digest depends on."""
    known_digest: str | None = None
    """The digest of a data set that these points are a split of, or None if there is none."""

    def feed(self, *, seed: int, batch: int, parts: int) -> Feed:
        """Return the batches of a run. A step takes `parts` of them."""
        if self.batches is not None:
            return Stream(self.batches, seed=seed, parts=parts)
        assert self.points is not None
        order = Order(points=len(self.points), batch=batch * parts, seed=seed)
        if self.is_resident:
            return Indexed(self.points, order, parts)
        return HostIndexed(self.points, order, parts, self.is_random)

    @cached_property
    def digest(self) -> str:
        """A digest of the data, or an empty text if they are only read batch by batch."""
        if self.known_digest is not None:
            return self.known_digest
        leaves = [leaf for leaf in tree_leaves(self.hashed) if isinstance(leaf, Tensor)]
        if not leaves:
            return ""
        digest = hashlib.sha256()
        for leaf in leaves:
            digest.update(f"{tuple(leaf.shape)} {leaf.dtype}".encode())
            digest.update(leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def parts(self, rows: int) -> Generator[Inputs, None, None]:
        """Yield all data once, in order, on the device, in parts of at most `rows` points."""
        if self.batches is not None:
            with seeded_everything(0):
                for batch in self.batches:
                    yield to_device(tree_map(_as_tensor, batch), self.device)
            return
        assert self.points is not None
        for first in range(0, len(self.points), rows):
            index = torch.arange(first, min(first + rows, len(self.points)))
            with seeded_everything(first) if self.is_random else nullcontext():
                part = self.points.take(index.to(self.device) if self.is_resident else index)
            yield to_device(part, self.device)


def as_source(data: Any, *, device: torch.device, note: Note, split: str = "train", name: str = "data") -> Source:
    """Return data as a source on a device. Points are moved there once if they fit."""
    if isinstance(data, str | Path):
        data = load_splits(str(data))
    if isinstance(data, Dataset | Arrays):
        source = as_source(data.split(split), device=device, note=note, name=data.name)
        return replace(source, known_digest=data.digest)
    if isinstance(data, Bits):
        bits = data.to(device)
        return Source(name, device, PackedPoints(bits), is_resident=True, hashed=data.packed)
    if isinstance(data, TensorDataset):
        data = data.tensors if len(data.tensors) > 1 else data.tensors[0]
    if isinstance(data, np.ndarray | Tensor | tuple | Mapping):
        return _of_tensors(tree_map(_as_tensor, data), name, device)
    if isinstance(data, DataLoader):
        return _of_batches(data, name, device, note)
    if isinstance(data, IterableDataset):
        raise TypeError(f"{name} must be batches, got an IterableDataset: pass a DataLoader of it")
    if isinstance(data, TorchDataset):
        return _of_items(data, name, device, note)
    if isinstance(data, Iterable):
        return _of_batches(data, name, device, note)
    raise TypeError(f"{name} must be tensors, a data set, a DataLoader or batches, got {type(data).__name__}")


def load_splits(name: str, *, max_bytes: int | None = None, progress: bool = False) -> Dataset | Arrays:
    """Load data for a model of one's own: a data set of bits by its name, or the arrays of an `.npz` file."""
    if name in WIDTHS:
        return load_data(name, progress=progress)
    if not name.endswith(".npz"):
        must = "data must be a data set name or the path of an .npz file"
        raise ValueError(f"{must}, got {name!r}{did_you_mean(name, WIDTHS)}")
    return load_arrays(Path(name).expanduser(), max_bytes=max_bytes)


def _of_tensors(tensors: Inputs, name: str, device: torch.device) -> Source:
    leaves = tree_leaves(tensors)
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            hint = ": put batches in a list" if isinstance(tensors, tuple) else ""
            raise TypeError(f"{name} must consist of tensors, got {type(leaf).__name__}{hint}")
        if leaf.layout is not torch.strided:
            got = str(leaf.layout).removeprefix("torch.")
            raise TypeError(f"{name} must consist of dense tensors, got one of layout {got}: pass to_dense() of it")
        if not leaf.dim() or not len(leaf):
            raise ValueError(f"{name} must have at least one data point, got a tensor of shape {tuple(leaf.shape)}")
    fits = _fits(sum(leaf.nbytes for leaf in leaves if leaf.device != device), device)
    points = TensorPoints(to_device(tensors, device) if fits else tensors)
    return Source(name, device, points, is_resident=fits, hashed=tensors)


def _of_items(items: Any, name: str, device: torch.device, note: Note) -> Source:
    """Return a data set of torch, read as a whole if it is small and always returns the same points."""
    if epoch_length(items) is None:
        todo = "define it, or pass a list of batches"
        raise TypeError(f"{name} must have a length, got a {type(items).__name__} without __len__: {todo}")
    if not len(items):
        raise ValueError(f"{name} must have at least one data point, got none")
    places = torch.linspace(0, len(items) - 1, min(TRIED, len(items))).long()
    points = ItemPoints(items)
    tried = []
    for seed in range(2):
        with seeded_everything(seed):
            tried.append(points.take(places))
    first, second = (tree_leaves(point) for point in tried)
    size = sum(leaf.nbytes for leaf in first if isinstance(leaf, Tensor)) / len(places) * len(items)
    if not all(isinstance(leaf, Tensor) for leaf in first):
        got = next(type(leaf).__name__ for leaf in first if not isinstance(leaf, Tensor))
        raise TypeError(f"{name} must consist of tensors and numbers, got {got}")
    if not all(one.equal(other) for one, other in zip(first, second, strict=True)):
        note(f"the points of {name} differ from one reading to the next, so that each is read when a step needs it")
        return Source(name, device, points, is_random=True)
    if size > LARGEST:
        return Source(name, device, points)
    with seeded_everything(0):
        return _of_tensors(points.take(torch.arange(len(items))), name, device)


def _of_batches(batches: Iterable[Any], name: str, device: torch.device, note: Note) -> Source:
    if epoch_length(batches) == 0:
        raise EndOfDataError(f"{name} must have at least one batch, got none")
    why = why_not_replayable(batches)
    if why is not None:
        note(f"{name} cannot be replayed, so that a resumed run may see other batches than an uninterrupted one: {why}")
    return Source(name, device, batches=batches)


def _fits(size: int, device: torch.device) -> bool:
    """Return whether a number of bytes fits into the memory of a device."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return size <= SHARE * free


def _as_tensor(leaf: Any) -> Any:
    return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf
