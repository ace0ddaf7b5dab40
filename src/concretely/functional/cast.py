"""Conversions between dtypes that do not overflow."""

from typing import Any

import torch
from torch import Tensor

WIDE = torch.float64


class _Saturate(torch.autograd.Function):
    """A conversion that clamps to the finite range of the narrower dtype, forwards and backwards."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype.itemsize < value.dtype.itemsize:
            edge = torch.finfo(dtype).max
            value = torch.where(value.isinf(), value, value.clamp(-edge, edge))  # infinities stay
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
    """Convert without overflow; conversions from and to float16 are clamped."""
    if value.dtype == dtype:
        return value
    if torch.float16 in (value.dtype, dtype):
        saturated: Tensor = _Saturate.apply(value, dtype)  # type: ignore[no-untyped-call]
        return saturated
    return value.to(dtype)


def to_float64(value: Tensor) -> Tensor:
    """Convert to float64."""
    return cast(value, WIDE)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of noise and intermediate results: at least float32."""
    return dtype if dtype.itemsize > 2 else torch.float32


def cast_in_order(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to a narrow dtype without changing the argmax over the last axis.

    Plain rounding to bfloat16 ties the largest entries of a tenth of the draws with a thousand categories.
    """
    narrow = cast(value, dtype)
    if dtype.itemsize > 2:
        return narrow
    largest = narrow.detach().amax(-1, keepdim=True)
    wide = to_float64(largest)
    below = cast(wide - 0.75 * torch.finfo(dtype).eps * wide.abs(), dtype)  # the next smaller number
    first = torch.arange(value.shape[-1], device=value.device) == value.argmax(-1, keepdim=True)
    ordered = torch.where(first, narrow, torch.minimum(narrow, below))
    return narrow + (ordered - narrow).detach()
