"""Affine maps of many members at once, with or without tanh behind them.

Products are as precise as `torch.set_float32_matmul_precision` says. At "highest" torch's own are used. While a
`ledger` is open, gradients of weights are left as their factors where these are smaller, for an optimiser that
multiplies them right before they are used.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import ceil
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..handwritten import is_fast, operator
from . import naive

FEW = 256
"""Up to so few rows of all members together, all gradients are worked out in one launch.

Up to so few of each, products of TF32 are as fast as those of bfloat16, to which weights would first be rounded.
"""

TILE = 64
"""The height and the width of what one part of a GPU works out of a product."""

ENOUGH = 832
"""So many tiles keep the largest GPU at work."""

DEEP = 2_048
"""So many bytes of a column are worth a tile of their own."""

PRODUCTS = {"high": "tf32", "medium": "bfloat16"}


class Factors(NamedTuple):
    """The gradient of a weight, as the product of what came in and of the gradient of what went out."""

    x: Float[Tensor, "members rows inputs"]
    by_total: Float[Tensor, "members rows outputs"]

    @property
    def product(self) -> Float[Tensor, "members outputs inputs"]:
        """The gradient, added up from those of parts of the rows where members alone would leave a GPU idle."""
        parts = self.parts
        if parts == 1:
            return multiplied(self.by_total.mT, self.x)
        x, by_total = (factor.view(-1, factor.shape[1] // parts, factor.shape[2]) for factor in self)
        product = multiplied(by_total.mT, x)
        return product.view(-1, parts, *product.shape[1:]).sum(1)

    @property
    def parts(self) -> int:
        """Into how many parts the rows are divided: twice as many as long as a GPU has too few tiles to work on."""
        (members, rows, inputs), outputs = self.x.shape, self.by_total.shape[2]
        tiles, deep = members * ceil(inputs / TILE) * ceil(outputs / TILE), DEEP // self.x.itemsize
        parts = 1
        # torch's library does it itself for one member
        if members > 1 and rows >= 4 * deep and is_fast(self.x) and all(factor.is_contiguous() for factor in self):
            while 2 * parts * tiles <= ENOUGH and rows % (2 * parts) == 0 and rows >= 2 * parts * deep:
                parts *= 2
        return parts

    @property
    def are_smaller(self) -> bool:
        """Whether they hold fewer numbers than their product."""
        (_, rows, inputs), outputs = self.x.shape, self.by_total.shape[2]
        return rows * (inputs + outputs) < inputs * outputs


Ledger = dict[int, Factors]
"""The factors of every weight, by the address of its first number."""

_open: ContextVar[Ledger | None] = ContextVar("ledger", default=None)


@contextmanager
def ledger() -> Iterator[Ledger]:
    """Have the gradients of weights entered here as factors where these are smaller, each weight being used once."""
    entries: Ledger = {}
    token = _open.set(entries)
    try:
        yield entries
    finally:
        _open.reset(token)


def opened() -> Ledger | None:
    """The ledger that is open; ask on the way forward, as gradients are worked out in a thread of their own."""
    return _open.get()


def suits(x: Tensor, weight: Tensor) -> bool:
    """Whether there is a fast path for a map: on a GPU, in float32, with products that need not be as precise.

    The compiler has its own.
    """
    if torch.compiler.is_compiling() or not is_fast(weight):
        return False
    if weight.dtype != torch.float32 or x.dtype not in (torch.float32, torch.bfloat16):
        return False
    return torch.get_float32_matmul_precision() in PRODUCTS and not torch.is_autocast_enabled(x.device.type)


def product_of(rows: int) -> str:
    """How the factors of a product are rounded, with so many rows of a member."""
    return PRODUCTS.get(torch.get_float32_matmul_precision() if rows > FEW else "high", "ieee")


def multiplied(
    one: Shaped[Tensor, "members rows inner"],
    other: Shaped[Tensor, "members inner columns"],
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "members rows columns"]:
    """A product of factors in the smaller dtype of both, summed in float32 at least.

    Only one of bfloat16 is rounded to the dtype that is asked for.
    """
    if one.dtype == other.dtype != torch.bfloat16:
        return torch.bmm(one, other)
    one, other = one.bfloat16(), other.bfloat16()
    if not one.is_cuda:
        return torch.bmm(one.float(), other.float()).to(dtype)
    return torch.bmm(one, other) if dtype == torch.bfloat16 else torch.bmm(one, other, out_dtype=dtype)


def affine(
    x: Float[Tensor, "members rows inputs"],
    weight: Float[Tensor, "members outputs inputs"],
    bias: Float[Tensor, "members outputs"],
    tanh: bool,
) -> Float[Tensor, "members rows outputs"]:
    """The map of every member, on its own rows.

    Where products are of bfloat16, so is what comes out of tanh, as it would be rounded in the next product.
    """
    found: Tensor = _affine(x, weight, bias, tanh, product_of(x.shape[1]) if suits(x, weight) else "ieee")
    return found


@operator("affine")
def _affine(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool, product: str) -> Tensor:
    if suits(x, weight):
        from . import triton

        return triton.affine(x, weight.bfloat16() if product == "bfloat16" else weight, bias, tanh, product)
    return naive.affine(x, weight, bias, tanh)


@_affine.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool, product: str) -> Tensor:
    dtype = torch.bfloat16 if tanh and product == "bfloat16" else weight.dtype
    return x.new_empty((*x.shape[:2], weight.shape[1]), dtype=dtype)


@operator("affine_backward")
def _affine_backward(
    by_out: Tensor, x: Tensor, weight: Tensor, out: Tensor, tanh: bool, by_input: bool
) -> tuple[Tensor, Tensor, Tensor]:
    if suits(x, weight):
        from . import triton

        return triton.affine_backward(by_out, x, weight, out, tanh, product_of(x.shape[1]), by_input)
    by_x, by_weight, by_bias = naive.affine_backward(by_out, x, weight, out, tanh)
    return by_x if by_input else by_x[:, :0], by_weight, by_bias


@_affine_backward.register_fake
def _(
    by_out: Tensor, x: Tensor, weight: Tensor, out: Tensor, tanh: bool, by_input: bool
) -> tuple[Tensor, Tensor, Tensor]:
    by_x = x.new_empty((len(x), x.shape[1] if by_input else 0, x.shape[2]))
    return by_x, weight.new_empty(weight.shape), x.new_empty(weight.shape[:2])


@operator("affine_before_tanh")
def _before_tanh(by_out: Tensor, out: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """The gradient of what goes into tanh, none if there is no tanh, and that of the bias."""
    if is_fast(out) and out.dtype != torch.float64:
        from . import triton

        return triton.before_tanh(by_out, out, tanh)
    by_total = naive.by_total(by_out, out, tanh)
    by_bias = by_total.sum(1).contiguous()
    return by_total.contiguous() if tanh else by_total.new_empty((len(out), 0, out.shape[2])), by_bias


@_before_tanh.register_fake
def _(by_out: Tensor, out: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    members, high, wide = out.shape
    return out.new_empty((members, high if tanh else 0, wide)), by_out.new_empty((members, wide), dtype=_wide(out))


def _wide(out: Tensor) -> torch.dtype:
    """The dtype of sums."""
    return torch.promote_types(out.dtype, torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, ctx.tanh, _ = inputs
    ctx.entries = opened()
    ctx.save_for_backward(x, weight, output)


def _pull(ctx: Any, by_out: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, out = ctx.saved_tensors
    by_input = ctx.needs_input_grad[0]
    if torch.is_grad_enabled():  # the gradient is to be differentiated again
        return *naive.affine_backward(by_out, x, weight, out, ctx.tanh), None, None
    entries, ctx.entries = ctx.entries, None  # or both would keep each other alive, and with them a stream
    by_x: Tensor | None
    by_weight: Tensor | None
    if x.shape[0] * x.shape[1] <= FEW:
        by_x, by_weight, by_bias = _affine_backward(by_out, x, weight, out, ctx.tanh, by_input)
    else:
        before, by_bias = _before_tanh(by_out, out, ctx.tanh)
        by_total = before if ctx.tanh else by_out.contiguous()
        by_x = multiplied(by_total, weight, x.dtype) if by_input else None
        by_weight = entered(entries, weight, Factors(x.detach(), by_total))
    return by_x if by_input else None, by_weight, by_bias, None, None


def entered(entries: Ledger | None, weight: Tensor, factors: Factors) -> Tensor | None:
    """The gradient of a weight, or none if its factors were entered instead."""
    if entries is None or not factors.are_smaller:
        return factors.product
    entries[weight.data_ptr()] = factors
    return None


_affine.register_autograd(_pull, setup_context=_keep)
