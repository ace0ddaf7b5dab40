"""An affine map with optional tanh in one pass, and its gradients in another."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .deferred import gradient_of_weight, multiplied
from .launch import Launched
from .layout import partial_sums, rows, sum_parts
from .native import tanh_half
from .tile import ceil_div

FEW = 256
"""Up to this number of rows of all members together, all gradients are computed in one launch."""

PROGRAMS = 128
"""About the number of multiprocessors of a GPU. Tiles are made smaller so that none is idle."""


SUMMED, SUMS, STEPS = (64, 64), 1024, 8
"""For sums of gradients: the rows and columns that a program sums at once, the maximum number of programs, and the
minimum number of blocks per program before a second launch adds the partial sums."""


class Tile(NamedTuple):
    """The part of a product that one program computes, and its launch options."""

    high: int
    wide: int
    deep: int
    warps: int
    stages: int


def tile(high: int, wide: int, deep: int, members: int) -> Tile:
    """Return a tile for the product of a (high, deep) and a (deep, wide) matrix."""
    for shape in ((128, 128), (64, 128), (64, 64), (64, 32), (32, 32), (32, 16), (16, 16)):
        programs = ceil_div(high, shape[0]) * ceil_div(wide, shape[1]) * members
        if programs >= PROGRAMS and shape[0] < 2 * high and shape[1] < 2 * wide:
            break
    size = shape[0] * shape[1]
    return Tile(*shape, 64 if size <= 4096 and deep > 256 else 32, 8 if size >= 16384 else 4, 4 if size <= 4096 else 3)


@Launched
def _affine(
    x, weight, bias, out, high, wide: tl.constexpr, deep: tl.constexpr, x_stride, weight_stride, bias_stride,
    TANH: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    columns = tl.cdiv(wide, WIDE)
    i = tl.program_id(0) // columns * HIGH + tl.arange(0, HIGH)
    j = tl.program_id(0) % columns * WIDE + tl.arange(0, WIDE)
    k = tl.arange(0, DEEP)
    left = x + member * x_stride + i[:, None].to(tl.int64) * deep + k[None, :]
    right = weight + member * weight_stride + j[None, :] * deep + k[:, None]
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for start in range(0, deep, DEEP):
        inside = start + k < deep
        a = tl.load(left + start, mask=(i < high)[:, None] & inside[None, :], other=0.0)
        b = tl.load(right + start, mask=inside[:, None] & (j < wide)[None, :], other=0.0)
        total = product(a, b, total, PRODUCT)
    total += tl.load(bias + member * bias_stride + j, mask=j < wide, other=0.0)[None, :]
    if TANH:
        total = tanh_half(2 * total)
    place = out + member * high * wide + i[:, None].to(tl.int64) * wide + j[None, :]
    tl.store(place, total, mask=(i < high)[:, None] & (j < wide)[None, :])


@triton.jit
def product(a, b, total, PRODUCT: tl.constexpr):
    """Return the total plus the product of two tiles, computed in the precision PRODUCT."""
    if PRODUCT == "bfloat16":
        result = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
    else:
        result = tl.dot(a, b, total, input_precision=PRODUCT)
    return result


def affine(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool, product: str, deferred: bool = False) -> Tensor:
    """Return the affine map of every member, applied to its own rows."""
    (members, high, deep), wide = x.shape, weight.shape[1]
    x, weight, bias = rows(x), rows(weight.bfloat16() if product == "bfloat16" else weight), rows(bias)
    dtype = torch.bfloat16 if tanh and product == "bfloat16" else torch.float32
    out = x.new_empty((members, high, wide), dtype=dtype)
    size = tile(high, wide, deep, members)
    grid = (ceil_div(high, size.high) * ceil_div(wide, size.wide), members)
    _affine[grid](
        x, weight, bias, out, high, wide, deep, x.stride(0), weight.stride(0), bias.stride(0),
        TANH=tanh, HIGH=size.high, WIDE=size.wide, DEEP=size.deep, PRODUCT=product,
        num_warps=size.warps, num_stages=size.stages,
    )  # fmt: skip
    return out


@triton.jit
def _slope(by_out, out, place, mask, TANH: tl.constexpr):
    """Return the gradient with respect to the input of tanh, or of the output if there is no tanh."""
    slope = tl.load(by_out + place, mask=mask, other=0.0).to(tl.float32)
    if TANH:
        value = tl.load(out + place, mask=mask, other=0.0).to(tl.float32)
        slope *= 1 - value * value
    return slope


@triton.jit
def _by_factor(
    place, by_out, out, other, by_factor, by_bias, high, wide: tl.constexpr, deep: tl.constexpr,
    WEIGHT: tl.constexpr, TANH: tl.constexpr, PRODUCT: tl.constexpr,
    ROWS: tl.constexpr, DEEP: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the gradient of the input, or of the weight and the bias: slopes times the other factor."""
    columns = tl.cdiv(deep, DEEP)
    i = place // columns * ROWS + tl.arange(0, ROWS)
    k = place % columns * DEEP + tl.arange(0, DEEP)
    along = tl.arange(0, STEP)
    mine = i < (wide if WEIGHT else high)
    total = tl.zeros((ROWS, DEEP), tl.float32)
    sums = tl.zeros((ROWS,), tl.float32)
    for start in range(0, high if WEIGHT else wide, STEP):
        j = start + along
        inside = j < (high if WEIGHT else wide)
        at = j[None, :] * wide + i[:, None] if WEIGHT else i[:, None] * wide + j[None, :]
        a = _slope(by_out, out, at, mine[:, None] & inside[None, :], TANH)
        b = tl.load(other + j[:, None] * deep + k[None, :], mask=inside[:, None] & (k < deep)[None, :], other=0.0)
        total = product(a, b, total, PRODUCT)
        if WEIGHT:
            sums += tl.sum(a, 1)
    tl.store(by_factor + i[:, None] * deep + k[None, :], total, mask=mine[:, None] & (k < deep)[None, :])
    if WEIGHT:  # noqa: SIM102 (a constant)
        if place % columns == 0:
            tl.store(by_bias + i, sums, mask=mine)


@Launched
def _affine_backward(
    by_out, x, weight, out, by_x, by_weight, by_bias,
    high, wide: tl.constexpr, deep: tl.constexpr, by_stride, x_stride, weight_stride, out_stride, first,
    TANH: tl.constexpr, PRODUCT: tl.constexpr, HIGH: tl.constexpr, DEEP: tl.constexpr, STEP: tl.constexpr,
    WIDE: tl.constexpr, LONG: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the input in the first programs, in HIGH by DEEP tiles, and of the weight in the rest."""
    member, place = tl.program_id(1).to(tl.int64), tl.program_id(0)
    by_out += member * by_stride
    out += member * out_stride
    if place < first:
        _by_factor(
            place, by_out, out, weight + member * weight_stride, by_x + member * high * deep, by_bias,
            high, wide, deep, False, TANH, PRODUCT, HIGH, DEEP, STEP,
        )  # fmt: skip
    else:
        _by_factor(
            place - first, by_out, out, x + member * x_stride, by_weight + member * wide * deep,
            by_bias + member * wide, high, wide, deep, True, TANH, PRODUCT, WIDE, LONG, STRIDE,
        )  # fmt: skip


def affine_backward(by: Any, needs: Any, inputs: Any, outputs: Any) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the gradients of the input (None if not needed), of the weight and of the bias."""
    (by_out,), (x, weight, _, tanh, product, deferred), (out,) = by, inputs, outputs
    if x.shape[0] * x.shape[1] <= FEW:
        by_x, by_weight, by_bias = gradients(by_out, x, weight, out, tanh, product, needs[0])
        return by_x if needs[0] else None, by_weight, by_bias
    before, by_bias = before_tanh(by_out, out, tanh)
    by_total = before if tanh else by_out.contiguous()
    by_input = multiplied(by_total, weight, x.dtype) if needs[0] else None
    return by_input, gradient_of_weight(x, by_total, deferred=deferred), by_bias


def gradients(
    by_out: Tensor, x: Tensor, weight: Tensor, out: Tensor, tanh: bool, product: str, by_input: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the input (empty without `by_input`), the weight and the bias, by one launch."""
    (members, high, deep), wide = x.shape, weight.shape[1]
    by_out, x, weight, out = rows(by_out), rows(x), rows(weight), rows(out)
    by_x = x.new_empty((members, high if by_input else 0, deep), dtype=torch.float32)
    by_weight = x.new_empty((members, wide, deep), dtype=torch.float32)
    by_bias = x.new_empty((members, wide), dtype=torch.float32)
    one, two = tile(high, deep, wide, members), tile(wide, deep, high, members)
    first = ceil_div(high, one.high) * ceil_div(deep, one.wide) if by_input else 0
    grid = (first + ceil_div(wide, two.high) * ceil_div(deep, two.wide), members)
    _affine_backward[grid](
        by_out, x, weight, out, by_x, by_weight, by_bias,
        high, wide, deep, by_out.stride(0), x.stride(0), weight.stride(0), out.stride(0), first,
        TANH=tanh, PRODUCT=product, HIGH=one.high, DEEP=one.wide, STEP=one.deep,
        WIDE=two.high, LONG=two.wide, STRIDE=two.deep, num_warps=max(one.warps, two.warps), num_stages=two.stages,
    )  # fmt: skip
    return by_x, by_weight, by_bias


@Launched
def _before_tanh(
    by_out, out, by_total, sums, high, wide, by_stride, out_stride, parts, steps,
    TANH: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    member, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    by_out += member * by_stride
    out += member * out_stride
    by_total += member * high * wide
    j = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    total = tl.zeros((HIGH, WIDE), tl.float32)
    i = part * steps * HIGH + tl.arange(0, HIGH)
    for _ in range(steps):
        place, mask = i[:, None].to(tl.int64) * wide + j[None, :], (i < high)[:, None] & (j < wide)[None, :]
        slope = _slope(by_out, out, place, mask, TANH)
        if TANH:
            tl.store(by_total + place, slope, mask=mask)
        total += slope
        i += HIGH
    tl.store(sums + (member * parts + part) * wide + j, tl.sum(total, 0), mask=j < wide)


def before_tanh(by_out: Tensor, out: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """Return the gradient of the input of tanh (empty without tanh), and that of the bias, its sum over rows."""
    members, high, wide = out.shape
    by_out, out = rows(by_out), rows(out)
    by_total = out.new_empty((members, high if tanh else 0, wide))
    columns, blocks = ceil_div(wide, SUMMED[1]), ceil_div(high, SUMMED[0])
    steps = max(ceil_div(blocks, max(1, SUMS // (columns * members))), min(blocks, STEPS))
    parts = ceil_div(blocks, steps)
    sums = partial_sums(parts, (members, wide), by_out, torch.float32)
    _before_tanh[columns, parts, members](
        by_out, out, by_total, sums, high, wide, by_out.stride(0), out.stride(0), parts, steps,
        TANH=tanh, HIGH=SUMMED[0], WIDE=SUMMED[1],
    )  # fmt: skip
    return by_total, sum_parts(sums, parts, torch.float32)
