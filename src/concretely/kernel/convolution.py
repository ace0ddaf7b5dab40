"""Convolutions of images and their gradients, one launch for all members, each with its own weights.

A product of matrices computes each: the pixels under the window of every place, times the weights. The pixels are read
where they are, so that no window is ever copied to memory. Tiles have places along their first axis: where Triton does
not know which addresses are neighbours, neighbouring threads go along the first axis.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .affine import product
from .launch import Launched
from .layout import partial_sums, rows, sum_parts
from .tile import ceil_div, power

PLACES, DEEP = 128, 32
"""The places whose outputs a program computes, and the terms that it adds at once."""
CHANNELS = 64
"""The maximum number of channels that a program computes. Products need at least 16."""
WARPS, STAGES = 4, 3
"""The launch options of all kernels."""
BUSY, LEAST = 512, 512
"""The programs that keep a GPU busy, and the minimum number of places that one sums for the gradient of weights."""


@triton.jit
def _split(place, high: tl.constexpr, wide: tl.constexpr):
    """Return the point, the line and the column of a place, where places are numbered in that order."""
    return place // (high * wide), place // wide % high, place % wide


@Launched
def _convolve(
    x, weight, bias, out, places,
    inputs: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
    outputs: tl.constexpr, out_high: tl.constexpr, out_wide: tl.constexpr,
    x_stride, bias_stride, out_stride,
    KERNEL_HIGH: tl.constexpr, KERNEL_WIDE: tl.constexpr, TAPS_HIGH: tl.constexpr, TAPS_WIDE: tl.constexpr,
    STRIDE: tl.constexpr, PADDING: tl.constexpr, TRANSPOSED: tl.constexpr, BIAS: tl.constexpr, PRODUCT: tl.constexpr,
    CHANNELS: tl.constexpr, PLACES: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """Compute the outputs of some channels at some places.

    A transposed convolution has STRIDE² kinds of places, which differ in the line and column modulo STRIDE. A place
    gets TAPS_HIGH by TAPS_WIDE weights of every channel, which are the same for places of a kind. A program has places
    of one kind.
    """
    member, kind = tl.program_id(1).to(tl.int64), tl.program_id(2)
    columns = tl.cdiv(outputs, CHANNELS)
    o = tl.program_id(0) % columns * CHANNELS + tl.arange(0, CHANNELS)
    place = tl.program_id(0) // columns * PLACES + tl.arange(0, PLACES)
    if TRANSPOSED:
        point, line, column = _split(place, tl.cdiv(out_high, STRIDE), tl.cdiv(out_wide, STRIDE))
        to_line, to_column = line * STRIDE + kind // STRIDE, column * STRIDE + kind % STRIDE
        first_line, first_column = (to_line + PADDING) // STRIDE, (to_column + PADDING) // STRIDE
        skip_line, skip_column = (kind // STRIDE + PADDING) % STRIDE, (kind % STRIDE + PADDING) % STRIDE
    else:
        point, to_line, to_column = _split(place, out_high, out_wide)
        first_line, first_column = to_line * STRIDE - PADDING, to_column * STRIDE - PADDING
    is_place = (place < places) & (to_line < out_high) & (to_column < out_wide)
    pixels = x + member * x_stride + point * inputs * high * wide
    weight += member * KERNEL_HIGH * KERNEL_WIDE * outputs * inputs
    blocks: tl.constexpr = (inputs + DEEP - 1) // DEEP
    total = tl.zeros((PLACES, CHANNELS), tl.float32)
    for step in range(TAPS_HIGH * TAPS_WIDE * blocks):
        down, across = step // blocks // TAPS_WIDE, step // blocks % TAPS_WIDE
        i = step % blocks * DEEP + tl.arange(0, DEEP)
        is_input = i < inputs
        if TRANSPOSED:
            from_line, from_column = first_line - down, first_column - across
            down, across = skip_line + STRIDE * down, skip_column + STRIDE * across
            is_input = i < tl.where((down < KERNEL_HIGH) & (across < KERNEL_WIDE), inputs, 0)
        else:
            from_line, from_column = first_line + down, first_column + across
        inside = is_place & (from_line >= 0) & (from_line < high) & (from_column >= 0) & (from_column < wide)
        at = (from_line * wide + from_column)[:, None] + (i * high * wide)[None, :]
        a = tl.load(pixels[:, None] + at, mask=inside[:, None] & is_input[None, :], other=0.0)
        at = ((down * KERNEL_WIDE + across) * inputs + i[:, None]) * outputs + o[None, :]
        b = tl.load(weight + at, mask=is_input[:, None] & (o < outputs)[None, :], other=0.0)
        total = product(a, b, total, PRODUCT)
    if BIAS:
        total += tl.load(bias + member * bias_stride + o, mask=o < outputs, other=0.0)[None, :]
    at = ((point * outputs * out_high + to_line) * out_wide + to_column)[:, None] + (o * out_high * out_wide)[None, :]
    tl.store(out + member * out_stride + at, total, mask=is_place[:, None] & (o < outputs)[None, :])


def _convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, size: tuple[int, int], stride: int, padding: int,
    transposed: bool, product: str,
) -> Tensor:  # fmt: skip
    """Return the convolution of every member, with outputs of a size."""
    members, points, inputs, high, wide = x.shape
    outputs, kernel = weight.shape[2 if transposed else 1], weight.shape[3:]
    x, bias = rows(x), None if bias is None else rows(bias)
    # neighbouring threads read neighbouring weights
    weight = weight.permute(0, 3, 4, *((1, 2) if transposed else (2, 1))).contiguous()
    out = torch.empty((members, points, outputs, *size), dtype=torch.float32, device=x.device)
    step = stride if transposed else 1
    places = points * ceil_div(size[0], step) * ceil_div(size[1], step)
    channels = min(max(power(outputs), 16), CHANNELS)
    grid = ceil_div(places, PLACES) * ceil_div(outputs, channels), members, step**2
    _convolve[grid](
        x, weight, x if bias is None else bias, out, places, inputs, high, wide, outputs, *size,
        x.stride(0), 0 if bias is None else bias.stride(0), out.stride(0),
        KERNEL_HIGH=kernel[0], KERNEL_WIDE=kernel[1], TAPS_HIGH=ceil_div(kernel[0], step),
        TAPS_WIDE=ceil_div(kernel[1], step), STRIDE=stride, PADDING=padding,
        TRANSPOSED=transposed, BIAS=bias is not None, PRODUCT=product,
        CHANNELS=channels, PLACES=PLACES, DEEP=min(max(power(inputs), 16), DEEP), num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out


@Launched
def _correlate(
    fine, coarse, out, places, steps, parts,
    inputs: tl.constexpr, high: tl.constexpr, wide: tl.constexpr,
    outputs: tl.constexpr, out_high: tl.constexpr, out_wide: tl.constexpr, fine_stride, coarse_stride,
    KERNEL_HIGH: tl.constexpr, KERNEL_WIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    PRODUCT: tl.constexpr, CHANNELS: tl.constexpr, WEIGHTS: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """Sum the products of coarse pixels with the fine ones in their windows, over some places."""
    member, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    fine += member * fine_stride
    coarse += member * coarse_stride
    taps: tl.constexpr = inputs * KERNEL_HIGH * KERNEL_WIDE
    columns = tl.cdiv(taps, WEIGHTS)
    o = tl.program_id(0) // columns * CHANNELS + tl.arange(0, CHANNELS)
    k = tl.program_id(0) % columns * WEIGHTS + tl.arange(0, WEIGHTS)
    i, down, across = _split(k, KERNEL_HIGH, KERNEL_WIDE)
    window = (i * high + down) * wide + across
    total = tl.zeros((CHANNELS, WEIGHTS), tl.float32)
    for step in range(steps):
        place = (part * steps + step) * DEEP + tl.arange(0, DEEP)
        point, line, column = _split(place, out_high, out_wide)
        at = (point * outputs * out_high + line) * out_wide + column
        a = tl.load(
            coarse + at[:, None] + (o * out_high * out_wide)[None, :],
            mask=(place < places)[:, None] & (o < outputs)[None, :],
            other=0.0,
        )
        line, column = line * STRIDE - PADDING, column * STRIDE - PADDING
        from_line, from_column = line[:, None] + down[None, :], column[:, None] + across[None, :]
        inside = (from_line >= 0) & (from_line < high) & (from_column >= 0) & (from_column < wide)
        at = (point * inputs * high + line) * wide + column
        b = tl.load(
            fine + at[:, None] + window[None, :],
            mask=inside & (place < places)[:, None] & (k < taps)[None, :],
            other=0.0,
        )
        total = product(tl.trans(a), b, total, PRODUCT)
    at = ((member * parts + part) * outputs + o[:, None]) * taps + k[None, :]
    tl.store(out + at, total, mask=(o < outputs)[:, None] & (k < taps)[None, :])


def _correlated(
    fine: Tensor, coarse: Tensor, kernel: tuple[int, int], stride: int, padding: int, product: str
) -> Tensor:
    """Return the gradient of the weights, by the images on the fine and on the coarse side of a convolution."""
    members, points, inputs, high, wide = fine.shape
    outputs, size = coarse.shape[2], coarse.shape[3:]
    fine, coarse = rows(fine), rows(coarse)
    places, taps = points * size[0] * size[1], inputs * kernel[0] * kernel[1]
    channels, weights = (min(max(power(each), 16), CHANNELS) for each in (outputs, taps))
    tiles = ceil_div(outputs, channels) * ceil_div(taps, weights)
    parts = max(min(ceil_div(BUSY, tiles * members), places // LEAST), 1)
    steps = ceil_div(ceil_div(places, DEEP), parts)
    out = partial_sums(parts, (members, outputs, inputs, *kernel), fine, torch.float32)
    _correlate[tiles, members, parts](
        fine, coarse, out, places, steps, parts, inputs, high, wide, outputs, *size, fine.stride(0), coarse.stride(0),
        KERNEL_HIGH=kernel[0], KERNEL_WIDE=kernel[1], STRIDE=stride, PADDING=padding, PRODUCT=product,
        CHANNELS=channels, WEIGHTS=weights, DEEP=DEEP, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return sum_parts(out, torch.float32)


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, extra: int, transposed: bool,
    product: str,
) -> Tensor:  # fmt: skip
    """Return the convolution of the images of every member with its own weights."""
    sides = zip(x.shape[3:], weight.shape[3:], strict=True)
    if transposed:
        high, wide = [(side - 1) * stride - 2 * padding + window + extra for side, window in sides]
    else:
        high, wide = [(side + 2 * padding - window) // stride + 1 for side, window in sides]
    return _convolved(x, weight, bias, (high, wide), stride, padding, transposed, product)


def convolution_backward(by: Any, needs: Any, inputs: Any, outputs: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of the images, the weights and the biases."""
    (by_out,), (x, weight, _, stride, padding, _, transposed, product) = by, inputs
    how = stride, padding
    by_x = _convolved(by_out, weight, None, x.shape[3:], *how, not transposed, product) if needs[0] else None
    fine, coarse = (by_out, x) if transposed else (x, by_out)
    by_weight = _correlated(fine, coarse, weight.shape[3:], *how, product) if needs[1] else None
    return by_x, by_weight, by_out.sum((1, 3, 4)) if needs[2] else None
