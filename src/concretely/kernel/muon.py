"""An update by Muon: momenta and moves of many matrices in one launch each, and the polynomial of Gram matrices."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .affine import tile
from .tile import ceil_div

BLOCK = 1024


@triton.jit
def _turned(at, columns: tl.constexpr, stride: tl.constexpr, LIES: tl.constexpr):
    """Return the place of an element in the matrix with no more rows than columns, transposed unless LIES."""
    i, j = at // columns, at % columns
    return i * stride + j if LIES else j * stride + i


@triton.jit
def _momentum(
    parameters, gradients, firsts, outs, rate, decay,
    rows: tl.constexpr, columns: tl.constexpr, spans: tl.constexpr, strides: tl.constexpr, MOMENTUM: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    member, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    lr, shrink = tl.load(rate + member).to(tl.float32), tl.load(decay + member).to(tl.float32)
    for t in tl.static_range(len(rows)):
        size = rows[t] * columns[t]
        blocks = tl.cdiv(size, BLOCK)
        if (block >= 0) & (block < blocks):
            at = block * BLOCK + tl.arange(0, BLOCK)
            mask, place = at < tl.where(lr != 0, size, 0), member * size + at
            slope = tl.load(gradients[t] + place, mask=mask, other=0.0)
            slope += shrink * tl.load(parameters[t] + place, mask=mask, other=0.0)
            first = MOMENTUM * tl.load(firsts[t] + place, mask=mask, other=0.0) + slope
            tl.store(firsts[t] + place, first, mask=mask)
            out = outs[t] + member * spans[t] + _turned(at, columns[t], strides[t], rows[t] <= columns[t])
            tl.store(out, slope + MOMENTUM * first, mask=at < size)
        block -= blocks


def momentum_(
    parameters: list[Tensor], gradients: list[Tensor], firsts: list[Tensor], out: list[Tensor],
    rate: Tensor, decay: Tensor, *, momentum: float,
) -> None:  # fmt: skip
    """Add gradients to the momenta, and write the Nesterov momenta, with the gradients added once more, to `out`."""
    blocks, layout = _layout(parameters, out)
    _momentum[blocks, len(rate)](
        tuple(parameters), tuple(by.contiguous() for by in gradients), tuple(firsts), tuple(out), rate, decay,
        MOMENTUM=momentum, BLOCK=BLOCK, **layout,
    )  # fmt: skip


def _layout(parameters: list[Tensor], turned: list[Tensor]) -> tuple[int, dict[str, tuple[int, ...]]]:
    """Return the number of blocks of all matrices, their shapes, and the strides of those that may be transposed."""
    shapes = [parameter.shape for parameter in parameters]
    blocks = sum(ceil_div(rows * columns, BLOCK) for _, rows, columns in shapes)
    return blocks, {
        "rows": tuple(shape[1] for shape in shapes), "columns": tuple(shape[2] for shape in shapes),
        "spans": tuple(matrix.stride(0) for matrix in turned), "strides": tuple(matrix.stride(1) for matrix in turned),
    }  # fmt: skip


@triton.jit
def _move(
    parameters, steps, lengths, rate, rows: tl.constexpr, columns: tl.constexpr, spans: tl.constexpr,
    strides: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    lr = tl.load(rate + member).to(tl.float32)
    for t in tl.static_range(len(rows)):
        size = rows[t] * columns[t]
        blocks = tl.cdiv(size, BLOCK)
        if (block >= 0) & (block < blocks):
            at = block * BLOCK + tl.arange(0, BLOCK)
            mask = at < tl.where(lr != 0, size, 0)
            turned = _turned(at, columns[t], strides[t], rows[t] <= columns[t])
            step = tl.load(steps[t] + member * spans[t] + turned, mask=mask, other=0.0)
            place = parameters[t] + member * size + at
            tl.store(place, tl.load(place, mask=mask, other=0.0) - lr * lengths[t] * step, mask=mask)
        block -= blocks


def move_(parameters: list[Tensor], steps: list[Tensor], lengths: list[float], rate: Tensor) -> None:
    """Move matrices by the update directions `steps`, which may be transposed."""
    blocks, layout = _layout(parameters, steps)
    _move[blocks, len(rate)](tuple(parameters), tuple(steps), tuple(lengths), rate, BLOCK=BLOCK, **layout)


@triton.jit
def _polynomial(
    gram, out, size: tl.constexpr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr,
    PRODUCT: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    offset = tl.program_id(1).to(tl.int64) * size * size
    columns = tl.cdiv(size, WIDE)
    i = tl.program_id(0) // columns * HIGH + tl.arange(0, HIGH)
    j = tl.program_id(0) % columns * WIDE + tl.arange(0, WIDE)
    k = tl.arange(0, DEEP)
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for start in range(0, size, DEEP):
        inside = start + k < size
        left = gram + offset + i[:, None] * size + (start + k)[None, :]
        right = gram + offset + j[None, :] * size + (start + k)[:, None]  # the matrix is symmetric
        a = tl.load(left, mask=(i < size)[:, None] & inside[None, :], other=0.0)
        b = tl.load(right, mask=inside[:, None] & (j < size)[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRODUCT)
    place, mask = offset + i[:, None] * size + j[None, :], (i < size)[:, None] & (j < size)[None, :]
    result = C * total + B * tl.load(gram + place, mask=mask, other=0.0)
    tl.store(out + place, tl.where(i[:, None] == j[None, :], result + A, result), mask=mask)


def polynomial(gram: Tensor, coefficients: tuple[float, float, float], precision: str) -> Tensor:
    """Return the factor by which one round of Muon multiplies a matrix M, from its Gram matrix M Mᵀ."""
    count, size, _ = gram.shape
    gram, out = gram.contiguous(), gram.new_empty(gram.shape, dtype=torch.float32)
    (a, b, c), own = coefficients, tile(size, size, size, count)
    _polynomial[ceil_div(size, own.high) * ceil_div(size, own.wide), count](
        gram, out, size, A=a, B=b, C=c,
        PRODUCT=precision, HIGH=own.high, WIDE=own.wide, DEEP=own.deep, num_warps=own.warps, num_stages=own.stages,
    )  # fmt: skip
    return out
