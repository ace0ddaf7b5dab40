"""The inputs of training steps: batches of data, and a table of the numbers that differ between steps.

Data points lie on the device, and each step takes some by their indices. A replayed CUDA graph takes no arguments, so
each step reads its indices, keys, learning rate and temperature from a table on the device that the host refills every
250 steps. A step on a CPU reads the same table.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from ..data.dataset import Bits
from ..distribution.check import are_bits
from ..functional.arithmetic import unpack
from ..schedule import Schedule, at_step
from .optimizer import StepSizes, corrections, kernels
from .rng import DRAWS, Order, Purpose, draw_offsets, seed_of

if TYPE_CHECKING:
    from .train_state import TrainState

LINES = 250
"""The number of steps for which the table has lines, a multiple of the interval at which the gap is measured."""
TOGETHER = 10
"""The maximum number of lines that are read at once, for steps that are one graph."""
CHECKED = 2**12
"""The number of points that are checked at once."""
AHEAD = 2**24
"""Up to this number of bytes, the batches of steps that are one graph are taken from the data points at once."""
NUMBERS = 4
"""Learning rate, L2 penalty and both bias corrections of Adam. The values of the task's schedules follow."""

Inputs = Any
"""The inputs of a loss: a tensor, or tuples and dictionaries of tensors."""


class Batches(ABC):
    """The batches of the members of a program. The first axis of every tensor counts members."""

    are_bits: bool = False
    """Whether batches are single tensors of which all entries are known to be 0 or 1."""

    @abstractmethod
    def prepare(self, step: int) -> Hashable:
        """Do the host's work before a step. Steps with equal results do the same work on the same memory."""

    @abstractmethod
    def write(self, out: Int64[Tensor, "steps members rows"], first: int) -> None:
        """Write the indices of the points of all members for the steps from `first` on."""

    @abstractmethod
    def take(self, index: Int64[Tensor, "*steps members rows"], part: int) -> Inputs:
        """Return the inputs of a part of a step or of several steps, without waiting for the device."""


class Feed(ABC):
    """Where the batches of a run come from."""

    rows: int
    """The number of indices of a step."""
    is_on_device: ClassVar[bool] = False
    """Whether steps find their data on the device, without help of the host."""

    @abstractmethod
    def fetch(self, step: int) -> None:
        """Read the data of a step if they are not in memory. Raise if there are none."""

    @abstractmethod
    def close(self) -> None:
        """Stop reading data, and end worker processes. Reading may start again afterwards."""

    @abstractmethod
    def inputs(self, step: int, device: torch.device) -> list[Inputs]:
        """Return the inputs of all parts of a step, without a member axis."""

    @staticmethod
    @abstractmethod
    def shared(feeds: Sequence[Any], device: torch.device) -> Batches:
        """Return the batches of several members on a device."""


class Points(ABC):
    """Data points on a device."""

    are_bits: bool = False
    """Whether the points are rows of one tensor of which all entries are known to be 0 or 1."""

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

    are_bits = True

    def __init__(self, bits: Bits) -> None:
        self._packed, self._width = bits.packed.contiguous(), bits.width
        self._identity = id(bits.packed)

    def __len__(self) -> int:
        return len(self._packed)

    def take(self, index: Int64[Tensor, "*batch"]) -> Tensor:
        """Return the bits of some points."""
        kernel = kernels("bits", self._packed) if index.dim() >= 2 else None
        if kernel is not None:
            bits: Tensor = kernel.unpack(self._packed, index.flatten(0, -2), self._width)
            return bits.view(*index.shape, self._width)
        return unpack(self._packed[index], self._width).float()

    @property
    def identity(self) -> Any:
        """The identity of the tensor of packed bits."""
        return self._identity

    @classmethod
    def joined(cls, sets: Sequence[Any]) -> Any:
        """Concatenate sets of bits of one width."""
        return cls(Bits(torch.cat([points._packed for points in sets]), sets[0]._width))


class TensorPoints(Points):
    """Points given as tensors, or as tuples and dictionaries of tensors, with points along the first axis."""

    def __init__(self, tensors: Inputs) -> None:
        self._leaves, self._tree = tree_flatten(tensors)
        sizes = {len(leaf) for leaf in self._leaves}
        if len(sizes) != 1:
            got = " and ".join(str(len(leaf)) for leaf in self._leaves) or "no tensor"
            raise ValueError(f"data must have as many data points in every tensor, got {got}")
        self._size = sizes.pop()
        self._checked: tuple[int, bool] = (-1, False)  # a version of the tensor, and whether it has only bits

    def __len__(self) -> int:
        return self._size

    @property
    def are_bits(self) -> bool:  # type: ignore[override]
        """Whether the points are rows of one tensor of zeros and ones. All are read once, and again if they change."""
        leaf = self._leaves[0]
        if not self._tree.is_leaf() or not leaf.is_cpu or leaf.is_inference():
            return False
        if self._checked[0] != leaf._version:
            self._checked = leaf._version, all(map(are_bits, leaf.split(CHECKED)))
        return self._checked[1]

    def take(self, index: Int64[Tensor, "*batch"]) -> Inputs:
        """Return the inputs of some points."""
        if self._tree.is_leaf():
            return _rows(self._leaves[0], index)
        return tree_unflatten([_rows(leaf, index) for leaf in self._leaves], self._tree)

    @property
    def identity(self) -> Any:
        """The identities of the tensors."""
        return tuple(id(leaf) for leaf in self._leaves)

    @classmethod
    def joined(cls, sets: Sequence[Any]) -> Any:
        """Concatenate points of one structure."""
        parts = zip(*(points._leaves for points in sets), strict=True)
        return cls(tree_unflatten([torch.cat(part) for part in parts], sets[0]._tree))


def _rows(leaf: Tensor, index: Int64[Tensor, "*batch"]) -> Tensor:
    """Return some rows of a tensor. On a CPU, `index_select` copies whole rows, several times faster than indexing."""
    if not leaf.is_cpu:
        return leaf[index]
    return leaf.index_select(0, index.flatten()).view(*index.shape, *leaf.shape[1:])


@dataclass(frozen=True, eq=False)
class Indexed(Feed):
    """Points on the device of a run, and the order in which steps take them, in parts of equal size."""

    points: Points
    order: Order
    parts: int = 1
    is_on_device = True

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
    """The points of several members in one set. Points that members share are not copied."""

    def __init__(self, feeds: Sequence[Indexed]) -> None:
        sets = {feed.points.identity: feed.points for feed in feeds}
        starts = dict(zip(sets, accumulate((len(points) for points in sets.values()), initial=0), strict=False))
        first, *others = sets.values()
        self._points = type(first).joined([first, *others]) if others else first
        self._starts = [starts[feed.points.identity] for feed in feeds]
        self._orders, self._parts = [feed.order for feed in feeds], feeds[0].parts

    @property
    def are_bits(self) -> bool:  # type: ignore[override]
        """Whether all points are rows of one tensor of zeros and ones."""
        return self._points.are_bits

    def prepare(self, step: int) -> Hashable:
        """Do nothing: steps find their points on the device."""
        return None

    def write(self, out: Int64[Tensor, "steps members rows"], first: int) -> None:
        """Write the indices of the points of all members for the steps from `first` on."""
        spans = {key: order.span(first, len(out)) for key, order in {one.key: one for one in self._orders}.items()}
        for member, (order, start) in enumerate(zip(self._orders, self._starts, strict=True)):
            torch.add(spans[order.key], start, out=out[:, member])

    def take(self, index: Int64[Tensor, "*steps members rows"], part: int) -> Inputs:
        """Return the inputs of a part of a step or of several steps."""
        return self._points.take(index if self._parts == 1 else index.chunk(self._parts, -1)[part])


class StepTable:
    """A table with one line for each of the next steps of some members, all at the same step.

    `draws` is the number of random draws of a step, and `monitor_draws`, by default the same, that of its monitor.
    """

    keys: dict[Purpose, Int64[Tensor, "draws members 2"]]
    """The keys of the draws of the current step."""
    sizes: StepSizes
    """The learning rate and the other numbers of the update at the current step, for every member."""
    controls: Float64[Tensor, "controls members"]
    """The values of the schedules at the current step, such as temperatures."""

    def __init__(self, runs: Sequence["TrainState"], *, draws: int, monitor_draws: int | None = None) -> None:
        self.runs = runs
        task, device, members = runs[0].task, runs[0].device, len(runs)
        if draws > DRAWS:
            raise ValueError(f"a step must have at most {DRAWS:,} random draws, got {draws:,}")
        self.more = DRAWS - max(draws, monitor_draws or 0)
        """The number of draws that a batch may take beyond those of the first batch."""
        self._points = task.feed.shared([run.task.feed for run in runs], device)
        gap = draw_offsets(draws if monitor_draws is None else monitor_draws)
        self._offsets = {"noise": draw_offsets(draws, task.parts), "gap": gap}
        self._parts = {
            "index": (members, task.feed.rows),
            **{name: (len(offsets), members, 2) for name, offsets in self._offsets.items()},
            "step": (members,),
            "numbers": (NUMBERS + len(task.controls), members),
        }
        size = sum(math.prod(shape) for shape in self._parts.values())
        self._table = torch.empty((LINES, size), dtype=torch.int64, device=device)
        self._lines = torch.empty((TOGETHER, size), dtype=torch.int64, device=device)
        self._cursor = torch.arange(TOGETHER, device=device)  # the places of the next lines
        self._start = self._cursor.clone()
        whole = self._table, self._lines, self._cursor
        self._arrays = [tensor.numpy() for tensor in whole] if device.type == "cpu" else []
        self._views = self._split(self._lines)
        self._selected = [self._of_line(place) for place in range(TOGETHER)]
        self._taken: Inputs = None  # the batches of all lines that were read, if they were taken at once
        self._takes_ahead = False
        if isinstance(task.feed, Indexed) and task.parts == 1:
            point = task.feed.points.take(torch.zeros(1, dtype=torch.int64, device=device))
            size = sum(leaf.nbytes for leaf in tree_leaves(point))
            self._takes_ahead = TOGETHER * members * task.feed.rows * size <= AHEAD
        self.select(0)
        self._end = runs[0].step  # the step after that of the last line
        self._next: Tensor | None = None  # the lines from that step on, if they are written already

    def prepare(self, step: int) -> Hashable:
        """Refill the table from the host if needed, so that the next line is the line of `step`.

        Steps with equal results do the same work on the same memory.
        """
        if step >= self._end:
            lines = self._written(step) if self._next is None else self._next
            self._table.copy_(lines, non_blocking=True)
            self._cursor.copy_(self._start)
            self._end, self._next = step + LINES, None
        if self._next is None and self._end - step <= LINES // 2:  # while the device is busy with the first half
            self._next = self._written(self._end)
        return self._points.prepare(step)

    def has_lines(self, step: int, count: int) -> bool:
        """Return whether the table, refilled if needed, has lines for `count` steps from `step` on."""
        return not self._end - count < step < self._end

    def read(self, count: int = 1) -> None:
        """Read the next lines, on the device, and select the first of them.

        If the batches of several lines are small, they are taken at once, since a launch takes longer than their work.
        """
        if self._arrays:  # numpy copies lines in a tenth of the time
            table, lines, cursor = self._arrays
            first = cursor[0]
            lines[:count] = table[first : first + count]
            cursor += count
        else:
            torch.index_select(self._table, 0, self._cursor[:count], out=self._lines[:count])
            self._cursor.add_(count)
        is_ahead = count > 1 and self._takes_ahead
        self._taken = self._points.take(self._views["index"][:count], 0) if is_ahead else None
        self.select(0)

    @property
    def has_bits(self) -> bool:
        """Whether batches are single tensors of which all entries are known to be 0 or 1."""
        return self._points.are_bits

    def select(self, place: int) -> None:
        """Make one of the lines that were read last the current line."""
        self._place = place
        self._index, self.keys, self.sizes, self.controls = self._selected[place]

    def _of_line(self, place: int) -> tuple[Tensor, dict[Purpose, Tensor], StepSizes, Tensor]:
        """Return views of a line: the indices, and what `keys`, `sizes` and `controls` are for it."""
        views = {name: part[place] for name, part in self._views.items()}
        rate, decay, mean, spread = views["numbers"][:NUMBERS]
        keys = {Purpose.NOISE: views["noise"], Purpose.GAP: views["gap"]}
        return views["index"], keys, StepSizes(rate, decay, mean, spread, views["step"]), views["numbers"][NUMBERS:]

    def batch(self, part: int = 0) -> Inputs:
        """Return the inputs of a part of the current step, for every member."""
        if self._taken is not None:
            return tree_map(lambda leaf: leaf[self._place], self._taken)
        return self._points.take(self._index, part)

    def _split(self, lines: Int64[Tensor, "lines size"]) -> dict[str, Tensor]:
        """Return views of the named parts of lines."""
        sizes = [math.prod(shape) for shape in self._parts.values()]
        parts = zip(self._parts.items(), lines.split(sizes, -1), strict=True)
        views = {name: part.unflatten(-1, shape) for (name, shape), part in parts}
        return views | {"numbers": views["numbers"].view(torch.float64)}

    def _written(self, first: int) -> Int64[Tensor, "lines size"]:
        """Return the lines of the steps from `first` on."""
        lines = torch.zeros(self._table.shape, dtype=torch.int64, pin_memory=self._table.is_cuda)
        parts, steps = self._split(lines), range(first, first + LINES)
        parts["step"].copy_(torch.tensor(steps).unsqueeze(-1))
        for name, purpose in (("noise", Purpose.NOISE), ("gap", Purpose.GAP)):
            seeds = torch.tensor([seed_of(run.recipe.seed, purpose) for run in self.runs])
            parts[name][..., 0] = seeds + self._offsets[name][:, :1]
            nonces = torch.tensor(steps).unsqueeze(-1) * DRAWS + self._offsets[name][:, 1]
            parts[name][..., 1] = nonces.unsqueeze(-1)
        self._points.write(parts["index"], first)
        for k, column in enumerate(self._numbers(steps)):
            parts["numbers"][:, k] = column
        return lines

    def _numbers(self, steps: range) -> Iterator[Float64[Tensor, "lines members"]]:
        """Yield the columns `NUMBERS` and a column for each schedule, with a number for every step and member."""
        tasks = [run.task for run in self.runs]
        factors = torch.tensor([tasks[0].lr_factor(step) for step in steps], dtype=torch.float64)
        yield factors.unsqueeze(-1) * torch.tensor([task.lr for task in tasks], dtype=torch.float64)
        yield torch.tensor([task.decay for task in tasks], dtype=torch.float64).expand(len(steps), -1)
        for column in zip(*(corrections(step + 1) for step in steps), strict=True):
            yield torch.tensor(column, dtype=torch.float64).unsqueeze(-1).expand(-1, len(tasks))
        for schedules in zip(*(task.controls for task in tasks), strict=True):
            distinct: set[Schedule] = set(schedules)  # many members share one
            values = {schedule: [at_step(schedule, step) for step in steps] for schedule in distinct}
            yield torch.tensor([values[schedule] for schedule in schedules], dtype=torch.float64).T
