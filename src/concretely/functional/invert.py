"""The noise behind a value, computed in float64 to avoid cancellation."""

from typing import Any

import torch
from torch import Tensor

from .cast import cast, to_float64
from .temperature import Temperature

MILD = 2.0
"""Up to this temperature the terms of a log density have one sign, so that float32 suffices for their sum."""


def invert_noise(value: Tensor, logits: Tensor, temperature: Temperature, *, up_to_shift: bool = False) -> Tensor:
    """Return temperature times value minus logits, computed in float64 since the terms may cancel.

    `up_to_shift` subtracts the smallest entry of the last axis, which keeps the result precise for any normaliser.

    >>> invert_noise(torch.tensor(1e4), torch.tensor(9999.0), 1.0)
    tensor(1.)
    """
    if is_narrow(value, logits, temperature) and not torch.compiler.is_compiling():
        result: Tensor = _InvertNoise.apply(value, logits, temperature, up_to_shift)  # type: ignore[no-untyped-call]
        return result
    noise = temperature * to_float64(value) - to_float64(logits)
    noise = noise - noise.detach().amin(-1, keepdim=True) if up_to_shift else noise
    return noise.to(torch.float32) if is_narrow(value, logits, temperature) else noise


def is_transformed() -> bool:
    """Return whether a compiler or a transform of `torch.func` is active."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def is_narrow(value: Tensor, logits: Tensor, temperature: Temperature) -> bool:
    """Return whether float32 noise suffices for the log density."""
    is_mild = isinstance(temperature, float) and temperature <= MILD
    return is_mild and value.dtype.itemsize < 8 and logits.dtype.itemsize < 8


def narrow(value: Tensor, logits: Tensor, temperature: float) -> Tensor:
    """Return the noise in float64, for narrower inputs."""
    return to_float64(value).mul_(temperature) - to_float64(logits)


def keep(ctx: Any, value: Tensor, logits: Tensor, temperature: float) -> None:
    """Save the metadata that the derivatives of the noise need."""
    ctx.temperature = temperature
    ctx.value, ctx.logits = (value.shape, value.dtype), (logits.shape, logits.dtype)


def pull(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of the value and the logits, from the gradient of the noise."""
    by_value = by_logits = None
    if ctx.needs_input_grad[0]:
        by_value = cast((ctx.temperature * grad).sum_to_size(ctx.value[0]), ctx.value[1])
    if ctx.needs_input_grad[1]:
        by_logits = cast(-grad.sum_to_size(ctx.logits[0]), ctx.logits[1])
    return by_value, by_logits


def push(ctx: Any, by_value: Tensor | None, by_logits: Tensor | None) -> Tensor:
    """Return the tangent of the noise, from the tangents of the value and the logits."""
    moved = 0 if by_value is None else ctx.temperature * by_value.to(torch.float32)
    drawn = 0 if by_logits is None else by_logits.to(torch.float32)
    shape = torch.broadcast_shapes(ctx.value[0], ctx.logits[0])
    return torch.as_tensor(moved - drawn).expand(shape)


class _InvertNoise(torch.autograd.Function):
    """Float32 noise, computed in float64."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, logits: Tensor, temperature: float, up_to_shift: bool) -> Tensor:
        noise = narrow(value, logits, temperature)
        return (noise.sub_(noise.amin(-1, keepdim=True)) if up_to_shift else noise).to(torch.float32)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float, bool], output: Tensor) -> None:
        keep(ctx, *inputs[:3])

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, ...]:
        return *pull(ctx, grad[0]), None, None

    @staticmethod
    def jvp(ctx: Any, *tangent: Tensor | None) -> Tensor:
        return push(ctx, *tangent[:2])
