"""Optimizers of `torch.optim` for the parameters of a run."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .optimizer import OwnUpdate, ParameterState, StepSizes, Update
from .place import State, path_of
from .task import OptimizerFactory

if TYPE_CHECKING:
    from .train_state import TrainState

PREFIX = "optimizer/"
"""The prefix of the names of an optimizer's tensors in a checkpoint."""
GROUP = f"{PREFIX}group."
"""The prefix of the names of options that steps have changed, before the number of their group."""


class TorchOptimizer:
    """An optimizer of `torch.optim`, whose learning rates are multiplied by a factor in each step.

    Its state is saved by the names of the parameters, and the options of its groups that steps have changed, such as
    the count of a schedule-free optimizer, by the numbers of the groups. Numbers in them are saved as tensors.
    """

    is_saved = False
    """Whether the state will be saved. Then the first step shows whether it can be."""

    def __init__(self, factory: OptimizerFactory, parameters: Mapping[str, nn.Parameter], *, lr: float | None) -> None:
        self._parameters, self.device = dict(parameters), next(iter(parameters.values())).device
        self._optimizer = _made(factory, list(parameters.values()), lr)
        groups = self._optimizer.param_groups
        self.lrs = [float(group["lr"]) for group in groups]
        known = {id(parameter) for group in groups for parameter in group["params"]}
        self.left_out = [name for name, parameter in parameters.items() if id(parameter) not in known]
        """The names of the parameters that the optimizer does not have."""
        if len(self.left_out) == len(parameters):
            todo = "pass its class, or a function that uses the parameters that it is given"
            raise ValueError(f"optimizer must have parameters of the model, got one that has none of them: {todo}")
        if self.device.type != "cpu":  # so that a step can be captured as a CUDA graph
            for group in groups:
                group["lr"] = torch.tensor(group["lr"], device=self.device)
                if "capturable" in group:
                    group["capturable"] = True
                elif group.get("fused", 0) is None and isinstance(self._optimizer, torch.optim.SGD):
                    group["fused"], group["foreach"] = True, False
        self._options = [_options(group) for group in groups]

    def step(self, gradients: Mapping[str, Tensor], factor: Tensor) -> None:
        """Take a step with the learning rates times a factor. A factor of zero leaves out the step."""
        if self.device.type == "cpu":
            value = factor.item()
            if value == 0:
                return
            for group, lr in zip(self._optimizer.param_groups, self.lrs, strict=True):
                group["lr"] = lr * value
        else:
            for group, lr in zip(self._optimizer.param_groups, self.lrs, strict=True):
                group["lr"].copy_(factor * lr)
        for name, parameter in self._parameters.items():
            gradient = gradients.get(name)
            if gradient is not None and self.device.type != "cpu":
                gradient = torch.where(factor != 0, gradient, 0)
            parameter.grad = gradient
        self._optimizer.step()
        if self.is_saved:
            self._require_numbers()
            self.is_saved = False
        for parameter in self._parameters.values():
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as tensors."""
        tensors = {}
        for name, parameter in self._parameters.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                is_tensor = isinstance(value, Tensor)
                tensors[f"{PREFIX}{name}/{key}"] = value if is_tensor else torch.tensor(value, dtype=torch.float64)
        for place, (group, before) in enumerate(zip(self._optimizer.param_groups, self._options, strict=True)):
            for key, value in _options(group).items():
                if key in before and not value.equal(before[key]):
                    tensors[f"{GROUP}{place}/{key}"] = value
        return tensors

    def _require_numbers(self) -> None:
        """Raise if the state has something else than tensors and numbers, which cannot be saved."""
        for parameter in self._parameters.values():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if not isinstance(value, Tensor | int | float):
                    must = "optimizer must have a state of tensors and numbers to be saved"
                    todo = "train without out, or with another optimizer"
                    raise TypeError(f"{must}, got {type(value).__name__} {key!r}: {todo}")

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the state to that of a checkpoint."""
        for name, parameter in self._parameters.items():
            start = f"{PREFIX}{name}/"
            own = {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
            if own:
                self._optimizer.state[parameter] = {key: self._placed(key, value) for key, value in own.items()}
        for place, (group, before) in enumerate(zip(self._optimizer.param_groups, self._options, strict=True)):
            for key in before:
                value = tensors.get(f"{GROUP}{place}/{key}")
                if value is not None:
                    group[key] = self._placed(key, value) if isinstance(group[key], Tensor) else value.item()

    def _placed(self, key: str, value: Tensor) -> Tensor:
        """Return a tensor of the state on its device: counts of steps stay on the CPU unless steps are captured."""
        captures = any(group.get("capturable") or group.get("fused") for group in self._optimizer.param_groups)
        return value.clone() if key == "step" and not captures else value.to(self.device, copy=True)


def update_of(runs: Sequence["TrainState"], state: State, names: Sequence[str]) -> Update:
    """Return how the named parameters of some members are updated: by torch's optimizers if there are any."""
    task, optimizers = runs[0].task, [run.optimizer for run in runs if run.optimizer is not None]
    if optimizers:
        return TorchUpdate(optimizers)
    states = {
        name: ParameterState(state[path_of(name)], state[f"first/{name}"], state[f"second/{name}"]) for name in names
    }
    return OwnUpdate(states, weights=task.weights, muon=task.recipe.optimizer == "muon")


class TorchUpdate(Update):
    """An update of every member by its own optimizer of torch."""

    def __init__(self, optimizers: Sequence[TorchOptimizer]) -> None:
        self._optimizers = optimizers

    def __call__(self, gradients: Mapping[str, Tensor], sizes: StepSizes) -> None:
        """Update all parameters."""
        for member, optimizer in enumerate(self._optimizers):
            optimizer.step({name: gradient[member] for name, gradient in gradients.items()}, sizes.rate[member])


def _made(factory: OptimizerFactory, parameters: Sequence[nn.Parameter], lr: float | None) -> torch.optim.Optimizer:
    """Call a factory with parameters and, if it is given and accepted, the learning rate."""
    if isinstance(factory, torch.optim.Optimizer):
        title = type(factory).__name__
        raise TypeError(f"optimizer must be made by fit, got an instance: pass torch.optim.{title} or a function of it")
    if not callable(factory):
        raise TypeError(f"optimizer must be a name, a class of torch.optim or a function, got {type(factory).__name__}")
    named: dict[str, Any] = {} if lr is None else {"lr": lr}
    if named and "lr" not in _accepted(factory):
        raise ValueError(f"lr must be left out, as the optimizer takes none, got {lr}")
    optimizer = factory(parameters, **named)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must make a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError("optimizer must take a step from one gradient, got LBFGS")
    return optimizer


def _options(group: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return copies of the options of a group that are numbers or tensors, without the learning rate."""
    own = {key: value for key, value in group.items() if key not in ("params", "lr")}
    numbers = {key: value for key, value in own.items() if isinstance(value, Tensor | int | float)}
    return {
        key: value.detach().cpu().clone() if isinstance(value, Tensor) else _as_tensor(value)
        for key, value in numbers.items()
    }


def _as_tensor(number: float) -> Tensor:
    return torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None)


def _accepted(factory: OptimizerFactory) -> Iterable[str]:
    try:
        return inspect.signature(factory.func if isinstance(factory, partial) else factory).parameters
    except ValueError:
        return ()
