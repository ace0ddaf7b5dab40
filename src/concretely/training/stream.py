"""Batches that the host reads one after the other, from a `DataLoader` or any other iterable.

The batches of a run follow from its seed where that is possible: a batch is read with all generators of random numbers
seeded from the seed of the run and the number of the batch. A resumed run reads the batches of the current epoch again.
"""

import random
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from .feed import Batches, Feed, Inputs
from .rng import Purpose, seed_of

KNOWN = (BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)
"""Samplers whose order follows from torch's global generator."""


class EndOfDataError(ValueError):
    """Raised if there are no more batches before training has ended."""


class Stream(Feed):
    """The batches of one run. A step takes `parts` of them."""

    rows = 0

    def __init__(self, batches: Iterable[Any], *, seed: int, parts: int = 1) -> None:
        self._batches, self._seed, self._parts = batches, seed, parts
        self._iterator: Iterator[Any] | None = None
        self._taken = self._epoch = 0  # the numbers of the next batch and of the first of this epoch
        self._length = epoch_length(batches) or None
        self._step, self._inputs = -1, list[Inputs]()

    def host(self, step: int) -> list[Inputs]:
        """Return the batches of a step, in the memory of the host."""
        is_past = isinstance(self._batches, Iterator) and step * self._parts < self._taken
        if step != self._step and not is_past:  # an iterator cannot go back: use its last batches
            first = step * self._parts
            if first < self._taken:
                self._begin_epoch(0)
            if self._length is not None and first - self._epoch >= self._length:
                self._begin_epoch(first // self._length * self._length)
            while self._taken < first:
                self._next()
            self._inputs = [self._next() for _ in range(self._parts)]
            self._step = step
        return self._inputs

    def fetch(self, step: int) -> None:
        """Read the batches of a step."""
        self.host(step)

    def close(self) -> None:
        """End the worker processes of a loader, which would keep the lock on the folder of the run."""
        if not isinstance(self._batches, Iterator):
            self._iterator, self._taken, self._epoch, self._step = None, 0, 0, -1

    def inputs(self, step: int, device: torch.device) -> list[Inputs]:
        """Return the batches of a step, on a device."""
        return [to_device(batch, device) for batch in self.host(step)]

    @staticmethod
    def shared(feeds: Sequence["Stream"], device: torch.device) -> "StreamBatches":
        """Return the batches of several members on a device."""
        return StreamBatches(feeds, device)

    def _begin_epoch(self, first: int) -> None:
        """Begin an epoch whose first batch has the number `first`."""
        if isinstance(self._batches, Iterator) and self._iterator is not None:
            raise EndOfDataError(_ended(self._taken))
        self._iterator, self._taken, self._epoch = None, first, first

    def _next(self) -> Inputs:
        if self._length is not None and self._taken - self._epoch == self._length:
            self._begin_epoch(self._taken)
        with seeded_everything(seed_of(self._seed, Purpose.ORDER, self._taken)):
            for _ in range(2):
                if self._iterator is None:
                    self._iterator = iter(self._batches)
                try:
                    batch = next(self._iterator)
                except StopIteration:
                    self._require_end()
                    self._begin_epoch(self._taken)
                else:
                    self._taken += 1
                    return self._checked(tree_map(_as_tensor, batch))
        raise EndOfDataError("data must have at least one batch, got none")

    def _checked(self, batch: Inputs) -> Inputs:
        """Return a batch; raise if it is empty, as the average of its losses would not be a number."""
        tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
        if tensors and not any(leaf.numel() for leaf in tensors):
            raise ValueError(f"every batch of data must have a data point, got none in batch {self._taken:,}")
        return batch

    def _require_end(self) -> None:
        """Raise if an epoch has ended before its length says."""
        got = self._taken - self._epoch
        if self._length is not None and got < self._length:
            raise EndOfDataError(f"an epoch of data must have {self._length:,} batches, as its len says, got {got:,}")


class StreamBatches(Batches):
    """The batches of all members, copied to the same place on the device for batches of one shape."""

    def __init__(self, feeds: Sequence[Any], device: torch.device) -> None:
        self._feeds, self._device, self._inputs = feeds, device, list[Inputs]()
        self._buffers = dict[Hashable, list[list[Tensor]]]()

    def prepare(self, step: int) -> Hashable:
        """Read the batches of a step and copy them to the device. The result describes their shapes."""
        hosts = [feed.host(step) for feed in self._feeds]
        parts = [_stacked(part) for part in zip(*hosts, strict=True)]
        flat, trees = zip(*(tree_flatten(part) for part in parts), strict=True)
        key = tuple((str(tree), *(_shape(leaf) for leaf in leaves)) for tree, leaves in zip(trees, flat, strict=True))
        if self._device.type == "cpu":
            self._inputs = parts
            return key
        if key not in self._buffers:
            self._buffers[key] = [[to_device(leaf, self._device) for leaf in leaves] for leaves in flat]
        else:
            for buffers, leaves in zip(self._buffers[key], flat, strict=True):
                for buffer, leaf in zip(buffers, leaves, strict=True):
                    if isinstance(leaf, Tensor):
                        buffer.copy_(leaf, non_blocking=True)
        self._inputs = [tree_unflatten(buffers, tree) for buffers, tree in zip(self._buffers[key], trees, strict=True)]
        return key

    def write(self, out: Tensor, first: int) -> None:
        """Write nothing: steps take no indices."""

    def take(self, index: Tensor, part: int) -> Inputs:
        """Return the inputs of a part of a step."""
        return self._inputs[part]


def why_not_replayable(batches: Iterable[Any]) -> str | None:
    """Return why the batches after a resume may differ from those of an uninterrupted run, or None if they do not.

    >>> why_not_replayable([1, 2]), why_not_replayable(iter([1, 2]))
    (None, 'it is an iterator, which can be read only once')
    """
    if isinstance(batches, list | tuple):
        return None
    if isinstance(batches, Iterator):
        return "it is an iterator, which can be read only once"
    if not isinstance(batches, DataLoader):
        return f"the order of a {type(batches).__name__} is not known to follow from a seed"
    if isinstance(batches.dataset, IterableDataset):
        return "its data set is iterable, and may not begin again at the same place"
    samplers = [sampler for sampler in (batches.batch_sampler, batches.sampler) if sampler is not None]
    samplers += [sampler.sampler for sampler in samplers if isinstance(sampler, BatchSampler)]
    for sampler in samplers:
        if type(sampler) not in KNOWN:
            return f"the order of its sampler {type(sampler).__name__} is not known to follow from a seed"
        if getattr(sampler, "generator", None) is not None:
            return "its sampler has a generator of its own"
    if batches.generator is not None:
        return "it has a generator of its own"
    return "its workers are persistent" if batches.num_workers and batches.persistent_workers else None


def epoch_length(batches: Iterable[Any]) -> int | None:
    """Return the number of batches of an epoch, or None if it is unknown."""
    try:
        return len(batches)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


@contextmanager
def seeded_everything(seed: int) -> Iterator[None]:
    """Inside this context, seed the generators of Python, numpy and torch that data sets draw from."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def to_device(batch: Inputs, device: torch.device) -> Inputs:
    """Move the tensors of a batch to a device."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device, non_blocking=True), batch)


def _as_tensor(leaf: Any) -> Any:
    return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf


def _stacked(parts: Sequence[Inputs]) -> Inputs:
    """Stack the batches of members along a first axis."""
    if len(parts) == 1:
        return tree_map_only(Tensor, lambda tensor: tensor.unsqueeze(0), parts[0])
    return tree_map(lambda *leaves: torch.stack(leaves) if isinstance(leaves[0], Tensor) else leaves[0], *parts)


def _shape(leaf: Any) -> Hashable:
    return (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf)


def _ended(taken: int) -> str:
    number = f"{taken:,} batch{'es' * (taken != 1)}"
    return f"data ended after {number}, before the last step: pass a DataLoader or a list, which can be read again"
