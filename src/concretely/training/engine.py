"""The step engine: it takes the training steps of one run, or of many runs of one architecture together.

Runs that are trained together are called members. They may differ in seed, learning rate, weight decay, temperatures
and data. Everything that a step changes lies in tensors whose first axis counts members; a single run has one member.
On a GPU the step of all members is one vmapped program, captured as a CUDA graph and replayed. On a CPU every member
runs its own program, so that its result has the same bits as if it were trained alone.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ..estimator import Estimator
from ..estimator.base import default_objective
from ..functional.bound import bound
from ..functional.noise import Keys
from ..graph.mode import Discrete
from ..kernel.deferred import DeferredGradient, deferred_gradients, materialized
from ..kernel.operator import launching
from ..model import Model
from ..objective import log_weights
from ..objective import loss as loss_of
from .capture import Captured
from .method import Temperatures, at_temperature
from .optimizer import ParameterState, StepLog, StepSizes, adam_, guard_, muon_
from .recipe import Recipe, program_key
from .rng import Purpose
from .step_table import StepTable

if TYPE_CHECKING:
    from .train_state import TrainState

GAP_INTERVAL = 10
"""The interval, in steps, at which the gap is measured: the bound that is trained minus that of the discrete graph."""

State = dict[str, Tensor]
"""The tensors that training steps change, by their names in a checkpoint.

Parameters and buffers are `model/…` and `estimator/…`. The optimizer's moments of the gradients are `first/…` and
`second/…`. The `StepLog` is `row/sums` and `row/first_nonfinite`. The first axis of every tensor counts members.
"""


def path_of(name: str) -> str:
    """Return the key in a `State` of a parameter or buffer of a `MemberLoss`, such as `model/p.top.logits`."""
    return name.replace(".", "/", 1)


def inputs_of(recipe: Recipe, bits: Tensor) -> tuple[Tensor, ...]:
    """Return the inputs of a model from the bits of data points: x, or the context (the first bits) and x."""
    context = recipe.architecture.context
    return (bits,) if context is None else (bits[..., : context.units], bits[..., context.units :])


class MemberLoss(nn.Module):
    """The loss of one member on a batch: minus the mean of its objective."""

    def __init__(self, model: Model, estimator: Estimator, recipe: Recipe) -> None:
        super().__init__()
        self.model, self.estimator, self.recipe = model, estimator, recipe
        self._objective = default_objective(model, estimator)
        self._has_temperature = recipe.method.has_temperature
        self._temperatures: Temperatures | None = None  # those of the estimator

    def forward(self, bits: Tensor, keys: Keys, temperatures: Temperatures) -> Tensor:
        """Return the loss at the given temperatures, with noise from the given keys."""
        inputs, estimator = inputs_of(self.recipe, bits), self._estimator_at(temperatures)
        samples, objective = self.recipe.samples, self._objective
        return estimator(self.model, *inputs, samples=samples, objective=objective, generator=keys).loss

    def _estimator_at(self, temperatures: Temperatures) -> Estimator:
        if not self._has_temperature:
            return self.estimator
        if not all(isinstance(each, float) for each in temperatures):  # tensors are those of one call
            return at_temperature(self.recipe.estimator, *temperatures)
        if temperatures != self._temperatures:
            self.estimator, self._temperatures = at_temperature(self.recipe.estimator, *temperatures), temperatures
        return self.estimator


class DiscreteLoss(nn.Module):
    """Minus the mean bound of the discrete graph of one member on a batch."""

    def __init__(self, model: Model, recipe: Recipe) -> None:
        super().__init__()
        self.model, self.recipe = model, recipe

    def forward(self, bits: Tensor, keys: Keys, temperatures: Temperatures) -> Tensor:
        """Return the loss with noise from the given keys."""
        inputs, samples = inputs_of(self.recipe, bits), self.recipe.samples
        return loss_of(log_weights(self.model, *inputs, mode=Discrete(), samples=samples, generator=keys), bound)[0]


class Engine:
    """Takes the steps of runs that have all reached the same step.

    The models of the runs are views of the state that steps change, so that changes to a model between two calls of
    `advance` affect the next step. `stacked` says whether all members run as one program, by default only on a GPU.
    """

    def __init__(self, runs: Sequence["TrainState"], *, stacked: bool | None = None) -> None:
        first = runs[0]
        if len({(program_key(run.recipe), run.step, run.since) for run in runs}) > 1:
            raise ValueError("members of an engine must have one architecture, estimator and step, got others")
        self.runs, self.device = tuple(runs), first.device
        self.stacked = self.device.type != "cpu" if stacked is None else stacked
        groups = [self.runs] if self.stacked else [(run,) for run in self.runs]
        self._programs = [_Program(group, vmapped=self.stacked) for group in groups]
        self._measures_gap = first.recipe.method.relaxes

    @property
    def step(self) -> int:
        """The number of steps taken so far."""
        return self.runs[0].step

    def advance(self, until: int, *, pause: Callable[[], bool] = lambda: False) -> None:
        """Take steps until the step `until`, or until `pause`, which is called after each step, returns true."""
        since = max(run.since for run in self.runs)  # runs that have ended no longer begin new rows
        for program in self._programs:
            program._loss.train()
        with launching(self.device):
            while self.step < until:
                gap = self._measures_gap and (self.step - since) % GAP_INTERVAL == 0
                for program in self._programs:
                    program.take_step(self.step, gap=gap)
                for run in self.runs:
                    run.step += 1
                if pause():
                    break
            for program in self._programs:
                program.set_metrics()

    @property
    def is_captured(self) -> bool | None:
        """Whether all steps so far could be captured as CUDA graphs, or None if that was not tried."""
        works = [work for program in self._programs for work in (program._take, program._take_with_gap)]
        tried = [work.is_possible for work in works if isinstance(work, Captured)]
        return all(tried) if tried else None

    def without_ended(self, active: Sequence["TrainState"]) -> "Engine":
        """Return an engine for the runs that are still active: this engine, or a new one.

        A stacked engine is kept until half of its members have ended. Until then, stepping the ended members costs less
        than capturing a new program.
        """
        fits = len(active) > len(self.runs) // 2 if self.stacked else len(active) == len(self.runs)
        return self if fits else Engine(active, stacked=self.stacked)


class _Program:
    """The step of members that run as one program."""

    def __init__(self, runs: Sequence["TrainState"], *, vmapped: bool) -> None:
        first = runs[0]
        self._runs, self._recipe, self._vmapped = runs, first.recipe, vmapped
        self._loss, self._discrete_loss = first.loss, DiscreteLoss(first.model, first.recipe)
        state = first.state if len(runs) == 1 else _joined(runs)
        own: State = dict(first.loss.named_parameters())
        self._parameters = {
            name: ParameterState(state[path_of(name)], state[f"first/{name}"], state[f"second/{name}"]) for name in own
        }
        self._buffers = {name: state[path_of(name)] for name, _ in first.loss.named_buffers()}
        self._log = StepLog(state["row/sums"], state["row/first_nonfinite"])
        stacked = {name: each.parameter.detach().requires_grad_() for name, each in self._parameters.items()}
        self._leaves = stacked if vmapped else own
        # the weights of the model have an L2 penalty; the parameters of the estimator have none
        self._decays = {name: name.startswith("model.") and name.endswith("weight") for name in own}
        self._table = StepTable(runs, draws=first.draws)
        self._ones = torch.ones(len(runs), device=first.device)
        self._take: Callable[[], None] = self._step
        self._take_with_gap: Callable[[], None] = lambda: self._step(gap=True)
        if vmapped and first.device.type == "cuda":
            stream = torch.cuda.Stream(first.device)
            self._take, self._take_with_gap = (Captured(take, stream) for take in (self._take, self._take_with_gap))

    def take_step(self, step: int, *, gap: bool) -> None:
        """Take a step. With `gap`, also measure the trained bound minus the bound of the discrete graph."""
        self._table.prepare(step)
        (self._take_with_gap if gap else self._take)()

    def set_metrics(self) -> None:
        """Copy the metrics of all members from the device. This waits for the device."""
        metrics = torch.cat([self._log.sums, self._log.first_nonfinite.unsqueeze(-1)], -1).tolist()
        for run, own in zip(self._runs, metrics, strict=True):
            run.metrics = own

    def _step(self, *, gap: bool = False) -> None:
        """Take one step without synchronizing with the host."""
        self._table.read()
        bits = self._table.batch()
        with deferred_gradients() if self._vmapped else nullcontext():
            loss = self._losses(self._loss, bits, Purpose.NOISE)
            slopes = torch.autograd.grad([loss], list(self._leaves.values()), [self._ones], allow_unused=True)
        gradients = {
            name: slope if self._vmapped else slope.unsqueeze(0)
            for name, slope in zip(self._leaves, slopes, strict=True)
            if slope is not None
        }
        with torch.no_grad():
            if gap:
                excess = self._losses(self._discrete_loss, bits, Purpose.GAP) - loss
                self._log.sums[:, 2:] += torch.stack([excess, self._ones], -1)
            # inputs of layers are bits or states: a weight's gradient is finite where that of the bias beside it is
            watched = [
                gradient
                for name, gradient in gradients.items()
                if not self._decays[name] and not isinstance(gradient, DeferredGradient)
            ]
            sizes = guard_(self._log, watched, loss.detach(), self._table.sizes)
            self._update(gradients, sizes)

    def _losses(self, function: MemberLoss | DiscreteLoss, bits: Tensor, purpose: Purpose) -> Tensor:
        """Return the loss of every member, with the keys of a purpose."""
        keys, temperatures = self._table.keys[purpose], self._table.temperatures
        if not self._vmapped:
            found: Tensor = function(bits[0], Keys(keys[:, 0]), tuple(temperatures[:, 0].tolist()))
            return found.unsqueeze(0)

        def of_member(parameters: State, buffers: State, bits: Tensor, keys: Tensor, pair: Tensor) -> Tensor:
            loss: Tensor = functional_call(function, (parameters, buffers), (bits, Keys(keys), tuple(pair)))
            return loss

        stacked: Tensor = vmap(of_member, in_dims=(0, 0, 0, 1, 1))(
            self._leaves, self._buffers, bits, keys, temperatures
        )
        return stacked

    def _update(self, gradients: dict[str, Tensor], sizes: StepSizes) -> None:
        """Update all parameters by the optimizer. Some gradients are still pairs of factors, and multiplied here."""
        states = self._parameters
        if self._recipe.optimizer == "muon":
            matrices = [name for name, decays in self._decays.items() if decays]
            products = [materialized(gradients.pop(name)) for name in matrices]
            muon_([states[name] for name in matrices], products, sizes)
        deferred = [name for name, gradient in gradients.items() if isinstance(gradient, DeferredGradient)]
        for name in deferred:  # one after the other, so that the product is read before it leaves the cache
            adam_([states[name]], [materialized(gradients.pop(name))], sizes, decays=[self._decays[name]])
        decays = [self._decays[name] for name in gradients]
        adam_([states[name] for name in gradients], list(gradients.values()), sizes, decays=decays)


def _joined(runs: Sequence["TrainState"]) -> State:
    """Concatenate the states of several runs, and make the state of each run a view of the result."""
    state = {name: torch.cat([run.state[name] for run in runs]) for name in runs[0].state}
    for member, run in enumerate(runs):
        run.bind({name: tensor[member : member + 1] for name, tensor in state.items()})
    return state
