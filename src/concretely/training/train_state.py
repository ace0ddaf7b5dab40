"""One run in memory: its model, its estimator and all tensors that training steps change."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..estimator import Estimator
from ..functional.noise import Keys
from ..graph.program import eval_mode
from ..schedule import at_step
from .checkpoint import require_tensors
from .own_loss import require_learned
from .own_method import own_task_of
from .own_recipe import OwnRecipe, RunRecipe
from .paper import paper_recipe, paper_task
from .parallel import ALONE, World
from .place import State, path_of, tensors_of
from .rng import DRAWS, Purpose, draw_offsets, keys_of, keys_of_part, seed_torch, torch_generators
from .task import DRAWN, Task
from .torch_optimizer import PREFIX, TorchOptimizer

if TYPE_CHECKING:
    from .shard import Sharding


@dataclass(frozen=True)
class Row:
    """A row of the training curve. Its objectives are averages over the steps since the previous row."""

    step: int
    seconds: float
    lr: float
    temperature: float | None
    objective: float
    """What was maximised: the objective of a model, such as a bound in nats, or minus the cost of a program."""
    discrete: float
    """The objective of the discrete graph: `objective` minus the mean gap of both graphs in one mode, at some steps."""
    valid: float | None = None
    """The negative log-likelihood of the validation set, or None if it was not evaluated after this step."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Other metrics by name, such as the KL of every node: means over some steps, and schedules at the next step."""
    run: str = ""
    """In a callback, the name of the run if there are several, such as `seed=1`."""

    @property
    def values(self) -> dict[str, float]:
        """All numbers of the row that are known, by name."""
        own = ("step", "seconds", "lr", "temperature", "objective", "discrete", "valid")
        values = {name: value for name in own if (value := getattr(self, name)) is not None}
        gap = {"gap": self.objective - self.discrete} if self.discrete != self.objective else {}
        return values | gap | dict(self.metrics)


def renamed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as a mapping with the names of this version. Earlier ones called the objective `bound`."""
    return {"objective" if name == "bound" and "objective" not in row else name: value for name, value in row.items()}


class TrainState:
    """The state of a run between two steps."""

    def __init__(self, task: Task, world: World = ALONE) -> None:
        task = replace(task, feed=world.feed(task.feed))
        self.sharding = _sharding(task, world) if world.shards else None
        """How parameters are sharded over ranks, if they are."""
        self.world = world
        """The ranks that train the run together."""
        self.task, self.device, self.loss, self.model = task, task.device, task.loss, task.model
        require_learned(task.loss)
        self.optimizer = _optimizer(task)
        """The optimizer of torch, if the task has one."""
        self.state = _initial(
            task, local=lambda tensor: tensor if self.sharding is None else self.sharding.local(tensor)
        )
        self.step = 0
        self.since = 0
        """The step of the last row."""
        self.seconds = 0.0
        self.best: dict[str, Tensor] = {}
        """The parameters with the best validation, if there was one."""
        self.metrics: Sequence[float] = (0.0, 0.0, 0.0, 0.0, -1.0)
        """The log of the steps since the last row, copied from the device: its sums and the first nonfinite step."""
        self.measured: Sequence[float] = ()
        """The sums of the gradient norm and of the task's metrics since the last row, and their number."""
        self.may_capture = world.may_capture
        """Whether steps may be captured as CUDA graphs."""
        self._draws: tuple[int, int] | None = None

    @classmethod
    def of(
        cls, recipe: RunRecipe, data: Any, *, device: torch.device | str = "cpu", world: World = ALONE
    ) -> "TrainState":
        """Return the state of a recipe before its first step."""
        if isinstance(recipe, OwnRecipe):
            return cls(own_task_of(recipe, data, device=device), world)
        return cls(paper_task(paper_recipe(recipe), data, device=device), world)

    @property
    def recipe(self) -> RunRecipe:
        """The settings of the run."""
        return self.task.recipe

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
            loss, draws = self._loss(self.step)
        with self._gathered():
            monitored = self._monitored(self.step)
        counted = draws, monitored if self.task.relaxed is None else max(draws, monitored)
        self._draws = self._draws or counted
        return -self.world.mean(loss).item()

    @property
    def draws(self) -> tuple[int, int]:
        """The numbers of random draws in a part of a step and of the monitor, counted in the first dry run."""
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
        base = 1.0 if self.optimizer is None else self.optimizer.lrs[0]
        return Row(
            step=self.step,
            seconds=self.seconds,
            lr=base * self.task.lr_at(self.step),
            temperature=at_step(self.task.temperature, self.step),
            objective=mean,
            discrete=mean - gap / max(gaps, 1),
            metrics=self._measured(),
        )

    def _measured(self) -> dict[str, float]:
        """Return the means of the task's metrics since the last row, its temperatures and schedules; reset the sums.

        The metrics of a node are averaged over the batches that have it, and left out if none has.
        """
        if not self.measured:
            return {}
        *sums, count = self.measured
        self.state["row/metrics"].zero_()
        self.measured = [0.0] * len(self.measured)
        names = ("gradient_norm", *(self.task.metrics or ())) if count else ()
        means = {name: total / count for name, total in zip(names, sums, strict=False)}
        shares = {name.partition("/")[2]: means.pop(name) for name in names if name.startswith(f"{DRAWN}/")}
        drawn = {name: shares.get(name.partition("/")[2], 1.0) for name in means}
        means = {name: mean / drawn[name] for name, mean in means.items() if drawn[name]}
        temperatures = {name: at_step(given, self.step) for name, given in self.task.temperatures.items()}
        return means | temperatures | dict(zip(self.task.control_names, self.task.controls_at(self.step), strict=True))

    def validate(self) -> float:
        """Return the score of the validation set, of which lower is better."""
        with self.averaged(), self._gathered():
            scores = self.world.gather(self.task.validate(self.world))  # those of a function may differ between ranks
            score: float = scores[0]
            return score

    def _gathered(self) -> AbstractContextManager[None]:
        """Return a context in which every rank has all parameters."""
        return nullcontext() if self.sharding is None else self.sharding.gathered()

    def keep_best(self) -> None:
        """Keep a copy of the current parameters as the best so far."""
        self.best = self.parameters()

    def parameters(self) -> dict[str, Tensor]:
        """Return a copy of the parameters and buffers of the model, with running averages where there are any."""
        with self.averaged():
            if self.sharding is not None:
                return self.sharding.model_tensors(self.model)
            return {name: tensor.detach().clone() for name, tensor in tensors_of(self.model).items()}

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside this context, the parameters of the model are their running averages, if there are any."""
        pairs = [
            (own := self.state[path_of(name)][0], self.state[f"ema/{name}"][0], own.clone())
            for name, _ in self.loss.named_parameters()
            if f"ema/{name}" in self.state
        ]
        with torch.no_grad():
            for parameter, average, _ in pairs:
                parameter.copy_(average)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, _, own in pairs:
                    parameter.copy_(own)

    def adopt_best(self) -> None:
        """Set the parameters of the model to the best so far or, without validations, to their running averages."""
        chosen = self.best or self.parameters()
        if self.sharding is None:
            self.model.load_state_dict(chosen, strict=False)  # which leaves some buffers as they are
            for name, buffer in self.model.named_buffers():
                buffer.copy_(chosen[name])
        else:
            self.sharding.load_model(self.model, chosen)
            self.sharding.unshard()

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
        layers, called = list[str](), [_layer_of(name) for name, _ in self.model.named_parameters()]

        def look(name: str, module: nn.Module, inputs: object, output: object) -> None:
            called.append(name)
            if isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
                layers.append(name)

        modules = [(name, module) for name, module in self.model.named_modules() if name]
        hooks = [module.register_forward_hook(partial(look, name)) for name, module in modules]
        try:
            self.model.zero_grad()
            self._loss(step)[0].backward()
        except ValueError:  # a later layer or a distribution refuses what it is given
            layers.append(called[-1])
        finally:
            for hook in hooks:
                hook.remove()
        if layers:
            return layers[0]
        slopes = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        # a gradient that is not finite counts as larger than any that is
        norms = {name: slope.norm().nan_to_num(torch.inf).item() for name, slope in slopes.items()}
        self.model.zero_grad()
        return _layer_of(max(norms, key=norms.__getitem__))

    def first_nonfinite_parameter(self, *, together: bool = True) -> str | None:
        """Return the first layer with a parameter that is not finite, or None. This waits for the device.

        If parameters are sharded, ranks that ask `together` look at all parts, others only at their own.
        """
        own = [self.state[path_of(f"model.{name}")] for name, _ in self.model.named_parameters()]
        are_finite = torch.stack([torch.isfinite(parameter).all() for parameter in own])
        finite = (self.world.mean(are_finite.double()).eq(1) if self.sharding and together else are_finite).tolist()
        names = (_layer_of(name) for name, _ in self.model.named_parameters())
        return next((name for name, sound in zip(names, finite, strict=True) if not sound), None)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint: all that later steps depend on, without the member axis."""
        own = {name: tensor[0] for name, tensor in self.state.items()}
        own = own if self.sharding is None else self.sharding.whole(own)
        others = {} if self.optimizer is None else self.optimizer.tensors()
        return {**own, **others, **{f"best/{name}": tensor for name, tensor in self.best.items()}}

    def load(self, step: int, seconds: float, tensors: Mapping[str, Tensor], *, place: str = "the state") -> None:
        """Set the state to that of a checkpoint. `place` is a name of the checkpoint, for errors."""
        best = {name: tensor for name, tensor in tensors.items() if name.startswith("best/")}
        expected = {name: tensor[0] for name, tensor in self.state.items()}
        if self.sharding is not None:
            expected = {name: self.sharding.empty(name, tensor) for name, tensor in expected.items()}
        if best:
            expected |= {f"best/{name}": tensor for name, tensor in tensors_of(self.model).items()}
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith(PREFIX)}
        require_tensors(own if self.optimizer else tensors, expected, place)
        if not 0 <= tensors["row/sums"][1].item() <= step:
            got = tensors["row/sums"][1].item()
            raise ValueError(f"tensor 'row/sums' of {place} must count at most {step} steps, got {got:g}")
        for name, tensor in self.state.items():
            if self.sharding is None:
                tensor[0].copy_(tensors[name])
            else:
                self.sharding.copy_(name, tensor[0], tensors[name])
        self.best = {
            name.removeprefix("best/"): tensor.to("cpu" if self.sharding else self.device)
            for name, tensor in best.items()
        }
        self.step, self.seconds = step, seconds
        if self.optimizer is not None:
            self.optimizer.load(tensors)
        self.metrics = [*self.state["row/sums"][0].tolist(), self.state["row/first_nonfinite"].item()]
        if "row/metrics" in self.state:
            self.measured = self.state["row/metrics"][0].tolist()
        self.since = step - int(self.metrics[1])

    def _loss(self, step: int) -> tuple[Tensor, int]:
        """Return the loss of a step, and the number of draws of a part. They depend on the step and the parameters."""
        losses, draws = list[Tensor](), None if self._draws is None else self._draws[0]
        with self._seeded(step):
            for part, inputs in enumerate(self.task.feed.inputs(step, self.device)):
                keys = self._keys(step, part, draws)
                losses.append(self.loss(inputs, self.world.noise(keys), tuple(self.task.controls_at(step))))
                draws = keys.used if draws is None else draws
        assert draws is not None
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean(), draws

    def _keys(self, step: int, part: int, draws: int | None) -> Keys:
        """Return the keys of a part of a step, as `StepTable` has them, or all if the number of draws is unknown."""
        rows, parts = (DRAWS, 1) if draws is None else (draws * self.task.parts, self.task.parts)
        first = keys_of(self.recipe.seed, Purpose.NOISE, step, device=self.device)[0]
        own = keys_of_part(first + draw_offsets(rows, parts).to(self.device), part, parts)
        return Keys(own, seeds_torch=not self.task.reseeds, more=DRAWS - rows)

    def loss_at(self, step: int) -> Tensor:
        """Return the loss of a step, without taking it."""
        return self._loss(step)[0]

    def _monitored(self, step: int) -> int:
        """Run the monitor on the batch of a step, and return the number of its draws."""
        if self.task.monitor is None:
            return 0
        keys = Keys(keys_of(self.recipe.seed, Purpose.GAP, step, device=self.device), seeds_torch=not self.task.reseeds)
        with torch.no_grad(), eval_mode(self.loss), self._seeded(step):
            inputs = self.task.feed.inputs(step, self.device)[-1]
            self.task.monitor(inputs, self.world.noise(keys), tuple(self.task.controls_at(step)))
        return keys.used

    @contextmanager
    def _seeded(self, step: int) -> Iterator[None]:
        """Inside this context, torch's global generators are those of a step, if the task asks for it."""
        with torch_generators(self.device) if self.task.reseeds else nullcontext():
            if self.task.reseeds:
                seed_torch(self.recipe.seed, step, self.device)
            yield


def _layer_of(name: str) -> str:
    """Return the name of the layer that has a parameter, or that of the parameter if the model itself has it."""
    return name.rpartition(".")[0] or name


def _sharding(task: Task, world: World) -> "Sharding":
    """Shard the parameters of a task. Only then FSDP2 is imported, which takes a second."""
    from .shard import Sharding

    return Sharding(task, world)


def _optimizer(task: Task) -> TorchOptimizer | None:
    """Return the optimizer of torch of a task, or None if it has none."""
    if task.optimizer is None:
        return None
    own = {name: parameter for name, parameter in task.loss.named_parameters() if parameter.requires_grad}
    return TorchOptimizer(task.optimizer, own, lr=task.optimizer_lr)


def _initial(task: Task, *, local: Callable[[Tensor], Tensor]) -> State:
    """Return the state before the first step. It shares memory with the parameters and buffers of a loss.

    `local` returns the part of a tensor that this rank has.
    """
    loss, device = task.loss, task.device
    is_muon = task.optimizer is None and task.recipe.optimizer == "muon"
    for parameter in loss.parameters():
        # an update goes through memory in order: Muon's by rows, Adam's in any memory format without gaps
        if not parameter.is_contiguous() and (is_muon or torch.empty_like(parameter).stride() != parameter.stride()):
            parameter.data = parameter.data.contiguous()
    state = {
        path_of(name): local(own.detach()).unsqueeze(0)
        for name, own in (*loss.named_parameters(), *loss.named_buffers())
    }
    for name, parameter in loss.named_parameters():
        own = state[path_of(name)]
        if parameter.requires_grad and task.optimizer is None:
            state |= {f"{moment}/{name}": torch.zeros_like(own) for moment in ("first", "second")}
        if parameter.requires_grad and task.ema is not None and name.startswith("model."):
            state[f"ema/{name}"] = own.clone()
    state["row/sums"] = torch.zeros((1, 4), dtype=torch.float64, device=device)
    state["row/first_nonfinite"] = torch.full((1,), -1, device=device)
    if task.metrics is not None:
        state["row/metrics"] = torch.zeros((1, len(task.metrics) + 2), dtype=torch.float64, device=device)
    return state
