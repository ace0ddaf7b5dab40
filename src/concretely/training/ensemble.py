"""Runs of one architecture that take their steps as one program.

Members may differ in what is random, in learning rates, weight decay, temperatures and data. Their parameters lie side
by side, and those of each trainer are views of them: whatever is done with a trainer between two steps is done with the
ensemble. On a GPU the program is recorded once and replayed.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ..estimator import Estimator, Reinforce, estimate
from ..kernel.adam import Book, Pace, State, adam_, allowed_
from ..kernel.bits import unpack
from ..kernel.deferred import DeferredGradient, deferred_gradients, materialized
from ..kernel.muon import muon_
from ..kernel.operator import launching
from ..model import Model
from ..noise import Keys
from .agenda import Agenda
from .capture import Captured
from .chance import Purpose
from .member import alike
from .method import tempered
from .recipe import Recipe
from .trainer import WATCHED, Trainer, inputs_of


class Ensemble:
    """Trainers that have all come to the same step, and take the next ones together."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        first = trainers[0]
        for other in trainers[1:]:
            if not alike(first.recipe, other.recipe) or (other.step, other.since) != (first.step, first.since):
                raise ValueError("members of an ensemble must have one architecture, estimator and step, got others")
        self.trainers, self.recipe, self.device = tuple(trainers), first.recipe, first.device
        self._program = _Program(first.model, first.estimator, first.recipe)
        self._discrete = _Program(first.model, Reinforce(), first.recipe)
        self._states, self._buffers = _adopted(trainers)
        sums, faults = zip(*((trainer.sums, trainer.guard.first) for trainer in trainers), strict=True)
        self._book = Book(torch.stack(sums), torch.stack(faults))
        for trainer, sums, fault in zip(trainers, *self._book, strict=True):
            trainer.sums, trainer.guard.first = sums, fault
        self._agenda = Agenda(trainers, draws=first.draws())
        self._ones = torch.ones(self.size, device=self.device)
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._take = Captured(self._taken, stream)
        self._take_and_look = Captured(lambda: self._taken(looks=True), stream)

    @property
    def step(self) -> int:
        """The number of steps that were taken."""
        return self.trainers[0].step

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.trainers)

    def advance(self, until: int, *, pause: Callable[[], bool] = lambda: False) -> None:
        """Take steps until one is reached, or there is reason to pause after one."""
        since = max(trainer.since for trainer in self.trainers)  # those that have come to an end lag behind
        self._program.train()
        with launching(self.device):
            while self.step < until:
                self._agenda.prepare(self.step)
                looks = self.recipe.method.relaxes and (self.step - since) % WATCHED == 0
                (self._take_and_look if looks else self._take)()
                for trainer in self.trainers:
                    trainer.step += 1
                if pause():
                    break
            self._tell()

    def _tell(self) -> None:
        """Tell the trainers what was found; this waits for the device."""
        found = torch.cat([self._book.sums, self._book.faults.unsqueeze(-1)], -1).tolist()
        for trainer, entry in zip(self.trainers, found, strict=True):
            trainer.hear(entry)

    def _taken(self, *, looks: bool = False) -> None:
        """Take one step, all on the device."""
        self._agenda.read()
        bits = unpack(self._agenda.packed, self._agenda.index, self.recipe.width)
        with deferred_gradients():
            loss = self._run(self._program, bits, Purpose.NOISE)
            leaves = [state.parameter for state in self._states.values()]
            slopes = torch.autograd.grad([loss], leaves, [self._ones], allow_unused=True)
        gradients = {name: slope for name, slope in zip(self._states, slopes, strict=True) if slope is not None}
        with torch.no_grad():
            if looks:
                gap = self._run(self._discrete, bits, Purpose.WATCH) - loss
                self._book.sums[:, 2:] += torch.stack([gap, self._ones], -1)
            # inputs of layers are bits or states: a weight's gradient is finite where that of the bias beside it is
            watched = [gradient for name, gradient in gradients.items() if not _decays(name)]
            pace = allowed_(self._book, watched, loss.detach(), self._agenda.step, self._agenda.pace)
            self._move(gradients, pace)

    def _move(self, gradients: dict[str, Tensor], pace: Pace) -> None:
        """Move all parameters by their gradients, some of which are still factors."""
        if self.recipe.optimizer == "muon":
            matrices = [name for name in self._states if _decays(name)]
            products = [materialized(gradients.pop(name)) for name in matrices]
            muon_([self._states[name] for name in matrices], products, pace)
        deferred = [name for name, gradient in gradients.items() if isinstance(gradient, DeferredGradient)]
        for name in deferred:  # one after the other, so that the product is read before it leaves the cache
            adam_([self._states[name]], [materialized(gradients.pop(name))], pace, decays=[_decays(name)])
        states = [self._states[name] for name in gradients]
        adam_(states, list(gradients.values()), pace, decays=[_decays(name) for name in gradients])

    def _run(self, program: "_Program", bits: Tensor, purpose: Purpose) -> Tensor:
        """The loss of every member, minus the mean of its bounds."""
        parameters = {name: state.parameter for name, state in self._states.items()}
        keys, warmth = self._agenda.keys(purpose), self._agenda.warmth
        loss: Tensor = program.batched(parameters, self._buffers, bits, keys, warmth)
        return loss


class _Program(nn.Module):
    """The loss of one member on its batch."""

    def __init__(self, model: Model, estimator: Estimator, recipe: Recipe) -> None:
        super().__init__()
        self.model, self.estimator, self.recipe = model, estimator, recipe
        self.batched = vmap(self._run, in_dims=(0, 0, 0, 1, 1))

    def forward(self, bits: Tensor, keys: Tensor, warmth: Tensor) -> Tensor:
        cools = self.recipe.method.cools and not isinstance(self.estimator, Reinforce)
        estimator = tempered(self.recipe.estimator, *warmth) if cools else self.estimator
        inputs, samples = inputs_of(self.recipe, bits), self.recipe.samples
        return estimate(self.model, *inputs, estimator=estimator, samples=samples, generator=Keys(keys)).loss

    def _run(
        self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], bits: Tensor, keys: Tensor, warmth: Tensor
    ) -> Tensor:
        loss: Tensor = functional_call(self, (parameters, buffers), (bits, keys, warmth))
        return loss


def _decays(name: str) -> bool:
    """Whether a parameter of a program decays: the weights of the model do, and nothing of the estimator."""
    return name.startswith("model.") and name.endswith("weight")


def _adopted(trainers: Sequence[Trainer]) -> tuple[dict[str, State], dict[str, Tensor]]:
    """The parameters of all trainers with their moments, and the buffers; those of a trainer become views of them."""
    modules = [_Program(trainer.model, trainer.estimator, trainer.recipe) for trainer in trainers]
    states, buffers = {}, {}
    for name, _ in modules[0].named_parameters():
        own = [module.get_parameter(name) for module in modules]
        known = [trainer.moments(parameter) for trainer, parameter in zip(trainers, own, strict=True)]
        stacked = torch.stack([parameter.detach() for parameter in own])
        states[name] = State(stacked.requires_grad_(), *(torch.stack(moments) for moments in zip(*known, strict=True)))
        for member, (trainer, parameter) in enumerate(zip(trainers, own, strict=True)):
            parameter.data = stacked.detach()[member]
            trainer.share(parameter, *(moment[member] for moment in states[name][1:]))
    for name, _ in modules[0].named_buffers():
        buffers[name] = torch.stack([module.get_buffer(name) for module in modules])
        for member, module in enumerate(modules):
            module.get_buffer(name).data = buffers[name][member]
    return states, buffers
