"""Products of polynomials and their gradients, one pass over the coefficients each, also in float64."""

from typing import Any

import triton.language as tl
from torch import Tensor

from .launch import Launched
from .tile import ceil_div, power

ROWS = 16
"""The maximum number of coefficients of a program."""
BLOCK = 128
"""The number of polynomials of a program."""


@Launched
def _multiply(left, right, out, columns, lefts, rights, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    member = tl.program_id(2).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    first = tl.program_id(1) * ROWS
    row = first.to(tl.int64) + tl.arange(0, ROWS)[:, None]
    inside = column < columns
    left += member * lefts * columns
    right += member * rights * columns
    total = tl.zeros((ROWS, BLOCK), out.dtype.element_ty)
    for place in range(tl.minimum(lefts, first + ROWS)):  # higher powers are beyond the rows of this program
        one = tl.load(left + place * columns + column, mask=inside, other=0.0)
        rest = row - place
        mask = inside & (rest >= 0) & (rest < rights)
        total += one * tl.load(right + rest * columns + column, mask=mask, other=0.0)
    tl.store(out + (member * width + row) * columns + column, total, mask=inside & (row < width))


@Launched
def _correlate(by, factor, out, columns, bys, factors, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    member = tl.program_id(2).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
    first = tl.program_id(1) * ROWS
    row = first.to(tl.int64) + tl.arange(0, ROWS)[:, None]
    inside = column < columns
    by += member * bys * columns
    factor += member * factors * columns
    total = tl.zeros((ROWS, BLOCK), out.dtype.element_ty)
    for place in range(tl.minimum(factors, bys - first)):
        one = tl.load(factor + place * columns + column, mask=inside, other=0.0)
        mask = inside & (row + place < bys)
        total += one * tl.load(by + (row + place) * columns + column, mask=mask, other=0.0)
    tl.store(out + (member * width + row) * columns + column, total, mask=inside & (row < width))


def _launch(kernel: Any, one: Tensor, other: Tensor, width: int) -> Tensor:
    members, _, columns = one.shape
    out = one.new_empty((members, width, columns))
    if out.numel():
        block = min(power(width), ROWS)
        kernel[ceil_div(columns, BLOCK), ceil_div(width, block), members](
            one.contiguous(), other.contiguous(), out, columns, one.shape[1], other.shape[1], width,
            ROWS=block, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return out


def product(left: Tensor, right: Tensor, width: int) -> Tensor:
    """Return the first `width` coefficients of the products."""
    return _launch(_multiply, left, right, width)


def product_backward(
    by: tuple[Tensor], needs: tuple[bool, ...], inputs: tuple[Tensor, Tensor, int], outputs: tuple[Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of the factors."""
    left, right, _ = inputs
    by_left = correlation(by[0], right, left.shape[1]) if needs[0] else None
    return by_left, correlation(by[0], left, right.shape[1]) if needs[1] else None


def correlation(by: Tensor, factor: Tensor, width: int) -> Tensor:
    """Return the gradient of the products by their other factor."""
    return _launch(_correlate, by, factor, width)


def correlation_backward(
    by: tuple[Tensor], needs: tuple[bool, ...], inputs: tuple[Tensor, Tensor, int], outputs: tuple[Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of the gradient and of the factor."""
    product_by, factor, _ = inputs
    by_by = product(by[0], factor, product_by.shape[1]) if needs[0] else None
    return by_by, correlation(product_by, by[0], factor.shape[1]) if needs[1] else None
