"""Checks of arguments. Each error names the offending value and its index."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real
from typing import Any, Literal, NamedTuple

import torch
from torch import Size, Tensor
from torch.distributions import constraints

from ..functional import categorical
from ..functional.arithmetic import Temperature, bool_or_none, cast, compute_dtype, is_finite, is_hidden, to_float64


def place(index: tuple[int, ...]) -> str:
    """Return " at index ..." for an error message, or an empty string for an empty index."""
    return "" if not index else f" at index {index[0] if len(index) == 1 else index}"


def first(value: Tensor, offending: Tensor) -> str:
    """Return the first offending entry and its index as text."""
    index = tuple(offending.nonzero()[0].tolist())
    return f"{value[index].item():.9g}{place(index)}"


def require(name: str, must: str, value: Tensor, holds: Tensor) -> None:
    """Raise an error unless the condition holds for every entry."""
    if bool_or_none(holds.all()) is False:
        raise ValueError(f"{name} must {must}, got {first(value, ~holds)}")


def as_floating(name: str, value: Tensor | float) -> Tensor:
    """Convert a parameter to a floating tensor; raise an error unless it is a number or a floating tensor."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return torch.tensor(float(value))
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a floating tensor or a number, got {type(value).__name__}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a floating tensor, got {value.dtype}; convert with {name}.float()")
    return value


def as_logits(logits: Tensor | float, *, infinite: Literal["never", "minus", "either"], validate: bool) -> Tensor:
    """Convert logits to a floating tensor; raise an error for integers, NaN and infinities.

    `infinite` allows no infinity ("never"), minus infinity in some but not all of several categories ("minus"), or any
    ("either").
    """
    logits = as_floating("logits", logits)
    if validate and is_finite(logits) is False:
        require("logits", "be numbers", logits, ~logits.isnan())
        # a single logit is the log-odds of a bit
        if infinite == "minus" and logits.shape[-1:] != (1,):
            require("logits", "be below infinity", logits, logits < math.inf)
            possible = logits.amax(-1, keepdim=True) > -math.inf
            require("logits", "leave at least one category possible", logits, possible.broadcast_to(logits.shape))
        if infinite == "never":
            require("logits", "be finite to be relaxed", logits, logits.isfinite())
    return logits


LEAST = {dtype: 1e8 * torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float64)}
"""The least positive temperature by the dtype of intermediate results. Below it, a division by it may overflow."""


def as_temperature(temperature: Temperature | None, *, dtype: torch.dtype, validate: bool) -> Temperature:
    """Check a temperature; raise an error if it is negative, infinite, NaN or too small for logits of a dtype."""
    least = LEAST[compute_dtype(dtype)]
    if type(temperature) is float and least <= temperature < math.inf:  # other checks of types take longer
        return temperature
    if isinstance(temperature, Tensor):
        if not temperature.is_floating_point():
            raise TypeError(f"temperature must be a number or a floating tensor, got {temperature.dtype}")
        if validate and bool_or_none(((temperature >= least) & (temperature < math.inf)).all()) is False:
            require("temperature", POSITIVE, temperature, (temperature >= 0) & (temperature < math.inf))
            require("temperature", at_least(least, dtype), temperature, (temperature >= least) | (temperature == 0))
        return temperature
    if isinstance(temperature, bool) or not isinstance(temperature, (Real, torch.SymFloat)):
        got = "none" if temperature is None else type(temperature).__name__
        raise TypeError(f"temperature must be a number or a floating tensor, got {got}")
    if validate and not least <= temperature < math.inf and temperature != 0:
        must = at_least(least, dtype) if 0 < temperature < math.inf else POSITIVE
        raise ValueError(f"temperature must {must}, got {temperature:.9g}")
    return temperature if isinstance(temperature, torch.SymFloat) else float(temperature)


POSITIVE = "be positive, or 0 for the discrete limit"


def at_least(least: float, dtype: torch.dtype) -> str:
    """Return the condition on a temperature for an error message."""
    return f"be at least {least:.2g} for logits in {str(dtype).removeprefix('torch.')}, or 0 for the discrete limit"


def as_shaped(name: str, value: Tensor, *, batch_shape: Size, event_shape: Size) -> Tensor:
    """Check the dtype and the shape of a value or of noise."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a floating tensor, got {value.dtype}")
    batch = value.shape[: max(value.dim() - len(event_shape), 0)]
    if value.shape[len(batch) :] != event_shape:
        raise ValueError(f"{name} must end in event_shape {tuple(event_shape)}, got shape {tuple(value.shape)}")
    try:
        broadcast_shapes(batch, batch_shape)
    except RuntimeError:
        shape = tuple(batch_shape + event_shape)
        raise ValueError(f"{name} must broadcast with shape {shape}, got shape {tuple(value.shape)}") from None
    return value


def broadcast_shapes(one: Size, other: Size) -> Size:
    """Broadcast two shapes, with a shortcut that avoids the slow function of torch."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    if longer[len(longer) - len(shorter) :] == shorter:
        return longer
    return Size(torch.broadcast_shapes(one, other))


def as_fraction(value: Tensor, *, validate: bool) -> Tensor:
    """Check a probability and convert it to float64."""
    if not isinstance(value, Tensor):
        raise TypeError(f"value must be a tensor, got {type(value).__name__}")
    if not value.is_floating_point():
        raise TypeError(f"value must be a floating tensor, got {value.dtype}")
    if validate:
        require("value", "lie between 0 and 1", value, (value >= 0) & (value <= 1))
    return to_float64(value)


def validates(validate_args: bool | None, *parameters: Any) -> bool:
    """Return whether to check the values of arguments: by default, unless a parameter is on a GPU.

    A check reads the result on the host, which would wait for the GPU. Inside of `checking_on_gpu`, values on a GPU are
    checked too. Torch's own default is ignored, since `torch.compile` turns it off globally.
    """
    if validate_args is not None:
        return validate_args
    for parameter in parameters:
        if isinstance(parameter, Tensor) and parameter.is_cuda:
            return not torch.compiler.is_compiling() and _checks_on_gpu.get()
    return True


_checks_on_gpu: ContextVar[bool] = ContextVar("checks_on_gpu", default=False)


@contextmanager
def checking_on_gpu() -> Iterator[None]:
    """Inside this context, values on a GPU are checked by default. It is for what is computed once."""
    token = _checks_on_gpu.set(True)
    try:
        yield
    finally:
        _checks_on_gpu.reset(token)


_postpones: ContextVar[bool] = ContextVar("postpones", default=False)


@contextmanager
def postponing_checks() -> Iterator[None]:
    """Inside this context, the logits of a discrete variable are checked only when a graph draws it.

    So the logits of observed nodes, often the largest, are not checked. It is for callers that check the loss, and
    repeat the work outside of the context if it is not finite.
    """
    token = _postpones.set(True)
    try:
        yield
    finally:
        _postpones.reset(token)


def postpones_checks() -> bool:
    """Return whether checks of logits are postponed."""
    return not torch.compiler.is_compiling() and _postpones.get()


def split(logits: Tensor, category_axes: int) -> tuple[Size, Size]:
    """Return the batch shape and the event shape of logits."""
    if category_axes and (logits.dim() == 0 or logits.shape[-1] < 2):
        raise ValueError(f"logits must have a last axis of at least 2 categories, got shape {tuple(logits.shape)}")
    batch = logits.dim() - category_axes
    return logits.shape[:batch], logits.shape[batch:]


def broadcast(batch_shape: Size, temperature: Temperature) -> Size:
    """Broadcast the batch shape with the temperature."""
    if not isinstance(temperature, Tensor):
        return batch_shape
    try:
        return broadcast_shapes(batch_shape, temperature.shape)
    except RuntimeError:
        got = f"got shape {tuple(temperature.shape)}"
        raise ValueError(f"temperature must broadcast with batch_shape {tuple(batch_shape)}, {got}") from None


def has_density(temperature: Temperature | None) -> None:
    """Raise an error at temperature zero, which has no density."""
    is_zero = temperature is not None and temperature == 0
    if is_zero is True or (isinstance(is_zero, Tensor) and bool_or_none(is_zero.any())):
        raise ValueError("temperature must be positive to have a density, got 0: score the discrete variable instead")


def mark_bits(value: Tensor) -> None:
    """Note that all entries of a tensor are 0 or 1, so that `are_bits` does not read them until the tensor changes."""
    vars(value)[BITS] = value._version


BITS = "_bits_at_version"
"""The attribute of a tensor that `mark_bits` sets."""


def are_bits(value: Tensor) -> bool | None:
    """Return whether all entries are 0 or 1, or None if they cannot be read (see `bool_or_none`)."""
    if is_hidden(value):
        return None
    if (version := vars(value).get(BITS)) is not None and version == value._version:
        return True
    value = value.detach()
    if value.is_cpu and value.dtype in (torch.float32, torch.float64):
        # x - x² is zero only for bits; torch compares several times more slowly than it adds
        return bool(torch.addcmul(value, value, value, value=-1).abs_().sum().item() == 0)
    return bool_or_none(((value == 0) | (value == 1)).all())


def in_support(value: Tensor, support: constraints.Constraint, *, owner: str) -> None:
    """Raise an error if a value is outside the support."""
    if support is constraints.boolean and are_bits(value):  # the check of torch takes five times as long
        return
    holds = support.check(value)
    if bool_or_none(holds.all()) is False:
        index = tuple((~holds).nonzero()[0].tolist())
        got = str(value[index].tolist()) if support.event_dim else f"{value[index].item():.9g}"
        got = got if len(got) <= 60 else got[:60] + " ..."
        is_grey = support is constraints.boolean and 0 < value[index] < 1
        todo = ": draw bits from grey values, as by torch.bernoulli(x)" if is_grey else ""
        raise ValueError(f"value must lie in the support of {owner}, got {got}{place(index)}{todo}")


def as_log_odds(probs: Tensor | float, *, validate: bool) -> Tensor:
    """Convert probabilities to log-odds."""
    probs = as_probs(probs, validate=validate)
    return cast(torch.logit(to_float64(probs)), probs.dtype)


def as_log_probs(probs: Tensor | float, *, validate: bool) -> Tensor:
    """Convert probabilities, normalised or not, to logarithms."""
    probs = as_probs(probs, validate=validate)
    return cast(to_float64(probs).log(), probs.dtype)


def as_probs(probs: Tensor | float, *, validate: bool) -> Tensor:
    """Convert probabilities to a floating tensor; raise an error outside [0, 1]."""
    probs = as_floating("probs", probs)
    if validate:
        require("probs", "lie between 0 and 1", probs, (probs >= 0) & (probs <= 1))
    return probs


class Conversion(NamedTuple):
    """How a family converts probabilities to logits, and logits to probabilities."""

    to_logits: Callable[..., Tensor]
    """Takes probabilities and `validate`; raises an error outside [0, 1]."""
    to_probs: Callable[[Tensor], Tensor]


LOG_ODDS = Conversion(as_log_odds, lambda logits: torch.sigmoid(to_float64(logits)))
LOG_PROBS = Conversion(as_log_probs, lambda logits: categorical.log_probs(logits).exp())
