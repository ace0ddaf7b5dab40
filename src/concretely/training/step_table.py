"""A table on the device from which every step reads what differs between steps.

A replayed CUDA graph takes no arguments, so each step reads its indices, keys, learning rate and temperature from a
device table that the host refills every 256 steps. A step on a CPU reads the same table.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Float64, Int64, UInt8
from torch import Tensor

from ..functional.arithmetic import unpack
from .method import at_step
from .optimizer import StepSizes, corrections, kernels
from .recipe import Recipe
from .rng import DRAWS, Purpose, seed_of

if TYPE_CHECKING:
    from .train_state import TrainState

LINES = 256
NUMBERS = 6
"""Learning rate, L2 penalty, both bias corrections of Adam, temperature and prior temperature."""


class StepTable:
    """A table with one line for each of the next steps of some members, all at the same step."""

    def __init__(self, runs: Sequence["TrainState"], *, draws: int) -> None:
        self.runs, self.draws, self.width = runs, draws, runs[0].recipe.width
        device, members = runs[0].device, len(runs)
        self._parts = {
            "index": (members, runs[0].recipe.batch),
            "noise": (draws, members, 2),
            "gap": (draws, members, 2),
            "step": (members,),
            "numbers": (NUMBERS, members),
        }
        size = sum(math.prod(shape) for shape in self._parts.values())
        self._table = torch.empty((LINES, size), dtype=torch.int64, device=device)
        self._line = torch.empty((1, size), dtype=torch.int64, device=device)
        self._cursor = torch.zeros(1, dtype=torch.int64, device=device)
        views = {name: part[0] for name, part in self._split(self._line).items()}
        self._index = views["index"]
        self.keys = {Purpose.NOISE: views["noise"], Purpose.GAP: views["gap"]}
        """The keys of the draws of the current step, of shape (draws, members, 2)."""
        rate, decay, mean, spread = views["numbers"][:4]
        self.sizes = StepSizes(rate, decay, mean, spread, views["step"])
        """The learning rate and the other numbers of the update at the current step, for every member."""
        self.temperatures: Float64[Tensor, "2 members"] = views["numbers"][4:]
        """The temperatures at which latents are drawn and scored at the current step."""
        self._end = runs[0].step  # the step after that of the last line
        self._next: Tensor | None = None  # the lines from that step on, if they are written already
        self._packed, self._starts = _joined(runs)
        self._orders = {_order_key(run): run.order for run in runs}

    def prepare(self, step: int) -> None:
        """Refill the table from the host if needed, so that the next line is the line of `step`."""
        if step >= self._end:
            lines = self._written(step) if self._next is None else self._next
            self._table.copy_(lines, non_blocking=True)
            self._cursor.zero_()
            self._end, self._next = step + LINES, None
        if self._next is None and self._end - step == LINES // 2:  # while the device is busy with the first half
            self._next = self._written(self._end)

    def read(self) -> None:
        """Read the next line, on the device."""
        torch.index_select(self._table, 0, self._cursor, out=self._line)
        self._cursor.add_(1)

    def batch(self) -> Float[Tensor, "members batch width"]:
        """Return the bits of the data points of the current step."""
        kernel = kernels("bits", self._packed)
        if kernel is not None:
            found: Tensor = kernel.unpack(self._packed, self._index, self.width)
            return found
        return unpack(self._packed[self._index], self.width).float()

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
        recipes = [run.recipe for run in self.runs]
        parts["step"].copy_(torch.tensor(steps).unsqueeze(-1))
        for name, purpose in (("noise", Purpose.NOISE), ("gap", Purpose.GAP)):
            parts[name][..., 0] = torch.tensor([seed_of(recipe.seed, purpose) for recipe in recipes])
            nonces = torch.tensor(steps).unsqueeze(-1) * DRAWS + torch.arange(self.draws)
            parts[name][..., 1] = nonces.unsqueeze(-1)
        spans = {key: order.span(first, LINES) for key, order in self._orders.items()}
        for member, (run, start) in enumerate(zip(self.runs, self._starts, strict=True)):
            torch.add(spans[_order_key(run)], start, out=parts["index"][:, member])
        for k, column in enumerate(self._numbers(steps)):
            parts["numbers"][:, k] = column
        return lines

    def _numbers(self, steps: range) -> Iterator[Float64[Tensor, "lines members"]]:
        """Yield the columns `NUMBERS`, each for every step and member."""
        recipes = [run.recipe for run in self.runs]
        factors = torch.tensor([lr_factor(recipes[0], step) for step in steps], dtype=torch.float64)
        yield factors.unsqueeze(-1) * torch.tensor([recipe.lr for recipe in recipes], dtype=torch.float64)
        decays = [run.recipe.weight_decay / len(run.data.train) for run in self.runs]
        yield torch.tensor(decays, dtype=torch.float64).expand(len(steps), -1)
        for column in zip(*(corrections(step + 1) for step in steps), strict=True):
            yield torch.tensor(column, dtype=torch.float64).unsqueeze(-1).expand(-1, len(recipes))
        own = [recipe.temperature or 0.0 for recipe in recipes]
        for temperatures in (own, [recipe.prior_temperature or own[k] for k, recipe in enumerate(recipes)]):
            at_steps = {each: [at_step(each, step) for step in steps] for each in set(temperatures)}
            yield torch.tensor([at_steps[each] for each in temperatures], dtype=torch.float64).T


def lr_factor(recipe: Recipe, step: int) -> float:
    """Return the factor by which the schedule multiplies the learning rate at a step."""
    done = min(step / recipe.steps, 1.0)
    match recipe.lr_schedule:
        case "linear":
            return 1 - done
        case "cosine":
            return (1 + math.cos(math.pi * done)) / 2
        case _:
            return 1.0


def _order_key(run: "TrainState") -> tuple[int, int]:
    """Return what the order of the data depends on among the settings in which members may differ."""
    return run.recipe.seed, len(run.data.train)


def _joined(runs: Sequence["TrainState"]) -> tuple[UInt8[Tensor, "points bytes"], list[int]]:
    """Concatenate the distinct data sets of all members; return them and the first index of each member's set."""
    sets = {id(run.data.train.packed): run.data.train.packed for run in runs}
    starts = dict(zip(sets, accumulate((len(each) for each in sets.values()), initial=0), strict=False))
    packed = torch.cat(list(sets.values())) if len(sets) > 1 else next(iter(sets.values()))
    return packed.contiguous(), [starts[id(run.data.train.packed)] for run in runs]
