"""One run in memory: its model, its estimator and all tensors that training steps change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..data.dataset import Dataset
from ..estimator import Estimator
from ..evaluation.likelihood import evaluate
from ..graph.program import eval_mode
from ..model import Model, density, prediction
from ..noise import Keys
from .checkpoint import require_tensors
from .engine import MemberLoss, State, inputs_of, path_of
from .method import at_step, estimator_of
from .recipe import Recipe
from .rng import Order, Purpose, generator_of, keys_of
from .step_table import lr_factor


@dataclass(frozen=True)
class Row:
    """A row of the training curve. Its bounds are averages over the steps since the previous row."""

    step: int
    seconds: float
    lr: float
    temperature: float | None
    bound: float
    """The objective that was maximised, in nats."""
    discrete: float
    """An estimate of the bound of the discrete graph: `bound` minus the mean gap, measured at every tenth step."""
    valid: float | None = None
    """The negative log-likelihood of the validation set, or None if it was not evaluated after this step."""


def build_model(recipe: Recipe, data: Dataset | None = None) -> Model:
    """Return the model of a recipe before training. Given data, its output biases start at their base rates."""
    architecture, generator = recipe.architecture, generator_of(recipe.seed, Purpose.INITIAL)
    rate = None if data is None else data.train.rate[recipe.width - architecture.observed.units :]
    make = density if architecture.context is None else prediction
    return make(architecture, base_rate=rate, generator=generator)


def empty_model(recipe: Recipe) -> Model:
    """Return the model of a recipe without memory for its parameters, on torch's meta device."""
    architecture = recipe.architecture
    with torch.device("meta"):
        return (density if architecture.context is None else prediction)(architecture)


class TrainState:
    """The state of a run between two steps."""

    def __init__(self, recipe: Recipe, data: Dataset, *, device: torch.device | str = "cpu") -> None:
        self.recipe, self.device = recipe, torch.device(device)
        self.data = data.to(self.device)
        self.model = build_model(recipe, data).to(self.device)
        estimator = estimator_of(recipe, self.model, inputs_of(recipe, self.data.train[:1000]))
        self.loss = MemberLoss(self.model, estimator, recipe)
        self.order = Order(points=len(data.train), batch=recipe.batch, seed=recipe.seed)
        self.state = _initial(self.loss, self.device)
        self.step = 0
        self.since = 0
        """The step of the last row."""
        self.seconds = 0.0
        self.best: dict[str, Tensor] = {}
        """The parameters with the best validation, if there was one."""
        self.metrics: Sequence[float] = (0.0, 0.0, 0.0, 0.0, -1.0)
        """The log of the steps since the last row, copied from the device: its sums and the first nonfinite step."""
        self._draws: int | None = None

    @property
    def estimator(self) -> Estimator:
        """The estimator of the gradient."""
        return self.loss.estimator

    def bind(self, state: State) -> None:
        """Use the tensors of another one-member state with the same values, such as a view of a stacked state."""
        for name, own in (*self.loss.named_parameters(), *self.loss.named_buffers()):
            own.data = state[path_of(name)][0]
        self.state = state

    def dry_run(self) -> float:
        """Return the objective of the next step without taking it. Raise the errors that the step would raise."""
        with eval_mode(self.loss), torch.no_grad():
            loss, keys = self._loss(self.step)
        self._draws = keys.used
        return -loss.item()

    @property
    def draws(self) -> int:
        """The number of random draws in a step."""
        if self._draws is None:
            self.dry_run()
        assert self._draws is not None
        return self._draws

    def bound(self) -> float:
        """Return the mean objective of the steps since the last row, or zero if there are none."""
        bound, steps, *_ = self.metrics
        return float(bound / max(steps, 1))

    def row(self) -> Row:
        """Return the row of the steps since the last row, and reset the sums for the next row."""
        mean, (*_, gap, gaps, first_nonfinite) = self.bound(), self.metrics
        self.state["row/sums"].zero_()
        self.metrics = (0.0, 0.0, 0.0, 0.0, first_nonfinite)
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
        """Return the negative log-likelihood of the validation set, estimated with `recipe.validation_samples`."""
        generator = generator_of(self.recipe.seed, Purpose.VALIDATION, device=self.device)
        inputs = inputs_of(self.recipe, self.data.valid[:])
        return evaluate(self.model, *inputs, samples=self.recipe.validation_samples, generator=generator).nll

    def keep_best(self) -> None:
        """Keep a copy of the current parameters as the best so far."""
        self.best = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def first_nonfinite(self) -> tuple[int, str] | None:
        """Return the first step whose gradient was not finite and the layer that caused it, or None.

        The parameters have not changed since that step.
        """
        step = int(self.metrics[-1])
        return None if step < 0 else (step, self.first_nonfinite_layer(step))

    def first_nonfinite_layer(self, step: int) -> str:
        """Return the first layer that is not finite in a step or, if all are finite, that with the largest gradient."""
        self.loss.train()
        if parameter := self.first_nonfinite_parameter():
            return parameter
        found: list[str] = []

        def look(name: str, module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
                found.append(name)

        modules = [(name, module) for name, module in self.model.named_modules() if name]
        hooks = [module.register_forward_hook(partial(look, name)) for name, module in modules]
        try:
            self.model.zero_grad()
            self._loss(step)[0].backward()
        except ValueError:  # a later layer may refuse what is not finite
            if not found:
                raise
        finally:
            for hook in hooks:
                hook.remove()
        if found:
            return found[0]
        slopes = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        # a gradient that is not finite counts as larger than any that is
        norms = {name: slope.norm().nan_to_num(torch.inf).item() for name, slope in slopes.items()}
        self.model.zero_grad()
        return max(norms, key=norms.__getitem__).rpartition(".")[0]

    def first_nonfinite_parameter(self) -> str | None:
        """Return the first layer with a parameter that is not finite, or None. This waits for the device."""
        finite = torch.stack([torch.isfinite(parameter).all() for parameter in self.model.parameters()]).tolist()
        names = (name.rpartition(".")[0] for name, _ in self.model.named_parameters())
        return next((name for name, sound in zip(names, finite, strict=True) if not sound), None)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint: all that later steps depend on, without the member axis."""
        own = {name: tensor[0] for name, tensor in self.state.items()}
        return {**own, **{f"best/{name}": tensor for name, tensor in self.best.items()}}

    def load(self, step: int, seconds: float, tensors: Mapping[str, Tensor], *, place: str = "the state") -> None:
        """Set the state to that of a checkpoint. `place` is a name of the checkpoint, for errors."""
        best = {name: tensor for name, tensor in tensors.items() if name.startswith("best/")}
        expected = {name: tensor[0] for name, tensor in self.state.items()}
        if best:
            expected |= {f"best/{name}": tensor for name, tensor in self.model.state_dict().items()}
        require_tensors(tensors, expected, place)
        if not 0 <= tensors["row/sums"][1].item() <= step:
            found = tensors["row/sums"][1].item()
            raise ValueError(f"tensor 'row/sums' of {place} must count at most {step} steps, got {found:g}")
        for name, tensor in self.state.items():
            tensor[0].copy_(tensors[name])
        self.best = {name.removeprefix("best/"): tensor.to(self.device) for name, tensor in best.items()}
        self.step, self.seconds = step, seconds
        self.metrics = [*self.state["row/sums"][0].tolist(), self.state["row/first_nonfinite"].item()]
        self.since = step - int(self.metrics[1])

    def _loss(self, step: int) -> tuple[Tensor, Keys]:
        """Return the loss of a step and the keys that it used. The loss depends only on the step and the parameters."""
        keys = Keys(keys_of(self.recipe.seed, Purpose.NOISE, step, device=self.device))
        temperature = at_step(self.recipe.temperature, step) or 0.0
        temperatures = temperature, at_step(self.recipe.prior_temperature, step) or temperature
        loss: Tensor = self.loss(self.data.train[self.order.indices(step).to(self.device)].float(), keys, temperatures)
        return loss, keys


def _initial(loss: MemberLoss, device: torch.device) -> State:
    """Return the state before the first step. It shares memory with the parameters and buffers of a loss."""
    state = {
        path_of(name): own.detach().unsqueeze(0) for name, own in (*loss.named_parameters(), *loss.named_buffers())
    }
    for name, parameter in loss.named_parameters():
        state |= {f"{moment}/{name}": torch.zeros_like(parameter[None].detach()) for moment in ("first", "second")}
    state["row/sums"] = torch.zeros((1, 4), dtype=torch.float64, device=device)
    state["row/first_nonfinite"] = torch.full((1,), -1, device=device)
    return state
