r"""Inputs times a relaxed mask of mean 1, as one autograd node: concrete dropout.

$$x \, σ((L + \log α) / λ) / E[σ((L + \log α) / λ)]$$
"""

from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..kernel.operator import is_plain, is_watched, plain_apply
from . import logistic
from .arithmetic import Temperature, cast, scalar
from .fused import pulled_again, runs_kernel
from .integral import STEP, mean_sigmoid
from .key import Key, kernel_key, key_tensor
from .noise import Source

FAR = 650.0
"""Beyond this logit, exponentials at the points of the trapezoidal rule may overflow in float64."""


def drop(
    x: Float[Tensor, "*shape"],
    logit: Float[Tensor, "..."],
    temperature: Temperature,
    noise: Float[Tensor, "*mask"],
) -> Float[Tensor, "*shape"]:
    """Multiply inputs by masks of mean 1, made from the log-odds of dropping an input and from logistic noise."""
    is_number = isinstance(temperature, float) and x.is_cpu and logit.is_cpu
    if is_number and is_plain((x, logit, noise)) and not is_watched():
        return _DROP(x, logit, noise, temperature)
    return defined(x, logit, noise, temperature)


def dropped_by_kernel(
    x: Float[Tensor, "*shape"], logit: Float[Tensor, " 1"], temperature: Temperature, generator: Source | None
) -> Float[Tensor, "*shape"] | None:
    """Return inputs times masks, with a mask for every input, or None if a kernel cannot run."""
    if isinstance(temperature, Tensor) or not x.is_cuda or not is_plain((x, logit)) or is_watched():
        return None
    if not runs_kernel("dropout", x, logit, generator):
        return None
    return _DROP_BY_KERNEL(x, logit, kernel_key(generator, x.device), temperature)


def defined(x: Tensor, logit: Tensor, noise: Tensor, temperature: Temperature) -> Tensor:
    """Return inputs times masks made from noise: the definition."""
    cold = 1 / torch.as_tensor(temperature, dtype=logit.dtype, device=x.device)
    mask = torch.sigmoid((noise - logit) * cold) / mean_sigmoid(cold, -logit * cold)
    return x * cast(mask, x.dtype)


class _Drop(torch.autograd.Function):
    """`drop` on the CPU, for one number as the temperature."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, logit: Tensor, noise: Tensor, temperature: float) -> Tensor:
        ctx.temperature, (ctx.mean, ctx.slope) = temperature, _mean_and_slope(-logit.item(), temperature)
        share = torch.sub(noise, logit).div_(scalar(temperature)).sigmoid_()
        mask = share * torch.from_numpy(np.asarray(1 / ctx.mean))
        ctx.save_for_backward(x, logit, noise, share, mask)
        return x * cast(mask, x.dtype)

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, ...]:
        x, logit, noise, share, mask = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *pulled_again(defined, (x, logit), by[0], noise, ctx.temperature), None, None
        by_x, by_logit = by[0] * cast(mask, by[0].dtype), None
        if ctx.needs_input_grad[1]:
            pulled = cast(by[0], share.dtype) * x
            pulled = pulled if pulled.shape == share.shape else pulled.sum_to_size(share.shape)
            # the logarithm of the mask has the derivative σ(-node) / λ minus that of the mean's logarithm
            risen, whole = sigmoid_backward(pulled, share).sum().item(), pulled.mul_(share).sum().item()
            slope = (ctx.slope * whole - risen / ctx.temperature) / ctx.mean
            by_logit = torch.full_like(logit, slope)
        return by_x, by_logit, None, None


class _DropByKernel(torch.autograd.Function):
    """`drop` by a kernel, from a key."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, logit: Tensor, key: Key, temperature: float) -> Tensor:
        out, shares, moments = _kernel().draw(x, logit, key, temperature, *_stretch_and_scale(temperature))
        ctx.key, ctx.temperature = key, temperature
        ctx.save_for_backward(x, logit, shares, moments)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, ...]:
        x, logit, shares, moments = ctx.saved_tensors
        if torch.is_grad_enabled():
            noise = logistic.noise_of_key(key_tensor(ctx.key, x.device), 1, x.numel()).view(x.shape)
            return *pulled_again(defined, (x, logit), by[0], noise, ctx.temperature), None, None
        by_x, by_logit = _kernel().pull(by[0], x, shares, moments, ctx.temperature, ctx.needs_input_grad[:2])
        return by_x, None if by_logit is None else cast(by_logit, logit.dtype), None, None


_DROP: Callable[..., Tensor] = plain_apply(_Drop)
_DROP_BY_KERNEL: Callable[..., Tensor] = plain_apply(_DropByKernel)
sigmoid_backward = torch.ops.aten.sigmoid_backward.default


@cache
def _kernel() -> ModuleType:
    return import_module("concretely.kernel.dropout")


@cache
def _rule() -> tuple[Any, Any]:
    """Return the points of the trapezoidal rule of `mean_sigmoid`, and the weights, which include the density.

    This integrand is analytic within ±iπ of the real line, so that steps of twice the length suffice.
    """
    step = 2 * STEP
    point = step * np.arange(round(-42 / step), round(42 / step) + 1)
    return point, step * 0.5 / (1 + np.cosh(point))


def _stretch_and_scale(temperature: float) -> tuple[float, float]:
    """Return the factors of the points and of the logit in the integrand.

    For a stretch above 1, the roles of both logistic variables are exchanged, as in `mean_sigmoid`.
    """
    return (temperature, 1.0) if temperature < 1 else (1 / temperature, 1 / temperature)


@lru_cache(maxsize=16)
def _points(stretch: float) -> Any:
    return _rule()[0] * -stretch


def _mean_and_slope(logit: float, temperature: float) -> tuple[float, float]:
    """Return the mean of a mask before it is divided by its mean, and the derivative of the mean's logarithm."""
    stretch, scale = _stretch_and_scale(temperature)
    node, weight = _points(stretch) - scale * logit, _rule()[1]
    if abs(scale * logit) > FAR:
        node = node.clip(-FAR - 50, FAR + 50)
    share = np.exp(node, out=node)
    share += 1
    np.reciprocal(share, out=share)
    weighted = weight * share
    mean = float(weight @ share)
    return mean, scale * (1 - float(weighted @ share) / mean)
