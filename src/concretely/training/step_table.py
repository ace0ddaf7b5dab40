"""A table on the device from which every step reads what differs between steps.

A replayed CUDA graph takes no arguments, so each step reads its indices, keys, learning rate and temperature from a
device table that the host refills every 256 steps. A step on a CPU reads the same table.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..schedule import Schedule, at_step
from .feed import Inputs
from .optimizer import StepSizes, corrections
from .rng import DRAWS, Purpose, seed_of

if TYPE_CHECKING:
    from .train_state import TrainState

LINES = 256
NUMBERS = 4
"""Learning rate, L2 penalty and both bias corrections of Adam. The values of the task's schedules follow."""


class StepTable:
    """A table with one line for each of the next steps of some members, all at the same step.

    `draws` is the number of random draws of a step, and `monitor_draws`, by default the same, that of its monitor.
    """

    def __init__(self, runs: Sequence["TrainState"], *, draws: int, monitor_draws: int | None = None) -> None:
        self.runs = runs
        task, device, members = runs[0].task, runs[0].device, len(runs)
        if draws > DRAWS:
            raise ValueError(f"a step must have at most {DRAWS:,} random draws, got {draws:,}")
        self._points = task.feed.shared([run.task.feed for run in runs], device)
        self._parts = {
            "index": (members, task.feed.rows),
            "noise": (draws, members, 2),
            "gap": (draws if monitor_draws is None else monitor_draws, members, 2),
            "step": (members,),
            "numbers": (NUMBERS + len(task.controls), members),
        }
        size = sum(math.prod(shape) for shape in self._parts.values())
        self._table = torch.empty((LINES, size), dtype=torch.int64, device=device)
        self._line = torch.empty((1, size), dtype=torch.int64, device=device)
        self._cursor = torch.zeros(1, dtype=torch.int64, device=device)
        views = {name: part[0] for name, part in self._split(self._line).items()}
        self._index = views["index"]
        self.keys = {Purpose.NOISE: views["noise"], Purpose.GAP: views["gap"]}
        """The keys of the draws of the current step, of shape (draws, members, 2)."""
        rate, decay, mean, spread = views["numbers"][:NUMBERS]
        self.sizes = StepSizes(rate, decay, mean, spread, views["step"])
        """The learning rate and the other numbers of the update at the current step, for every member."""
        self.controls: Float64[Tensor, "controls members"] = views["numbers"][NUMBERS:]
        """The values of the schedules at the current step, such as temperatures."""
        self._end = runs[0].step  # the step after that of the last line
        self._next: Tensor | None = None  # the lines from that step on, if they are written already

    def prepare(self, step: int) -> Hashable:
        """Refill the table from the host if needed, so that the next line is the line of `step`.

        Steps with equal results do the same work on the same memory.
        """
        if step >= self._end:
            lines = self._written(step) if self._next is None else self._next
            self._table.copy_(lines, non_blocking=True)
            self._cursor.zero_()
            self._end, self._next = step + LINES, None
        if self._next is None and self._end - step == LINES // 2:  # while the device is busy with the first half
            self._next = self._written(self._end)
        return self._points.prepare(step)

    def read(self) -> None:
        """Read the next line, on the device."""
        torch.index_select(self._table, 0, self._cursor, out=self._line)
        self._cursor.add_(1)

    def batch(self, part: int = 0) -> Inputs:
        """Return the inputs of a part of the current step, for every member."""
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
            parts[name][..., 0] = torch.tensor([seed_of(run.recipe.seed, purpose) for run in self.runs])
            nonces = torch.tensor(steps).unsqueeze(-1) * DRAWS + torch.arange(parts[name].shape[1])
            parts[name][..., 1] = nonces.unsqueeze(-1)
        self._points.write(parts["index"], first)
        for k, column in enumerate(self._numbers(steps)):
            parts["numbers"][:, k] = column
        return lines

    def _numbers(self, steps: range) -> Iterator[Float64[Tensor, "lines members"]]:
        """Yield the columns `NUMBERS` and those of the schedules, each for every step and member."""
        tasks = [run.task for run in self.runs]
        factors = torch.tensor([tasks[0].lr_factor(step) for step in steps], dtype=torch.float64)
        yield factors.unsqueeze(-1) * torch.tensor([task.lr for task in tasks], dtype=torch.float64)
        yield torch.tensor([task.decay for task in tasks], dtype=torch.float64).expand(len(steps), -1)
        for column in zip(*(corrections(step + 1) for step in steps), strict=True):
            yield torch.tensor(column, dtype=torch.float64).unsqueeze(-1).expand(-1, len(tasks))
        for schedules in zip(*(task.controls for task in tasks), strict=True):
            distinct: set[Schedule] = set(schedules)  # many members share one
            values = {each: [at_step(each, step) for step in steps] for each in distinct}
            yield torch.tensor([values[each] for each in schedules], dtype=torch.float64).T
