"""What changes from one step to the next, written down beforehand where the steps are taken.

A step that is replayed cannot be told anything. So it reads a line of a table on the device, the one after that which
the step before has read: the data points of all members, the keys of their draws, how far they move and how warm they
are. The host writes many lines at once, and is back before they are read.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from ..kernel.adam import Pace, corrections
from ..kernel.line import read_
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
        self._next: Tensor | None = None  # the lines from there on, where they are written already
        self.packed, self._starts = _joined(trainers)
        # on the CPU, where the lines are written
        self._orders = {_order_key(trainer): trainer.order.on("cpu") for trainer in trainers}

    def prepare(self, step: int) -> None:
        """See to it that there is a line for a step, the next to be taken."""
        if step >= self._end:
            lines = self._written(step) if self._next is None else self._next
            self._table.copy_(lines, non_blocking=True)
            self._cursor.zero_()
            self._end, self._next = step + LINES, None
        if self._next is None and self._end - step == LINES // 2:  # while the device is busy with the first half
            self._next = self._written(self._end)

    def read(self) -> None:
        """Go to the next line, on the device."""
        read_(self._line, self._table, self._cursor)

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
        lines = torch.zeros(self._table.shape, dtype=torch.int64, pin_memory=self._table.is_cuda)
        parts, steps = self._split(lines), range(first, first + LINES)
        recipes = [trainer.recipe for trainer in self.trainers]
        parts["step"].copy_(torch.tensor(steps).unsqueeze(-1))
        for name, purpose in (("noise", Purpose.NOISE), ("watch", Purpose.WATCH)):
            parts[name][..., 0] = torch.tensor([seed_of(recipe.seed, purpose) for recipe in recipes])
            nonces = torch.tensor(steps).unsqueeze(-1) * DRAWS + torch.arange(self.draws)
            parts[name][..., 1] = nonces.unsqueeze(-1)
        spans = {key: order.span(first, LINES) for key, order in self._orders.items()}
        for member, (trainer, start) in enumerate(zip(self.trainers, self._starts, strict=True)):
            torch.add(spans[_order_key(trainer)], start, out=parts["index"][:, member])
        for k, column in enumerate(self._numbers(steps)):
            parts["numbers"][:, k] = column
        return lines

    def _numbers(self, steps: range) -> Iterator[Float64[Tensor, "lines members"]]:
        """The numbers of every step and member, one after the other."""
        recipes = [trainer.recipe for trainer in self.trainers]
        falls = torch.tensor([falling(recipes[0], step) for step in steps], dtype=torch.float64)
        yield falls.unsqueeze(-1) * torch.tensor([recipe.lr for recipe in recipes], dtype=torch.float64)
        decays = [trainer.recipe.weight_decay / len(trainer.data.train) for trainer in self.trainers]
        yield torch.tensor(decays, dtype=torch.float64).expand(len(steps), -1)
        for each in zip(*(corrections(step + 1) for step in steps), strict=True):
            yield torch.tensor(each, dtype=torch.float64).unsqueeze(-1).expand(-1, len(recipes))
        warmest = [recipe.temperature or 0.0 for recipe in recipes]
        for temperatures in (warmest, [recipe.prior_temperature or warmest[k] for k, recipe in enumerate(recipes)]):
            at_steps = {each: [at_step(each, step) for step in steps] for each in set(temperatures)}
            yield torch.tensor([at_steps[each] for each in temperatures], dtype=torch.float64).T


def _order_key(trainer: Trainer) -> tuple[int, int]:
    """What the order of the data depends on, in which members may differ."""
    return trainer.recipe.seed, len(trainer.data.train)


def _joined(trainers: Sequence[Trainer]) -> tuple[UInt8[Tensor, "members points bytes"], list[int]]:
    """The data of all members, each set once, and where those of each begin."""
    sets = {id(trainer.data.train.packed): trainer.data.train.packed for trainer in trainers}
    starts = dict(zip(sets, accumulate((len(each) for each in sets.values()), initial=0), strict=False))
    packed = torch.cat(list(sets.values())).contiguous()
    return packed.expand(len(trainers), -1, -1), [starts[id(trainer.data.train.packed)] for trainer in trainers]
