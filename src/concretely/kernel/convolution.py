"""Convolutions of images and their gradients, one launch for all members, each with its own weights.

The channels of a pixel are neighbours in memory, and so are the pixels of a line. So the part of a line in a window is
a run of neighbours, which are read where they are: no window is ever copied. A convolution is a product of matrices,
the runs of all places times the weights. A transposed one has stride² kinds of places, which differ in their line and
column modulo the stride; the places of a kind are a convolution with a part of the weights. If it has fewer weights for
a pixel than the pixel has channels, every pixel is multiplied by all its weights once, and the products are summed.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from .affine import SUMMED, before_tanh, product
from .launch import Launched
from .layout import convolved_size, partial_sums, rows, sum_parts
from .tile import ceil_div, power

PLACES, CHANNELS, WEIGHTS = 128, 64, 128
"""The places, and at most so many channels, of which a program computes the output, and weights a gradient."""
DEEP, WARPS, STAGES = 32, 4, 3
"""The terms of a sum that a program adds at once, and its launch options."""
SUM_DEEP, SUM_WARPS, SUM_STAGES = 16, 2, 4
"""The same for the gradient of weights. Both its factors have the summed axis across lines of memory. Tensor cores take
them so in TF32 only by instructions for single warps, to which Triton resorts with fewer than four warps."""
BLOCK = 1024
"""The outputs for which a program sums products."""
BUSY, LEAST = 512, 512
"""The programs that keep a GPU busy, and the minimum number of places that one sums for the gradient of weights."""


@triton.jit
def _split(place, high, wide):
    """Return the point, the line and the column of a place, where places are numbered in that order."""
    return place // (high * wide), place // wide % high, place % wide


@triton.jit
def _pixels(
    x, point, line, column, down, k, is_place, is_term, high: tl.constexpr, wide: tl.constexpr, inputs: tl.constexpr
):  # fmt: skip
    """Load the numbers k of the runs that begin at some pixels, or `down` lines below, or 0 outside of the image."""
    at, lines = column[:, None] * inputs + k[None, :], line[:, None] + down
    inside = is_place[:, None] & is_term[None, :] & (lines >= 0) & (lines < high) & (at >= 0) & (at < wide * inputs)
    return tl.load(x + (point * high * wide * inputs)[:, None] + lines * (wide * inputs) + at, mask=inside, other=0.0)


@Launched
def _convolve(
    x, weight, bias, out, places,
    inputs: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
    outputs: tl.constexpr, out_high: tl.constexpr, out_wide: tl.constexpr, x_stride, bias_stride, out_stride,
    LINES: tl.constexpr, RUN: tl.constexpr, STEP: tl.constexpr, KINDS: tl.constexpr, PADDING: tl.constexpr,
    TRANSPOSED: tl.constexpr, TAPS: tl.constexpr, BIAS: tl.constexpr, PRODUCT: tl.constexpr,
    CHANNELS: tl.constexpr, PLACES: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """Compute the outputs of some channels at some places, which are of one of KINDS² kinds."""
    member, kind = tl.program_id(1).to(tl.int64), tl.program_id(2)
    columns: tl.constexpr = (outputs + CHANNELS - 1) // CHANNELS
    o = tl.program_id(0) % columns * CHANNELS + tl.arange(0, CHANNELS)
    place = tl.program_id(0) // columns * PLACES + tl.arange(0, PLACES)
    point, line, column = _split(place, (out_high + KINDS - 1) // KINDS, (out_wide + KINDS - 1) // KINDS)
    line, column = line * KINDS + kind // KINDS, column * KINDS + kind % KINDS
    is_place = (place < places) & (line < out_high) & (column < out_wide)
    if not TRANSPOSED:
        first_line, first_column, part = line * STEP - PADDING, column * STEP - PADDING, kind
    else:  # the last pixels of the window, and the weights of this kind
        first_line, first_column = (line + PADDING) // KINDS - LINES + 1, (column + PADDING) // KINDS - TAPS + 1
        part = (kind // KINDS + PADDING) % KINDS * KINDS + (kind % KINDS + PADDING) % KINDS
    x += member * x_stride
    weight += (member * KINDS * KINDS + part) * outputs * LINES * RUN  # neighbours are of one output
    terms: tl.constexpr = LINES * RUN
    blocks: tl.constexpr = (RUN + DEEP - 1) // DEEP
    steps: tl.constexpr = LINES * blocks if RUN % DEEP == 0 else (terms + DEEP - 1) // DEEP
    total = tl.zeros((PLACES, CHANNELS), tl.float32)
    for step in range(steps):
        if RUN % DEEP == 0:  # all terms at once are in one line
            down, k = step // blocks, step % blocks * DEEP + tl.arange(0, DEEP)
            term, is_term = down * RUN + k, k < RUN
        else:
            term = step * DEEP + tl.arange(0, DEEP)
            down, k, is_term = (term // RUN)[None, :], term % RUN, term < terms
        a = _pixels(x, point, first_line, first_column, down, k, is_place, is_term, high, wide, inputs)
        b = tl.load(
            weight + term[:, None] + o[None, :] * terms, mask=is_term[:, None] & (o < outputs)[None, :], other=0.0
        )
        if CHANNELS == 1:
            total += tl.sum(a * tl.trans(b), 1)[:, None]
        else:
            total = product(a, b, total, PRODUCT)
    if BIAS:
        total += tl.load(bias + member * bias_stride + o, mask=o < outputs, other=0.0)[None, :]
    at = (((point * out_high + line) * out_wide + column) * outputs)[:, None] + o[None, :]
    tl.store(out + member * out_stride + at, total, mask=is_place[:, None] & (o < outputs)[None, :])


def _convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, size: tuple[int, int], stride: int, padding: int,
    transposed: bool, product: str,
) -> Tensor:  # fmt: skip
    """Return the convolution of every member, with outputs of a size."""
    members, points, high, wide, inputs = x.shape
    outputs, kinds = weight.shape[2 if transposed else 1], stride if transposed else 1
    if transposed and weight[0, 0].numel() <= inputs:
        return _folded(x, weight, bias, size, stride, padding, product)
    weight = _by_kind(weight, kinds) if transposed else weight.permute(0, 1, 3, 4, 2).contiguous()
    lines, taps = weight.shape[-3:-1]
    x, bias = rows(x), None if bias is None else rows(bias)
    out = x.new_empty((members, points, *size, outputs), dtype=torch.float32)
    places = points * ceil_div(size[0], kinds) * ceil_div(size[1], kinds)
    deep = min(max(power(lines * taps * inputs), 16), DEEP)
    channels = 1 if outputs == 1 else min(max(power(outputs), 16), CHANNELS)
    grid = ceil_div(places, PLACES) * ceil_div(outputs, channels), members, kinds**2
    _convolve[grid](
        x, weight, x if bias is None else bias, out, places, inputs, high, wide, outputs, *size,
        x.stride(0), 0 if bias is None else bias.stride(0), out.stride(0),
        LINES=lines, RUN=taps * inputs, STEP=stride, KINDS=kinds, PADDING=padding, TRANSPOSED=transposed, TAPS=taps,
        BIAS=bias is not None, PRODUCT=product, CHANNELS=channels, PLACES=PLACES, DEEP=deep,
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out


def _by_kind(weight: Tensor, kinds: int) -> Tensor:
    """Return the weights of the places of each kind, from the first pixel of a window to the last."""
    high, wide = weight.shape[3:]
    weight = pad(weight, (0, -wide % kinds, 0, -high % kinds)) if high % kinds or wide % kinds else weight
    parts = weight.unflatten(4, (-1, kinds)).unflatten(3, (-1, kinds)).flip(3, 5)
    sorted_parts: Tensor = parts.permute(0, 4, 6, 2, 3, 5, 1).contiguous()
    return sorted_parts


@Launched
def _fold(
    parts, bias, out, numbers, high, wide, out_high, out_wide, bias_stride,
    outputs: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, STEP: tl.constexpr, PADDING: tl.constexpr,
    BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum the products that overlap at some outputs."""
    member, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    o, is_output = at % outputs, at < numbers
    point, line, column = _split(at // outputs, out_high, out_wide)
    line, column = line + PADDING, column + PADDING
    parts += member * (numbers // (out_high * out_wide * outputs)) * high * wide * HIGH * WIDE * outputs
    total = tl.zeros((BLOCK,), tl.float32)
    for up in tl.static_range((HIGH + STEP - 1) // STEP):
        for left in tl.static_range((WIDE + STEP - 1) // STEP):
            from_line, from_column = line // STEP - up, column // STEP - left
            i, j = line - from_line * STEP, column - from_column * STEP
            inside = (from_line >= 0) & (from_line < high) & (from_column >= 0) & (from_column < wide)
            place = (point * high + from_line) * wide + from_column
            mask = is_output & inside & (i < HIGH) & (j < WIDE)
            total += tl.load(parts + ((place * HIGH + i) * WIDE + j) * outputs + o, mask=mask, other=0.0)
    if BIAS:
        total += tl.load(bias + member * bias_stride + o, mask=is_output, other=0.0)
    tl.store(out + member * numbers + at, total, mask=is_output)


def _folded(
    x: Tensor, weight: Tensor, bias: Tensor | None, size: tuple[int, int], stride: int, padding: int, product: str
) -> Tensor:
    """Return a transposed convolution by products of pixels with all their weights."""
    (members, points, high, wide, _), (outputs, *window) = x.shape, weight.shape[2:]
    weight = weight.permute(0, 3, 4, 2, 1).flatten(1, 3)[..., None, None]
    parts = _convolved(x, weight, None, (high, wide), 1, 0, False, product)
    out, bias = parts.new_empty(members, points, *size, outputs), None if bias is None else rows(bias)
    numbers = points * size[0] * size[1] * outputs
    _fold[ceil_div(numbers, BLOCK), members](
        parts, parts if bias is None else bias, out, numbers, high, wide, *size, 0 if bias is None else bias.stride(0),
        outputs, HIGH=window[0], WIDE=window[1], STEP=stride, PADDING=padding, BIAS=bias is not None, BLOCK=BLOCK,
    )  # fmt: skip
    return out


@Launched
def _correlate(
    fine, coarse, out, places, steps, parts,
    inputs: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
    outputs: tl.constexpr, out_high: tl.constexpr, out_wide: tl.constexpr, fine_stride, coarse_stride,
    LINES: tl.constexpr, RUN: tl.constexpr, STEP: tl.constexpr, PADDING: tl.constexpr, PRODUCT: tl.constexpr,
    CHANNELS: tl.constexpr, WEIGHTS: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """Sum the products of the runs of fine pixels with the coarse pixels of their windows, over some places."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    columns: tl.constexpr = (outputs + CHANNELS - 1) // CHANNELS
    o = tl.program_id(0) % columns * CHANNELS + tl.arange(0, CHANNELS)
    term = tl.program_id(0) // columns * WEIGHTS + tl.arange(0, WEIGHTS)
    is_term, down, k = term < LINES * RUN, (term // RUN)[None, :], term % RUN
    fine += member * fine_stride
    total = tl.zeros((WEIGHTS, CHANNELS), tl.float32)
    for step in range(steps):
        place = (part * steps + step) * DEEP + tl.arange(0, DEEP)
        point, line, column = _split(place, out_high, out_wide)
        line, column, is_place = line * STEP - PADDING, column * STEP - PADDING, place < places
        a = _pixels(fine, point, line, column, down, k, is_place, is_term, high, wide, inputs)
        at = member * coarse_stride + (place * outputs)[:, None] + o[None, :]
        b = tl.load(coarse + at, mask=is_place[:, None] & (o < outputs)[None, :], other=0.0)
        total = product(tl.trans(a), b, total, PRODUCT)
    at = ((member * parts + part) * LINES * RUN + term)[:, None] * outputs + o[None, :]
    tl.store(out + at, total, mask=is_term[:, None] & (o < outputs)[None, :])


def _correlated(
    fine: Tensor, coarse: Tensor, window: tuple[int, int], stride: int, padding: int, product: str
) -> Tensor:
    """Return the gradient of the weights, by the images on the fine and on the coarse side of a convolution."""
    members, points, high, wide, inputs = fine.shape
    *size, outputs = coarse.shape[2:]
    fine, coarse, (lines, taps) = rows(fine), rows(coarse), window
    places, terms = points * size[0] * size[1], lines * taps * inputs
    channels, weights = (min(max(power(count), 16), most) for count, most in ((outputs, CHANNELS), (terms, WEIGHTS)))
    most = max(places // LEAST, 1)
    if members * most * ceil_div(outputs, channels) * ceil_div(terms, weights) < BUSY:
        weights = max(weights // 2, 16)
    tiles = ceil_div(outputs, channels) * ceil_div(terms, weights)
    parts = min(ceil_div(BUSY, tiles * members), most)
    steps = ceil_div(ceil_div(places, SUM_DEEP), parts)
    out = partial_sums(parts, (members, lines, taps, inputs, outputs), fine, torch.float32)
    warps = SUM_WARPS if product == "tf32" else WARPS
    _correlate[tiles, members, parts](
        fine, coarse, out, places, steps, parts, inputs, high, wide, outputs, *size, fine.stride(0), coarse.stride(0),
        LINES=lines, RUN=taps * inputs, STEP=stride, PADDING=padding, PRODUCT=product,
        CHANNELS=channels, WEIGHTS=weights, DEEP=SUM_DEEP, num_warps=warps, num_stages=SUM_STAGES,
    )  # fmt: skip
    return sum_parts(out, parts, torch.float32).permute(0, 4, 3, 1, 2).contiguous()


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, extra: int, transposed: bool,
    product: str,
) -> Tensor:  # fmt: skip
    """Return the convolution of the images of every member with its own weights."""
    size = convolved_size(x, weight, stride, padding, extra, transposed)
    return _convolved(x, weight, bias, size, stride, padding, transposed, product)


def convolution_backward(by: Any, needs: Any, inputs: Any, outputs: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of the images, the weights and the biases."""
    (by_out,), (x, weight, _, stride, padding, _, transposed, product) = by, inputs
    how = stride, padding
    by_x = _convolved(by_out, weight, None, x.shape[2:4], *how, not transposed, product) if needs[0] else None
    fine, coarse = (by_out, x) if transposed else (x, by_out)
    by_weight = _correlated(fine, coarse, weight.shape[3:], *how, product) if needs[1] else None
    return by_x, by_weight, _by_bias(by_out) if needs[2] else None


def _by_bias(by_out: Tensor) -> Tensor:
    """Return the sums over all pixels, several of which are a row if they have few channels."""
    members, *places, outputs = by_out.shape
    together = math.gcd(math.prod(places), max(SUMMED[1] // outputs, 1))
    by_rows = by_out.reshape(members, -1, together * outputs)
    sums = before_tanh(by_rows, by_rows, False)[1]
    return sums.view(members, together, outputs).sum(1) if together > 1 else sums
