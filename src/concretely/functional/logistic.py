r"""The logistic variable, the log-odds of a binary Concrete variable [maddison2017concrete], appendix C.3.

$$Y = (L + \log α) / λ, \qquad \log g(y) = \log λ + d - 2 \log(1 + e^d), \quad d = \log α - λ y$$
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from ..kernel.operator import plain_apply
from . import arithmetic
from .arithmetic import Temperature, cast, compute_dtype, divide, log_temperature, to_float64
from .node import node_operators
from .noise import logistic as noise
from .noise import logistic_of
from .philox import fractions

__all__ = [
    "draw",
    "log_density",
    "log_density_of_noise",
    "log_tail",
    "noise",
    "pull",
    "push",
    "score",
    "standard_log_density",
]

category_axes = 0


def push(logits: Float[Tensor, "..."], temperature: Temperature, noise: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Divide the noisy log-odds by the temperature. The limit at temperature zero is ±infinity."""
    total = cast(logits, compute_dtype(logits.dtype)) + noise
    return divide(total, temperature, lambda total: torch.where(total >= 0, math.inf, -math.inf).to(total.dtype))


def pull(by: Float[Tensor, "..."], node: Float[Tensor, "..."], temperature: Temperature) -> Float[Tensor, "..."]:
    """Return the gradient of the logits, from the gradient of the node."""
    return by / temperature


def standard_log_density(noise: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the log density of the standard logistic distribution at `noise`, which is modified in place."""
    return _log_density_at(noise.abs_().neg_())


def _log_density_at(size: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the log density of the standard logistic distribution from minus the size of the noise."""
    return size.sub(softplus(size), alpha=2)


def log_density_of_noise(noise: Float[Tensor, "..."], temperature: Temperature) -> Float[Tensor, "..."]:
    """Return the log density of the value made from `noise`, which is modified in place."""
    log_density, constant = standard_log_density(noise), log_temperature(temperature, noise)
    # in place, as torch's tangent of a single number plus a float is in float64
    return log_density + constant if isinstance(constant, Tensor) else log_density.add_(constant)


def log_density(
    value: Float[Tensor, "..."], logits: Float[Tensor, "..."], temperature: Temperature
) -> Float[Tensor, "..."]:
    """Return the log density of a value."""
    if arithmetic.is_narrow(value, logits, temperature) and not arithmetic.is_transformed():
        result: Tensor = plain_apply(_LogDensity)(value, logits, temperature)[0]
        return result
    return log_density_of_noise(arithmetic.invert_noise(value, logits, temperature), temperature)


def log_tail(
    value: Float[Tensor, "..."], logits: Float[Tensor, "..."], temperature: Temperature, *, upper: bool
) -> Float[Tensor, "..."]:
    """Return the log survival function (`upper`) or the log CDF at a value."""
    noise = temperature * to_float64(value) - to_float64(logits)
    return logsigmoid(-noise if upper else noise)


class _LogDensity(torch.autograd.Function):
    """The log density of float32 values as one autograd node, for speed.

    `setup_context` would add support for `torch.func`, but double the time of a call.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        # minus the noise, of which the density is the same
        own = logits if arithmetic.is_exact(value, logits, temperature) else to_float64(logits)
        minus = cast(torch.sub(own, value, alpha=temperature), torch.float32)
        ctx.temperature, ctx.value, ctx.logits = temperature, (value.shape, value.dtype), (logits.shape, logits.dtype)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(minus)
        return _log_density_at(minus.abs().neg_()).add_(math.log(temperature)), minus

    @staticmethod
    def backward(ctx: Any, *grad: Tensor | None) -> tuple[Tensor | None, ...]:
        (minus,), (by, by_minus) = ctx.saved_tensors, grad
        if by is not None:
            slope = torch.addcmul(by, by, torch.sigmoid(minus), value=-2)  # times -tanh(minus / 2)
            by_minus = slope if by_minus is None else slope + by_minus
        by_value = by_logits = None
        if by_minus is not None and ctx.needs_input_grad[0]:
            by_value = cast(arithmetic.sum_to(-ctx.temperature * by_minus, ctx.value[0]), ctx.value[1])
        if by_minus is not None and ctx.needs_input_grad[1]:
            by_logits = cast(arithmetic.sum_to(by_minus, ctx.logits[0]), ctx.logits[1])
        return by_value, by_logits, None


def noise_of_key(key: Int64[Tensor, "members 2"], samples: int, units: int) -> Float[Tensor, "members m units"]:
    """Return logistic noise, computed from one key for each member."""
    return logistic_of(fractions(key, samples * units, torch.float32, True).view(len(key), samples, units))


draw, score = node_operators("logistic", noise_of_key, push, log_density_of_noise, category_axes=category_axes)
