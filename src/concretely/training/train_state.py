"""One run in memory: its model and estimator, and everything that training steps change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data.dataset import Dataset
from ..estimator import Estimator, Reinforce, estimate
from ..evaluation.likelihood import evaluate
from ..model import Model, density, prediction
from ..noise import Keys
from ..program import eval_mode
from .method import Temperatures, at_step, at_temperature, estimator_of
from .nonfinite import first_nonfinite_layer
from .recipe import Recipe
from .rng import Order, Purpose, generator_of, keys_of
from .step_table import lr_factor

GAP_INTERVAL = 10
"""The gap to the discrete graph is measured at the first step of a row and every so many steps after it."""


@dataclass(frozen=True)
class Row:
    """A row of the curve: averages over the steps since the row before."""

    step: int
    seconds: float
    lr: float
    temperature: float | None
    bound: float
    """The objective that was maximised, in nats."""
    discrete: float
    """The bound of the discrete graph: the former minus the mean gap between the two on the same batches."""
    valid: float | None = None
    """The negative log-likelihood of the validation set, if it was evaluated after this step."""


State = dict[str, Tensor]
"""Everything that training steps change, by the names that it has in a checkpoint.

Parameters and buffers are `model/…` and `estimator/…`, the moments of gradients `first/…` and `second/…`, and the log
of the steps is `row/sums` and `row/first_nonfinite`. The first axis of every tensor counts members.
"""


def path_of(name: str) -> str:
    """The name in a state of a parameter or buffer of a loss, such as `model/p.top.logits`."""
    return name.replace(".", "/", 1)


def build_model(recipe: Recipe, data: Dataset | None = None) -> Model:
    """The model of a recipe before training; its biases start at the base rate of the data, if these are given."""
    architecture, generator = recipe.architecture, generator_of(recipe.seed, Purpose.INITIAL)
    rate = None if data is None else data.train.rate[recipe.width - architecture.observed.units :]
    make = density if architecture.context is None else prediction
    return make(architecture, base_rate=rate, generator=generator)


def inputs_of(recipe: Recipe, bits: Tensor) -> tuple[Tensor, ...]:
    """The inputs of a model from the bits of data points: x, or the context and x."""
    return _inputs(bits, _context(recipe))


def _context(recipe: Recipe) -> int | None:
    """The number of bits of the context, if there is one."""
    context = recipe.architecture.context
    return None if context is None else context.units


def _inputs(bits: Tensor, context: int | None) -> tuple[Tensor, ...]:
    return (bits,) if context is None else (bits[..., :context], bits[..., context:])


class MemberLoss(nn.Module):
    """The loss of one member on a batch: minus the mean of its objective."""

    def __init__(self, model: Model, estimator: Estimator, recipe: Recipe) -> None:
        super().__init__()
        self.model, self.estimator, self.recipe = model, estimator, recipe
        self._has_temperature = recipe.method.has_temperature and not isinstance(estimator, Reinforce)
        self._temperatures: Temperatures | None = None  # those of the estimator
        self._context = _context(recipe)

    def forward(self, bits: Tensor, keys: Keys, temperatures: Temperatures) -> Tensor:
        """The loss at the given temperatures, with noise from the given keys."""
        inputs, estimator = _inputs(bits, self._context), self._estimator_at(temperatures)
        return estimate(self.model, *inputs, estimator=estimator, samples=self.recipe.samples, generator=keys).loss

    def _estimator_at(self, temperatures: Temperatures) -> Estimator:
        if not self._has_temperature:
            return self.estimator
        if not all(isinstance(each, float) for each in temperatures):  # tensors are those of one call
            return at_temperature(self.recipe.estimator, *temperatures)
        if temperatures != self._temperatures:
            self.estimator, self._temperatures = at_temperature(self.recipe.estimator, *temperatures), temperatures
        return self.estimator


class TrainState:
    """A run between two steps."""

    def __init__(self, recipe: Recipe, data: Dataset, *, device: torch.device | str = "cpu") -> None:
        self.recipe, self.device = recipe, torch.device(device)
        self.data = data.to(self.device)
        self.model = build_model(recipe, data).to(self.device)
        estimator = estimator_of(recipe, self.model, inputs_of(recipe, self.data.train[:1000]))
        self.loss = MemberLoss(self.model, estimator, recipe)
        self.order = Order(points=len(data.train), batch=recipe.batch, seed=recipe.seed, device=self.device)
        self.state = _initial(self.loss, self.device)
        self.step = 0
        self.since = 0
        """The step of the last row."""
        self.seconds = 0.0
        self.best: dict[str, Tensor] = {}
        """The parameters with the best validation, if there was one."""
        self._metrics: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, -1.0)
        self._draws: int | None = None

    @property
    def estimator(self) -> Estimator:
        """The estimator of the gradient."""
        return self.loss.estimator

    def bind(self, state: State) -> None:
        """Move to a state of one member that lies elsewhere and holds the same values."""
        for name, own in (*self.loss.named_parameters(), *self.loss.named_buffers()):
            own.data = state[path_of(name)][0]
        self.state = state

    def set_metrics(self, metrics: Sequence[float]) -> None:
        """Store metrics copied from the device: the sums of the log, and the first step that was not finite."""
        self._metrics = tuple(metrics)

    def dry_run(self) -> float:
        """The objective of the next step, without taking it; what a step would refuse is refused by this."""
        with eval_mode(self.loss), torch.no_grad():
            loss, keys = self._loss(self.step)
        self._draws = keys.used
        return -loss.item()

    @property
    def draws(self) -> int:
        """The number of draws in a step."""
        if self._draws is None:
            self.dry_run()
        assert self._draws is not None
        return self._draws

    def bound(self) -> float:
        """The mean objective of the steps since the last row, zero if there are none."""
        bound, steps, *_ = self._metrics
        return float(bound / max(steps, 1))

    def row(self) -> Row:
        """The row of the steps since the last one; it starts the next."""
        mean, (*_, gap, gaps, first_nonfinite) = self.bound(), self._metrics
        self.state["row/sums"].zero_()
        self._metrics = (0.0, 0.0, 0.0, 0.0, first_nonfinite)
        self.since = self.step
        return Row(
            step=self.step,
            seconds=self.seconds,
            lr=self.recipe.lr * lr_factor(self.recipe, self.step),
            temperature=at_step(self.recipe.temperature, self.step),
            bound=mean,
            discrete=mean - gap / max(gaps, 1),
        )

    def validate(self) -> float:
        """The negative log-likelihood of the validation set, estimated as the recipe says."""
        generator = generator_of(self.recipe.seed, Purpose.VALIDATION, device=self.device)
        inputs = inputs_of(self.recipe, self.data.valid[:])
        return evaluate(self.model, *inputs, samples=self.recipe.validation_samples, generator=generator).nll

    def keep_best(self) -> None:
        """Copy the parameters as the best so far."""
        self.best = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def first_nonfinite(self) -> tuple[int, str] | None:
        """The first step without a finite gradient and the layer that caused it; no step was taken from there on."""
        step = int(self._metrics[-1])
        return None if step < 0 else (step, self.first_nonfinite_layer(step))

    def first_nonfinite_layer(self, step: int) -> str:
        """The layer in which a step is not finite or, if all of it is, the layer with the largest gradient."""
        self.loss.train()
        return self.first_nonfinite_parameter() or first_nonfinite_layer(self.model, lambda: self._loss(step)[0])

    def first_nonfinite_parameter(self) -> str | None:
        """The first layer with a parameter that is not finite, if there is one; this waits for the device."""
        finite = torch.stack([torch.isfinite(parameter).all() for parameter in self.model.parameters()]).tolist()
        names = (name.rpartition(".")[0] for name, _ in self.model.named_parameters())
        return next((name for name, sound in zip(names, finite, strict=True) if not sound), None)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint: all that later steps depend on, without the axis of members."""
        own = {name: tensor[0] for name, tensor in self.state.items()}
        return {**own, **{f"best/{name}": tensor for name, tensor in self.best.items()}}

    def load(self, step: int, seconds: float, tensors: Mapping[str, Tensor]) -> None:
        """Go back to a checkpoint."""
        for name, tensor in self.state.items():
            tensor[0].copy_(tensors[name])
        best = (name for name in tensors if name.startswith("best/"))
        self.best = {name.removeprefix("best/"): tensors[name].to(self.device) for name in best}
        self.step, self.seconds = step, seconds
        self.set_metrics([*self.state["row/sums"][0].tolist(), self.state["row/first_nonfinite"].item()])
        self.since = step - int(self._metrics[1])

    def _loss(self, step: int) -> tuple[Tensor, Keys]:
        """The loss of a step, the same whenever the parameters are, and the keys that it has used."""
        keys = Keys(keys_of(self.recipe.seed, Purpose.NOISE, step, device=self.device))
        temperature = at_step(self.recipe.temperature, step) or 0.0
        temperatures = temperature, at_step(self.recipe.prior_temperature, step) or temperature
        loss: Tensor = self.loss(self.data.train[self.order.indices(step)].float(), keys, temperatures)
        return loss, keys


def joined(runs: Sequence[TrainState]) -> State:
    """The states of several runs as one, of which the state of each becomes a view."""
    state = {name: torch.cat([run.state[name] for run in runs]) for name in runs[0].state}
    for member, run in enumerate(runs):
        run.bind({name: tensor[member : member + 1] for name, tensor in state.items()})
    return state


def _initial(loss: MemberLoss, device: torch.device) -> State:
    """The state before the first step, which shares the memory of the parameters and buffers of a loss."""
    state = {
        path_of(name): own.detach().unsqueeze(0) for name, own in (*loss.named_parameters(), *loss.named_buffers())
    }
    for name, parameter in loss.named_parameters():
        state |= {f"{moment}/{name}": torch.zeros_like(parameter[None].detach()) for moment in ("first", "second")}
    state["row/sums"] = torch.zeros((1, 4), dtype=torch.float64, device=device)
    state["row/first_nonfinite"] = torch.full((1,), -1, device=device)
    return state
