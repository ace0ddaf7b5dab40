"""The noise behind a value, recovered without cancellation: where a log density begins."""

from typing import Any

import torch
from torch import Tensor

from .cast import WIDE, cast, wide, working
from .temperature import Temperature

MILD = 2.0
"""Up to this temperature the terms of a log density have one sign, so that float32 loses nothing in their sum."""


def recover(value: Tensor, logits: Tensor, temperature: Temperature, *, up_to_shift: bool = False) -> Tensor:
    """The temperature times the value less the logits, in float64, rounded to the dtype that scores need.

    The difference may be small beside its terms. Up to a shift, that is, less the smallest entry of the last axis, it
    stays precise beside a normaliser of any size.

    >>> recover(torch.tensor(1e4), torch.tensor(9999.0), 1.0)
    tensor(1.)
    """
    dtype = WIDE
    if isinstance(temperature, float) and temperature <= MILD:
        dtype = working(torch.promote_types(logits.dtype, value.dtype))
    if dtype != WIDE and not torch.compiler.is_compiling():
        noise: Tensor = _Recover.apply(value, logits, temperature, up_to_shift)  # type: ignore[no-untyped-call]
        return noise
    noise = temperature * wide(value) - wide(logits)
    return (noise - noise.detach().amin(-1, keepdim=True) if up_to_shift else noise).to(dtype)


class _Recover(torch.autograd.Function):
    """The recovery of float32 noise, whose gradients need no float64."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, logits: Tensor, temperature: float, up_to_shift: bool) -> Tensor:
        noise = wide(value).mul_(temperature) - wide(logits)  # the value is narrower, so that this is a copy
        return (noise.sub_(noise.amin(-1, keepdim=True)) if up_to_shift else noise).to(torch.float32)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float, bool], output: Tensor) -> None:
        value, logits, ctx.temperature, _ = inputs
        ctx.shape = output.shape
        ctx.value, ctx.logits = (value.shape, value.dtype), (logits.shape, logits.dtype)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, ...]:
        by_value = by_logits = None
        if ctx.needs_input_grad[0]:
            by_value = cast((ctx.temperature * grad[0]).sum_to_size(ctx.value[0]), ctx.value[1])
        if ctx.needs_input_grad[1]:
            by_logits = cast(-grad[0].sum_to_size(ctx.logits[0]), ctx.logits[1])
        return by_value, by_logits, None, None

    @staticmethod
    def jvp(ctx: Any, *tangent: Tensor | None) -> Tensor:
        moved = 0 if tangent[0] is None else ctx.temperature * tangent[0].to(torch.float32)
        drawn = 0 if tangent[1] is None else tangent[1].to(torch.float32)
        return torch.as_tensor(moved - drawn).expand(ctx.shape)
