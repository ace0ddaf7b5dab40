"""One run in memory: a model, its estimator and optimiser, and the steps that they take.

A step is a function of the parameters, the state of the optimiser and the number of the step. It never asks the device
for a number, so that the device need not wait: what a step finds stays there until a row is made of many.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data.dataset import Dataset
from ..estimator import Estimate, Estimator, Reinforce, estimate
from ..evaluation.likelihood import evaluate
from ..model import Model, density, prediction
from ..noise import Keys
from ..program import eval_mode
from .chance import Order, Purpose, generator_of, keys_of
from .fault import Fault, culprit
from .method import anneals, at_step, cooled, estimator_of
from .optimizer import Muon
from .recipe import Recipe

WATCHED = 10
"""The discrete graph is looked at too at the first step of a row, and at every one so many steps later."""


@dataclass(frozen=True)
class Row:
    """A row of the curve: averages over the steps since the row before."""

    step: int
    seconds: float
    lr: float
    temperature: float | None
    bound: float
    """What was maximised, in nats."""
    discrete: float
    """The bound of the discrete graph: the former, less the gap found between the two on the same batches."""
    valid: float | None = None
    """The negative log-likelihood of the validation set, where it was looked at after this step."""


def built(recipe: Recipe, data: Dataset | None = None) -> Model:
    """The model of a recipe, with its parameters before training; their base rate is that of the data, if given."""
    architecture, generator = recipe.architecture, generator_of(recipe.seed, Purpose.INITIAL)
    rate = None if data is None else data.train.rate[recipe.width - architecture.observed.units :]
    make = density if architecture.context is None else prediction
    return make(architecture, base_rate=rate, generator=generator)


def inputs_of(recipe: Recipe, bits: Tensor) -> tuple[Tensor, ...]:
    """The inputs of a model from the bits of data points: x, or the context and x."""
    context = recipe.architecture.context
    return (bits,) if context is None else (bits[..., : context.units], bits[..., context.units :])


class Trainer:
    """A run between two steps."""

    def __init__(self, recipe: Recipe, data: Dataset, *, device: torch.device | str = "cpu") -> None:
        self.recipe, self.device = recipe, torch.device(device)
        self.data = data.to(self.device)
        self.model = built(recipe, data).to(self.device)
        self.estimator = estimator_of(recipe, self.model, inputs_of(recipe, self.data.train[:1000]))
        self.optimizer = _optimizer(recipe, self.model, self.estimator, points=len(data.train))
        self.order = Order(points=len(data.train), batch=recipe.batch, seed=recipe.seed, device=self.device)
        self.step = 0
        self.seconds = 0.0
        self.best: dict[str, Tensor] = {}
        self.sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        """Of the steps since the last row: bounds, their number, gaps, their number."""
        self.since = 0
        """The step of the last row."""
        self.guard = Fault(self.device)
        self._heard: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, -1.0)
        self._shares = False  # whether others take the steps

    @property
    def size(self) -> int:
        """The number of members: it is a program of one."""
        return 1

    def advance(self, until: int, *, pause: Callable[[], bool] = lambda: False) -> None:
        """Take steps until one is reached, or there is reason to pause after one."""
        started = time.perf_counter()
        self.model.train()
        self._take_back()
        while self.step < until:
            self._take(self.step)
            self.step += 1
            if pause():
                break
        self.hear([*self.sums.tolist(), self.guard.first.item()])
        self.seconds += time.perf_counter() - started

    def hear(self, found: Sequence[float]) -> None:
        """Be told the sums and the fault that lie on the device."""
        self._heard = tuple(found)

    def rehearsed(self) -> float:
        """The bound of the next step, of which nothing is learned; what a step would refuse is refused by this."""
        return self._rehearsed()[0].bound.mean().item()

    def bound(self) -> float:
        """The bound of the steps since the last row, zero if there are none."""
        bound, steps, *_ = self._heard
        return float(bound / max(steps, 1))

    def row(self) -> Row:
        """What the steps since the last row have found; it starts the next one."""
        mean, (*_, gap, looks, fault) = self.bound(), self._heard
        self.sums.zero_()
        self._heard = (0.0, 0.0, 0.0, 0.0, fault)
        self.since = self.step
        return Row(
            step=self.step,
            seconds=self.seconds,
            lr=self.recipe.lr * falling(self.recipe, self.step),
            temperature=at_step(self.recipe.temperature, self.step),
            bound=mean,
            discrete=mean - gap / max(looks, 1),
        )

    def validated(self) -> float:
        """The negative log-likelihood of the validation set, as the recipe looks at it."""
        generator = generator_of(self.recipe.seed, Purpose.VALIDATION, device=self.device)
        inputs = inputs_of(self.recipe, self.data.valid[:])
        return evaluate(self.model, *inputs, samples=self.recipe.validation_samples, generator=generator).nll

    def keep(self) -> None:
        """Remember the parameters as the best so far."""
        self.best = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def fault(self) -> tuple[int, str] | None:
        """The first step that gave no finite gradient, which was not taken nor any after it, and the layer at fault."""
        step = int(self._heard[-1])
        return None if step < 0 else (step, self.culprit(step))

    def culprit(self, step: int) -> str:
        """The layer that a step fails in or, if it does not, that with the largest gradient."""
        self.model.train()
        return self.spoiled() or culprit(self.model, lambda: self._estimated(step).loss)

    def spoiled(self) -> str | None:
        """The first layer with a parameter that is not finite, if there is any; this waits for the device."""
        finite = torch.stack([torch.isfinite(parameter).all() for parameter in self.model.parameters()]).tolist()
        names = (name.rpartition(".")[0] for name, _ in self.model.named_parameters())
        return next((name for name, sound in zip(names, finite, strict=True) if not sound), None)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that later steps depend on, save for the number of the step."""
        parts: dict[str, Mapping[str, Tensor]] = {"model": self.model.state_dict(), "best": self.best}
        if isinstance(self.estimator, nn.Module):
            parts["estimator"] = self.estimator.state_dict()
        for index, moments in self.optimizer.state_dict()["state"].items():
            count = torch.full_like(moments["step"], self.step) if self._shares else moments["step"]
            parts[f"optimizer/{index}"] = {**moments, "step": count}
        parts["row"] = {"sums": self.sums}
        return {f"{part}/{name}": tensor for part, content in parts.items() for name, tensor in content.items()}

    def load(self, step: int, seconds: float, tensors: Mapping[str, Tensor]) -> None:
        """Go back to where all this was taken from."""
        parts: dict[str, dict[str, Tensor]] = {}
        for path, tensor in tensors.items():
            part, _, name = path.rpartition("/")
            parts.setdefault(part, {})[name] = tensor.to(self.device)
        self.model.load_state_dict(parts["model"])
        if isinstance(self.estimator, nn.Module):
            self.estimator.load_state_dict(parts["estimator"])
        moments = {int(part.partition("/")[2]): parts[part] for part in parts if part.startswith("optimizer/")}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        self.best = parts.get("best", {})
        self.sums = parts["row"]["sums"]
        self.step, self.seconds = step, seconds
        self.hear([*self.sums.tolist(), self.guard.first.item()])
        self.since = step - int(self._heard[1])

    def draws(self) -> int:
        """How many draws a step takes."""
        return self._rehearsed()[1].used

    def moments(self, parameter: nn.Parameter) -> tuple[Tensor, Tensor]:
        """The moments of the gradient of a parameter, zero before the first step."""
        state = self.optimizer.state.get(parameter, {})
        first, second = (state.get(name, torch.zeros_like(parameter)) for name in ("exp_avg", "exp_avg_sq"))
        return first, second

    def share(self, parameter: nn.Parameter, first: Tensor, second: Tensor) -> None:
        """Leave the moments of a parameter to others, who take the steps from now on."""
        count = torch.full((), self.step, dtype=torch.float32, device=self.device)
        self.optimizer.state[parameter] = {"step": count, "exp_avg": first, "exp_avg_sq": second}
        self._shares = True

    def _take_back(self) -> None:
        """Count the steps that others have taken, before taking more oneself."""
        if self._shares:
            for state in self.optimizer.state.values():
                state["step"].fill_(self.step)
            self._shares = False

    def _take(self, step: int) -> None:
        """Take one step."""
        found = self._estimated(step)
        mean = found.bound.detach().mean().double()
        self.sums[:2] += torch.stack([mean, torch.ones_like(mean)])
        if self.recipe.method.relaxes and (step - self.since) % WATCHED == 0:
            self.sums[2:] += torch.stack([mean - self._discrete(step), torch.ones_like(mean)])
        self.optimizer.zero_grad()
        found.loss.backward()
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.lr * falling(self.recipe, step)
        self.guard.look(self.optimizer, found.loss, step)
        self.optimizer.step()

    def _rehearsed(self) -> tuple[Estimate, Keys]:
        """The estimate of the next step, of which nothing is learned, and the keys that it has used."""
        keys = self._keys(Purpose.NOISE, self.step)
        own = self.estimator if isinstance(self.estimator, nn.Module) else nn.Module()
        with eval_mode(self.model), eval_mode(own), torch.no_grad():
            return self._estimate(self.step, keys), keys

    def _estimated(self, step: int) -> Estimate:
        """The estimate of a step, the same whenever it is asked for with the same parameters."""
        return self._estimate(step, self._keys(Purpose.NOISE, step))

    def _estimate(self, step: int, keys: Keys) -> Estimate:
        estimator = cooled(self.recipe, step) if anneals(self.recipe) else self.estimator
        batch, samples = self._batch(step), self.recipe.samples
        return estimate(self.model, *batch, estimator=estimator, samples=samples, generator=keys)

    def _discrete(self, step: int) -> Tensor:
        """The bound of the discrete graph on the batch of a step, with the parameters as they are."""
        with torch.no_grad():
            found = estimate(
                self.model,
                *self._batch(step),
                estimator=Reinforce(),
                samples=self.recipe.samples,
                generator=self._keys(Purpose.WATCH, step),
            )
        return found.bound.mean().double()

    def _keys(self, purpose: Purpose, step: int) -> Keys:
        return Keys(keys_of(self.recipe.seed, purpose, step, device=self.device))

    def _batch(self, step: int) -> tuple[Tensor, ...]:
        return inputs_of(self.recipe, self.data.train[self.order.indices(step)])


def falling(recipe: Recipe, step: int) -> float:
    """The share of the learning rate that is left at a step."""
    gone = min(step / recipe.steps, 1.0)
    match recipe.lr_schedule:
        case "linear":
            return 1 - gone
        case "cosine":
            return (1 + math.cos(math.pi * gone)) / 2
        case _:
            return 1.0


def _optimizer(recipe: Recipe, model: Model, estimator: Estimator, *, points: int) -> torch.optim.Optimizer:
    """One that decays the weights of the model, but no biases or prior logits, nor what an estimator has itself."""
    own = list(estimator.parameters()) if isinstance(estimator, nn.Module) else []
    weights = [parameter for name, parameter in model.named_parameters() if name.endswith("weight")]
    others = [parameter for name, parameter in model.named_parameters() if not name.endswith("weight")]
    groups = [
        {"params": weights, "weight_decay": recipe.weight_decay / points},
        {"params": [*others, *own], "weight_decay": 0.0},
    ]
    kind = Muon if recipe.optimizer == "muon" else torch.optim.Adam
    return kind(groups, lr=recipe.lr, betas=(0.9, 0.999), eps=1e-8, fused=True)
