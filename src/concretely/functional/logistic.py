r"""The logistic node, the log-odds of a binary Concrete variable [maddison2017concrete], appendix C.3.

$$Y = (L + \log α) / λ, \qquad \log g(y) = \log λ + d - 2 \log(1 + e^d), \quad d = \log α - λ y$$
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from ..noise import logistic as noise
from . import invert
from .cast import cast, compute_dtype, to_float64
from .temperature import Temperature, as_precise, divide, log

__all__ = ["log_density", "log_density_of_noise", "log_tail", "noise", "push", "standard_log_density"]

category_axes = 0


def push(logits: Float[Tensor, "..."], temperature: Temperature, noise: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The noisy log-odds over the temperature, and its sign times infinity where the temperature is zero."""
    total = cast(logits, compute_dtype(logits.dtype)) + noise
    return divide(total, as_precise(temperature), lambda total: torch.where(total >= 0, math.inf, -math.inf))


def standard_log_density(noise: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The log density of standard logistic noise, which is overwritten."""
    size = noise.abs_().neg_()
    return softplus(size).mul_(-2).add_(size)


def log_density_of_noise(noise: Float[Tensor, "..."], temperature: Temperature) -> Float[Tensor, "..."]:
    """The log density of the node that noise becomes; the noise is overwritten."""
    return standard_log_density(noise) + log(as_precise(temperature))


def log_density(
    value: Float[Tensor, "..."], logits: Float[Tensor, "..."], temperature: Temperature
) -> Float[Tensor, "..."]:
    """The log density of a given node."""
    temperature = as_precise(temperature)
    if invert.is_narrow(value, logits, temperature) and not invert.is_transformed():
        found: Tensor = _LogDensity.apply(value, logits, temperature)[0]  # type: ignore[no-untyped-call]
        return found
    return log_density_of_noise(invert.invert_noise(value, logits, temperature), temperature)


def log_tail(
    value: Float[Tensor, "..."], logits: Float[Tensor, "..."], temperature: Temperature, *, upper: bool
) -> Float[Tensor, "..."]:
    """The log probability of a larger node, or of a smaller one."""
    noise = as_precise(temperature) * to_float64(value) - to_float64(logits)
    return logsigmoid(-noise if upper else noise)


class _LogDensity(torch.autograd.Function):
    """The log density of float32 values in one autograd node, which is quicker than operation by operation.

    It is written in the older of two ways, for which `torch.func` has no transforms but whose calls take half as long.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        noise = invert.narrow(value, logits, temperature).to(torch.float32)
        invert.keep(ctx, value, logits, temperature)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(noise)
        return standard_log_density(noise.clone()).add_(math.log(temperature)), noise

    @staticmethod
    def backward(ctx: Any, *grad: Tensor | None) -> tuple[Tensor | None, ...]:
        (noise,) = ctx.saved_tensors
        parts = [grad[1], None if grad[0] is None else -grad[0] * torch.tanh(noise / 2)]
        found = [part for part in parts if part is not None]
        return (*invert.pull(ctx, sum(found[1:], found[0])), None) if found else (None, None, None)
