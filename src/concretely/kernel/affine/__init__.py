"""Affine maps of many members at once, with or without tanh behind them.

Products are as precise as `torch.set_float32_matmul_precision` says. At "highest" torch's own are used. While a
`ledger` is open, gradients of weights and biases are not worked out but left as their factors, for an optimiser that
multiplies them where it uses them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..operator import is_fast, operator
from . import naive

FEW, MANY = 256, 128
"""Up to so few rows of all members together, both gradients are worked out in one launch.

With more than so many rows a member, the gradient of a weight costs more than to write it down, and torch multiplies
faster.
"""

PRODUCTS = {"high": "tf32", "medium": "bfloat16"}


class Factors(NamedTuple):
    """The gradient of a weight, as the product of what came in and of the gradient of what went out."""

    x: Float[Tensor, "members rows inputs"]
    by_total: Float[Tensor, "members rows outputs"]


Ledger = dict[int, Factors]
"""The factors of every weight, by the address of its first number."""

_open: ContextVar[Ledger | None] = ContextVar("ledger", default=None)


@contextmanager
def ledger() -> Iterator[Ledger]:
    """Have the gradients of weights and biases entered here as factors, each weight being used once."""
    entries: Ledger = {}
    token = _open.set(entries)
    try:
        yield entries
    finally:
        _open.reset(token)


def suits(x: Tensor, weight: Tensor) -> bool:
    """Whether there is a fast path for a map: on a GPU, in float32, with products that need not be as precise.

    The compiler has its own.
    """
    if torch.compiler.is_compiling() or not is_fast(weight) or not x.dtype == weight.dtype == torch.float32:
        return False
    return torch.get_float32_matmul_precision() in PRODUCTS and not torch.is_autocast_enabled(x.device.type)


def affine(
    x: Float[Tensor, "members rows inputs"],
    weight: Float[Tensor, "members outputs inputs"],
    bias: Float[Tensor, "members outputs"],
    tanh: bool,
) -> Float[Tensor, "members rows outputs"]:
    """The map of every member, on its own rows."""
    found: Tensor = _affine(x, weight, bias, tanh)
    return found


@operator("affine")
def _affine(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    if suits(x, weight):
        from . import triton

        return triton.affine(x, weight, bias, tanh, PRODUCTS[torch.get_float32_matmul_precision()])
    return naive.affine(x, weight, bias, tanh)


@_affine.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    return x.new_empty((*x.shape[:2], weight.shape[1]))


@operator("affine_backward")
def _affine_backward(
    by_out: Tensor, x: Tensor, weight: Tensor, out: Tensor, tanh: bool, by_input: bool
) -> tuple[Tensor, Tensor, Tensor]:
    if suits(x, weight) and x.shape[0] * x.shape[1] <= FEW:
        from . import triton

        product = PRODUCTS[torch.get_float32_matmul_precision()]
        return triton.affine_backward(by_out, x, weight, out, tanh, product, by_input)
    by_total, by_bias = _before_tanh(by_out, out, tanh)
    by_x = torch.bmm(by_total, weight) if by_input else x.new_empty((len(x), 0, x.shape[2]))
    return by_x, torch.bmm(by_total.mT, x), by_bias


def _before_tanh(by_out: Tensor, out: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """The gradient of what goes into tanh, and that of the bias."""
    if is_fast(out) and out.dtype == torch.float32:
        from . import triton

        return triton.before_tanh(by_out, out, tanh)
    by_total = naive.by_total(by_out, out, tanh)
    return by_total, by_total.sum(1).contiguous()


@_affine_backward.register_fake
def _(
    by_out: Tensor, x: Tensor, weight: Tensor, out: Tensor, tanh: bool, by_input: bool
) -> tuple[Tensor, Tensor, Tensor]:
    by_x = x.new_empty((len(x), x.shape[1] if by_input else 0, x.shape[2]))
    return by_x, weight.new_empty(weight.shape), x.new_empty(weight.shape[:2])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, ctx.tanh = inputs
    ctx.entries = _open.get()  # now, as gradients are worked out in a thread of their own
    ctx.save_for_backward(x, weight, output)


def _pull(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, out = ctx.saved_tensors
    by_input = ctx.needs_input_grad[0]
    if torch.is_grad_enabled():  # the gradient is to be differentiated again
        return *naive.affine_backward(by_out, x, weight, out, ctx.tanh), None
    entries, ctx.entries = ctx.entries, None  # or both would keep each other alive, and with them a stream
    if entries is None or x.shape[1] > MANY or x.shape[0] * x.shape[1] <= FEW:
        by_x, by_weight, by_bias = _affine_backward(by_out, x, weight, out, ctx.tanh, by_input)
        return by_x if by_input else None, by_weight, by_bias, None
    by_total = naive.by_total(by_out, out, ctx.tanh).contiguous()
    entries[weight.data_ptr()] = Factors(x.detach(), by_total)
    return torch.bmm(by_total, weight) if by_input else None, None, None, None


_affine.register_autograd(_pull, setup_context=_keep)
