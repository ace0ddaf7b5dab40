"""The contract of all layers, and functions that apply to every layer of a model.

- `train()` draws: relaxed values, or discrete ones with the gradient of a relaxed value. `eval()` decides: the result
  is deterministic. `sample` draws discretely in either mode.
- `forward` never changes the state dict. The buffers, which are the number of steps, scheduled temperatures and running
  statistics, change in `advance` only: evaluation, a second forward and a recomputed activation leave them alone.
- A training forward keeps its latest result in an attribute, for `penalty`, and adds up counts, for `advance`. Neither
  is state: they are not saved or copied. A forward that recomputes activations within a backward pass keeps nothing, so
  that activation checkpointing counts nothing twice. A forward inside a transform of `torch.func` keeps nothing either:
  give its result to `penalty`.
- `forward` never communicates. `penalty` and `advance` sum over the ranks of `torch.distributed`, so all ranks must
  call them.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import Any, Self, TypeVar

import torch
from jaxtyping import Float
from torch import Size, Tensor, nn
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.amp.autocast_mode import is_autocast_available

from ..distribution.check import LEAST
from ..functional.arithmetic import Temperature, bool_or_none
from ..spelling import shown
from .rank import sum_over_ranks

PATIENCE = 1000
"""The number of training forwards after which a layer warns that `advance` or `penalty` was never called."""
MEMORY = 0.99
"""The factor by which running counts decay at every `advance`."""
UNUSED = 0.01
"""A code or expert counts as unused below this fraction of an even share."""

Setting = float | Tensor | Callable[[int], float]
"""A temperature: a number, a tensor with one for each unit, or a schedule such as `Annealing`."""
COLDEST, HOTTEST = LEAST[torch.float32], 1e30
"""The smallest and the largest temperature of a layer: beyond them, float32 underflows or overflows."""
WITHOUT: Any = object()
"""What a layer without a temperature gives as one: None is a mistake of the caller."""
T = TypeVar("T")


class Layer(nn.Module, ABC):
    """A module with a discrete choice inside."""

    step: Tensor
    """The number of steps that `advance` has counted."""
    temperature: Temperature
    """The temperature of the current step: a number, or a buffer if it changes or differs between units."""
    governs: tuple["Layer", ...] = ()
    """Layers whose penalties this one replaces."""
    follows: str = ""
    """The buffer that `advance` moves by the latest counts."""

    def __init__(self, temperature: Setting = WITHOUT, *, units: Sequence[int] = ()) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self._schedules: dict[str, tuple[Callable[[int], float], Callable[[Any], float]]] = {}
        self._result: Any = None
        self._counted: Tensor | None = None
        self._forwards, self._is_advanced, self._is_penalised = 0, False, False
        if isinstance(temperature, Tensor):
            self.register_buffer("temperature", _positive_tensor(temperature, Size(units)).detach().clone())
        elif temperature is not WITHOUT:
            self._set("temperature", temperature, _positive)

    def _set(self, name: str, setting: float | Callable[[int], float], check: Callable[[Any], float]) -> None:
        """Set an attribute to a number, or to a buffer that `advance` moves along a schedule."""
        if callable(setting):
            self._schedules[name] = setting, check
            self.register_buffer(name, torch.tensor(check(setting(0))))
        else:
            setattr(self, name, check(setting))

    @abstractmethod
    def penalty(self) -> Float[Tensor, ""]:
        """Return the term that this layer adds to a loss, in at least float32. It is 0 if there is none."""

    @abstractmethod
    def report(self) -> Any:
        """Return diagnostics without gradients, as a named tuple."""

    @abstractmethod
    def decide(self) -> Any:
        """Return the discrete result that was learned, or None if the layer has learned none."""

    @property
    @abstractmethod
    def _is_penalising(self) -> bool:
        """Whether the penalty is not always zero."""

    def advance(self, steps: int = 1) -> None:
        """Count optimizer updates: move a scheduled temperature, and add the latest counts to the running ones.

        A schedule is a function of a Python number, so a layer with one on a GPU waits for it here.
        """
        _require_steps(steps)
        self._is_advanced = True
        with torch.no_grad():
            self.step += steps
            for name, (schedule, check) in self._schedules.items():
                self.get_buffer(name).fill_(check(schedule(int(self.step))))
            for name, running in self.named_buffers(recurse=False):
                if name == "counts":
                    latest = (
                        torch.zeros_like(running) if self._counted is None else self._counted.to(running).contiguous()
                    )
                    latest = sum_over_ranks(latest)
                    running.mul_(MEMORY).add_(latest)
                    self._follow(latest, steps)
        self._counted = None

    def _follow(self, counts: Tensor, steps: int) -> None:
        """Change buffers by the latest counts of all ranks."""

    def _keeps(self) -> bool:
        """Count a forward; return whether to keep its result: in training mode, outside of transforms.

        A compiled forward is not counted, since a number that changes would cause a recompilation.
        """
        if not self.training or torch.compiler.is_compiling():
            return self.training
        if torch._C._are_functorch_transforms_active() or torch._C._current_graph_task_id() != -1:
            return False
        own = self.__dict__  # setting an attribute of a module takes as long as an operation on a small tensor
        own["_forwards"] += 1
        if own["_forwards"] == PATIENCE:
            name, times = type(self).__name__, f"{PATIENCE:,} training forwards"
            kind, moved = (
                ("schedule", " and ".join(self._schedules)) if self._schedules else (self.follows, self.follows)
            )
            if moved and not self._is_advanced:
                warnings.warn(
                    f"{name} has a {kind} but advance was never called in {times}, so its {moved} is still the first "
                    "one: call concretely.layer.advance(model) after every optimizer step",
                    stacklevel=3,
                )
            if self._is_penalising and not self._is_penalised:
                warnings.warn(
                    f"{name} has a penalty but it was never used in {times}: add concretely.layer.penalty(model) to "
                    "the loss",
                    stacklevel=3,
                )
        return True

    def _keep(self, result: T, counts: Tensor | None = None) -> T:
        """Keep the result of a training forward, and add up its counts, if there is a need to; return the result."""
        if self._keeps():
            counted = self._counted
            if counts is not None:
                counted = counts if counted is None else counted + counts
            self._store(result, counted)
        return result

    def _store(self, result: Any, counted: Tensor | None) -> None:
        """Replace the latest result, and the counts since the latest `advance`."""
        if torch.compiler.is_compiling():
            self._result, self._counted = result, counted
        else:
            own = self.__dict__
            own["_result"], own["_counted"] = result, counted

    def _kept(self, result: T | None, kind: type[T]) -> T | None:
        """Return the result whose penalty is wanted: the given one, or that of the latest training forward.

        In evaluation mode, before any training forward, there is none: then the penalty is 0.
        """
        if not self._is_penalised:  # setting an attribute of a module takes time
            self._is_penalised = True
        name = type(self).__name__
        if result is not None:
            if not isinstance(result, kind):
                raise TypeError(f"penalty of {name} must be of a {kind.__name__}, got {type(result).__name__}")
            return result
        if self._result is None and not self.training:
            return None
        if self._result is None:
            raise RuntimeError(f"penalty of {name} needs a training forward before it, got none: call the model first")
        tensors = [entry for entry in self._result if isinstance(entry, Tensor)]
        if torch.is_grad_enabled() and not any(tensor.requires_grad for tensor in tensors):
            trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
            if trained:
                raise RuntimeError(
                    f"penalty of {name} needs a forward with gradients, got one without: use checkpoint with "
                    "use_reentrant=False, or call penalty inside torch.no_grad()"
                )
        kept: T = self._result
        return kept

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert parameters as torch does, but keep the dtype of buffers: rounding would change a schedule."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():
            moved = self._buffers[name]
            if buffer is not None and moved is not None and moved.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(moved.device)
        if self._counted is not None:
            self._counted = self._counted.to(self.step.device)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy: all but the latest result, whose tensors belong to a graph."""
        return {**self.__dict__, "_result": None, "_counted": None}


def layers(model: nn.Module) -> Iterator[tuple[str, Layer]]:
    """Yield every layer inside a model once, with its name."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    yield from ((name, module) for name, module in model.named_modules() if isinstance(module, Layer))


def penalty(model: nn.Module) -> Float[Tensor, ""]:
    """Return the sum of the penalties of all layers in a model, each once, for its latest training forward.

    A gate under a `Target` is penalised by the target only. With `torch.distributed`, all ranks must call this.

    >>> penalty(nn.Linear(2, 2))
    tensor(0.)
    """
    all_layers = [layer for _, layer in layers(model)]
    replaced = {id(other) for layer in all_layers for other in layer.governs}
    total = None
    for layer in all_layers:
        if id(layer) not in replaced:
            term = layer.penalty()
            total = term if total is None else total + term.to(total.device)
    return torch.zeros(()) if total is None else total


def advance(model: nn.Module, steps: int = 1) -> None:
    """Count optimizer updates in all layers of a model: call it once after every optimizer step."""
    _require_steps(steps)
    for _, layer in layers(model):
        layer.advance(steps)


def report(model: nn.Module) -> dict[str, Any]:
    """Return the diagnostics of all layers in a model, by name."""
    return {name: layer.report() for name, layer in layers(model)}


def decide(model: nn.Module) -> dict[str, Any]:
    """Return the discrete results of all layers in a model that have learned one, by name."""
    decisions = {name: layer.decide() for name, layer in layers(model)}
    return {name: result for name, result in decisions.items() if result is not None}


def is_vmapped() -> bool:
    """Return whether `vmap` is active. Its functions return tensors only, so that no part of a result may be None."""
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return False
    return any(level.key() == TransformType.Vmap for level in get_interpreter_stack() or ())


def is_autocast(kind: str) -> bool:
    """Return whether autocast is on for a type of device."""
    is_known = kind in ("cpu", "cuda") or is_autocast_available(kind)  # which torch 2.11 does not compile
    return is_known and torch.is_autocast_enabled(kind)


def require_count(name: str, value: Any, *, least: int = 1, most: float = math.inf, of: str = "") -> int:
    """Return a whole number; raise unless it lies between two others."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {type(value).__name__}")
    if value >= 2**63:
        raise ValueError(f"{name} must be below 2**63, got {value}")
    if not least <= value <= most:
        limit = f"at least {least}" if math.isinf(most) else f"between {least} and {most}{of}"
        raise ValueError(f"{name} must be {limit}, got {value}")
    return value


def require_number(name: str, value: Any, *, least: float = 0.0, most: float = math.inf) -> float:
    """Return a number; raise unless it lies between two others."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not (least <= float(value) <= most and float(value) < math.inf):
        limit = "not be negative" if math.isinf(most) else f"lie between {least:g} and {most:g}"
        raise ValueError(f"{name} must {limit}, got {value:.9g}")
    return float(value)


def require_last(name: str, value: Any, size: int, *, axis: int = -1) -> Tensor:
    """Return a floating tensor; raise unless one of its axes has the expected length."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} must be a floating tensor, got {got}")
    if not -value.dim() <= axis < value.dim() or value.shape[axis] != size:
        where = "a last axis" if axis == -1 else f"axis {axis}"
        raise ValueError(f"{name} must have {where} of length {size}, got shape {tuple(value.shape)}")
    return value


def require_mask(mask: Any, x: Tensor) -> Tensor | None:
    """Return a mask of tokens x; raise unless it has the expected shape. None is that of all tokens."""
    shape = x.shape[:-1]
    if mask is None and is_vmapped():
        return torch.ones(shape, dtype=torch.bool, device=x.device)
    if mask is not None and (not isinstance(mask, Tensor) or mask.shape != shape or mask.dtype != torch.bool):
        is_tensor = isinstance(mask, Tensor)
        got = f"{mask.dtype} of shape {tuple(mask.shape)}" if is_tensor else type(mask).__name__
        raise ValueError(f"mask must be torch.bool of shape {tuple(shape)}, got {got}")
    return mask


def _require_steps(steps: Any) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or not 0 <= steps < 2**63:
        raise ValueError(f"steps must be a whole number that is not negative, got {shown(steps)}")


def _positive(temperature: Any) -> float:
    if isinstance(temperature, bool) or not isinstance(temperature, Real):
        raise TypeError(
            f"temperature must be a number, a floating tensor or a schedule, got {type(temperature).__name__}"
        )
    if not COLDEST <= float(temperature) <= HOTTEST:
        raise ValueError(f"temperature must {_limit(float(temperature))}, got {temperature:.9g}")
    return float(temperature)


def _limit(temperature: float) -> str:
    """Return the condition that a temperature does not meet."""
    if not 0 < temperature < math.inf:
        return "be positive"
    return f"be at least {COLDEST:.2g}" if temperature < COLDEST else f"be at most {HOTTEST:.0e}"


def _positive_tensor(temperature: Tensor, units: Size) -> Tensor:
    if not temperature.is_floating_point():
        raise TypeError(f"temperature must be a number, a floating tensor or a schedule, got {temperature.dtype}")
    own = temperature.shape
    pairs = zip(reversed(own), reversed(units), strict=False)
    if len(own) > len(units) or any(size not in (1, unit) for size, unit in pairs):
        asked = f"broadcast to shape {tuple(units)}" if units else "be one number"
        raise ValueError(f"temperature must {asked}, got shape {tuple(own)}")
    holds = (temperature >= COLDEST) & (temperature <= HOTTEST)
    if not temperature.is_cuda and bool_or_none(holds.all()) is False:
        got = temperature[~holds].flatten()[0].item()
        raise ValueError(f"temperature must {_limit(got)}, got {got:.9g}")
    return temperature
