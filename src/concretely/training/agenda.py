"""What changes from one step to the next, written down beforehand where the steps are taken.

A step that is replayed cannot be told anything. So it reads a line of a table on the device, the one after that which
the step before has read: the data points of all members, the keys of their draws, how far they move and how warm they
are. The host writes many lines at once, and is back before they are read.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from ..kernel.adam import Pace, corrections
from .chance import DRAWS, Purpose, seed_of
from .method import at_step
from .trainer import Trainer, falling

LINES = 256
NUMBERS = 6
"""Learning rate, decay, the corrections of both moments, temperature and prior temperature."""


class Agenda:
    """The lines of the next steps of some trainers, all at the same step."""

    def __init__(self, trainers: Sequence[Trainer], *, draws: int) -> None:
        self.trainers, self.draws = trainers, draws
        first = trainers[0]
        device, members = first.device, len(trainers)
        self._parts = {
            "index": (members, first.recipe.batch),
            "noise": (draws, members, 2),
            "watch": (draws, members, 2),
            "step": (members,),
            "numbers": (NUMBERS, members),
        }
        width = sum(torch.Size(shape).numel() for shape in self._parts.values())
        self._table = torch.empty((LINES, width), dtype=torch.int64, device=device)
        self._line = torch.empty((1, width), dtype=torch.int64, device=device)
        self._cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self._views = {name: part[0] for name, part in self._split(self._line).items()}
        self._end = first.step  # the step after that of the last line
        self.packed, self._starts = _joined(trainers)
        self._orders = [trainer.order.on("cpu") for trainer in trainers]  # where the lines are written

    def prepare(self, step: int) -> None:
        """See to it that there is a line for a step, the next to be taken."""
        if step >= self._end:
            lines = self._written(step)
            lines = lines.pin_memory() if self._table.is_cuda else lines
            self._table.copy_(lines, non_blocking=True)
            self._cursor.zero_()
            self._end = step + LINES

    def read(self) -> None:
        """Go to the next line, on the device."""
        torch.index_select(self._table, 0, self._cursor, out=self._line)
        self._cursor.add_(1)

    @property
    def index(self) -> Int64[Tensor, "members batch"]:
        """The data points of every member, as places in `packed`."""
        return self._views["index"]

    def keys(self, purpose: Purpose) -> Int64[Tensor, "draws members 2"]:
        """The keys of the draws of a step."""
        return self._views["watch" if purpose is Purpose.WATCH else "noise"]

    @property
    def step(self) -> Int64[Tensor, " members"]:
        """The number of the step."""
        return self._views["step"]

    @property
    def pace(self) -> Pace:
        """How far every member moves."""
        return Pace(*self._views["numbers"][:4])

    @property
    def warmth(self) -> Float64[Tensor, "2 members"]:
        """The temperatures at which latents are drawn and scored."""
        return self._views["numbers"][4:]

    def _split(self, lines: Int64[Tensor, "lines width"]) -> dict[str, Tensor]:
        """The parts of lines, as views of them."""
        sizes = [torch.Size(shape).numel() for shape in self._parts.values()]
        parts = zip(self._parts.items(), lines.split(sizes, -1), strict=True)
        views = {name: part.unflatten(-1, shape) for (name, shape), part in parts}
        return views | {"numbers": views["numbers"].view(torch.float64)}

    def _written(self, first: int) -> Int64[Tensor, "lines width"]:
        """The lines from a step on."""
        lines = torch.zeros(self._table.shape, dtype=torch.int64)
        parts, steps = self._split(lines), range(first, first + LINES)
        nonces = torch.tensor(steps).unsqueeze(-1) * DRAWS + torch.arange(self.draws)
        parts["step"].copy_(torch.tensor(steps).unsqueeze(-1))
        for member, (trainer, start) in enumerate(zip(self.trainers, self._starts, strict=True)):
            recipe = trainer.recipe
            parts["index"][:, member] = self._orders[member].span(first, LINES) + start
            for name, purpose in (("noise", Purpose.NOISE), ("watch", Purpose.WATCH)):
                parts[name][:, :, member, 0] = seed_of(recipe.seed, purpose)
                parts[name][:, :, member, 1] = nonces
            decay = recipe.weight_decay / len(trainer.data.train)
            numbers = [
                (
                    recipe.lr * falling(recipe, step),
                    decay,
                    *corrections(step + 1),
                    at_step(recipe.temperature, step) or 0.0,
                    at_step(recipe.prior_temperature, step) or at_step(recipe.temperature, step) or 0.0,
                )
                for step in steps
            ]
            parts["numbers"][:, :, member] = torch.tensor(numbers, dtype=torch.float64)
        return lines


def _joined(trainers: Sequence[Trainer]) -> tuple[UInt8[Tensor, "members points bytes"], list[int]]:
    """The data of all members, each set once, and where those of each begin."""
    sets = {id(trainer.data.train.packed): trainer.data.train.packed for trainer in trainers}
    starts = dict(zip(sets, accumulate((len(each) for each in sets.values()), initial=0), strict=False))
    packed = torch.cat(list(sets.values())).contiguous()
    return packed.expand(len(trainers), -1, -1), [starts[id(trainer.data.train.packed)] for trainer in trainers]
