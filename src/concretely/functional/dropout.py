r"""Inputs times a relaxed mask of mean 1, as one autograd node: concrete dropout.

$$x \, σ((L + \log α) / λ) / E[σ((L + \log α) / λ)]$$
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..kernel.operator import is_plain, is_watched
from .arithmetic import Temperature, cast
from .integral import STEP, mean_sigmoid

FAR = 700.0
"""A logit of which the sigmoid is 0 or 1 in float64, and the exponential is finite."""


def drop(
    x: Float[Tensor, "*shape"], logit: Float[Tensor, ""], temperature: Temperature, noise: Float[Tensor, "*mask"]
) -> Float[Tensor, "*shape"]:
    """Multiply inputs by masks of mean 1, made from the log-odds of keeping an input and from logistic noise."""
    is_number = isinstance(temperature, float) and x.is_cpu and logit.is_cpu
    if is_number and is_plain((x, logit, noise)) and not is_watched():
        dropped: Tensor = _Drop.apply(x, logit, temperature, noise)  # type: ignore[no-untyped-call]
        return dropped
    return _defined(x, logit, temperature, noise)


def _defined(x: Tensor, logit: Tensor, temperature: Temperature, noise: Tensor) -> Tensor:
    cold = 1 / torch.as_tensor(temperature, dtype=logit.dtype, device=x.device)
    mask = torch.sigmoid((logit + noise) * cold) / mean_sigmoid(cold, logit * cold)
    return x * cast(mask, x.dtype)


class _Drop(torch.autograd.Function):
    """`drop` for one number as the temperature."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, logit: Tensor, temperature: float, noise: Tensor) -> Tensor:
        mean, ctx.slope = _mean_and_slope(float(logit), temperature)
        node = (noise + logit).div_(temperature)
        mask = torch.sigmoid(node).mul_(1 / mean)
        ctx.temperature = temperature
        ctx.save_for_backward(x, logit, noise, node, mask)
        return x * cast(mask, x.dtype)

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, ...]:
        x, logit, noise, node, mask = ctx.saved_tensors
        if torch.is_grad_enabled():
            needed = [each for each in (x, logit) if each.requires_grad]
            again = _defined(x, logit, ctx.temperature, noise)
            found = iter(torch.autograd.grad(again, needed, by[0], create_graph=True))
            return *(next(found) if each.requires_grad else None for each in (x, logit)), None, None
        by_x = by[0] * cast(mask, by[0].dtype)
        if not ctx.needs_input_grad[1]:
            return by_x, None, None, None
        # the logarithm of the mask has the derivative σ(-node) / λ minus that of the mean's logarithm
        slope = torch.sigmoid(-node).mul_(1 / ctx.temperature).sub_(ctx.slope)
        return by_x, (slope * (by_x * x)).sum(dtype=logit.dtype), None, None


@cache
def _rule() -> tuple[Any, Any]:
    """Return the points of the trapezoidal rule of `mean_sigmoid`, and the weights, which include the density."""
    point = STEP * np.arange(round(-42 / STEP), round(42 / STEP) + 1)
    return point, STEP * 0.5 / (1 + np.cosh(point))


def _mean_and_slope(logit: float, temperature: float) -> tuple[float, float]:
    """Return the mean of a mask before it is divided by its mean, and the derivative of the mean's logarithm."""
    point, weight = _rule()
    cold = 1 / temperature
    # for a stretch above 1, the roles of both logistic variables are exchanged, as in `mean_sigmoid`
    stretch, shift = (temperature, logit) if cold > 1 else (cold, logit * cold)
    share = 1 / (1 + np.exp(np.clip(-stretch * point - shift, -FAR, FAR)))
    mean = float(weight @ share)
    slope = float(weight @ (share * (1 - share))) / mean
    return mean, slope if cold > 1 else slope * cold
