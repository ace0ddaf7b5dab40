"""Arithmetic that is wider than the values it makes, which are rounded once and to a finite number."""

from typing import Any

import torch
from torch import Tensor

WIDE = torch.float64


class _Saturate(torch.autograd.Function):
    """Conversion that stops at the largest finite number of the narrower dtype, forwards and backwards."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype.itemsize < value.dtype.itemsize:
            edge = torch.finfo(dtype).max
            value = torch.where(value.isinf(), value, value.clamp(-edge, edge))  # a limit stays a limit
        return value.to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:
        ctx.dtype, ctx.target = inputs[0].dtype, inputs[1]

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None]:
        return cast(grad[0], ctx.dtype), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return cast(tangent, ctx.target)


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert without overflow.

    Only float16 is narrow enough for ordinary nodes, densities and gradients to leave its range.
    """
    if value.dtype == dtype:
        return value
    if torch.float16 in (value.dtype, dtype):
        saturated: Tensor = _Saturate.apply(value, dtype)  # type: ignore[no-untyped-call]
        return saturated
    return value.to(dtype)


def to_float64(value: Tensor) -> Tensor:
    """A tensor in float64, the dtype in which given values are scored."""
    return cast(value, WIDE)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of noise and of what is computed from it: at least float32."""
    return dtype if dtype.itemsize > 2 else torch.float32


def cast_in_order(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to a narrow dtype without making another entry of the last axis as large as the largest.

    A tenth of the draws of a warm variable with a thousand categories would end in such a tie in bfloat16, and the
    category of their argmax be that which happens to come first.
    """
    narrow = cast(value, dtype)
    if dtype.itemsize > 2:
        return narrow
    largest = narrow.detach().amax(-1, keepdim=True)
    below = cast(
        to_float64(largest) - 0.75 * torch.finfo(dtype).eps * to_float64(largest).abs(), dtype
    )  # the number before it
    first = torch.arange(value.shape[-1], device=value.device) == value.argmax(-1, keepdim=True)
    ordered = torch.where(first, narrow, torch.minimum(narrow, below))
    return narrow + (ordered - narrow).detach()
