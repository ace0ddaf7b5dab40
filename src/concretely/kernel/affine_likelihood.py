"""The log-likelihood of bits whose logits are an affine map, in one pass that never stores the logits.

Optionally it also stores the slopes, the derivatives by the logits. A program computes one tile of logits.
"""

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from .affine import Tile
from .affine import product as multiply
from .deferred import gradient_of_weight, multiplied
from .launch import Launched
from .layout import partial_sums, rows, sum_parts
from .native import both, log1p
from .tile import ceil_div, power

HIGH, WARPS, STAGES = 128, 4, 3
"""The rows of a program, and its launch options."""
WIDE, WIDE_WITH_SLOPES = 128, 64
"""The number of units of a program. It is smaller with slopes, which need registers too."""
SCALED_ROWS = 8
"""The rows that a program scales at once."""
LARGEST = tl.constexpr(3.4028234663852886e38)
"""The largest float32, which replaces a product that overflows (of 128 numbers up to 2)."""


@Launched
def _log_likelihood(
    state, weight, bias, bits, parts, slope, high, batch, wide: tl.constexpr, deep: tl.constexpr,
    state_stride, weight_stride, bias_stride, bits_stride, SLOPES: tl.constexpr, PRODUCT: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    columns = tl.cdiv(wide, WIDE)
    column = tl.program_id(0) % columns
    i = tl.program_id(0) // columns * HIGH + tl.arange(0, HIGH)
    j = column * WIDE + tl.arange(0, WIDE)
    k = tl.arange(0, DEEP)
    is_unit = (j < wide)[None, :]
    # loaded before the product, so that the compiler chooses the layout of the product for both
    own = (i % batch)[:, None].to(tl.int64) * wide + j[None, :]
    on = tl.load(bits + member * bits_stride + own, mask=is_unit, other=1) != 0
    # indices past the end are those of the last row or unit, so that the loop needs no masks
    left = state + member * state_stride + tl.minimum(i, high - 1)[:, None].to(tl.int64) * deep + k[None, :]
    right = weight + member * weight_stride + tl.minimum(j, wide - 1)[None, :] * deep + k[:, None]
    logit = tl.zeros((HIGH, WIDE), tl.float32)
    for start in range(0, deep, DEEP):
        if deep % DEEP == 0:
            a, b = tl.load(left + start), tl.load(right + start)
        else:
            inside = start + k < deep
            a = tl.load(left + start, mask=inside[None, :], other=0.0)
            b = tl.load(right + start, mask=inside[:, None], other=0.0)
        logit = multiply(a, b, logit, PRODUCT)
    logit += tl.load(bias + member * bias_stride + j, mask=j < wide, other=0.0)[None, :]
    logit = tl.where(is_unit, logit, float("inf"))  # a bit that is certain adds nothing
    against = tl.where(on, -logit, logit)
    small = tl.exp(-tl.abs(logit))
    # the sum of log(1 + small) is the log of a product, which is kept minus 1 so that small terms are not lost
    joint = tl.reduce(small, 1, both)
    total = tl.sum(tl.where(against > 0, against, 0.0), 1) + log1p(tl.where(joint == float("inf"), LARGEST, joint))
    tl.store(parts + (member * columns + column) * high + i, -total, mask=i < high)
    if SLOPES:
        other = tl.where(against > 0, 1.0, small) / (1 + small)  # the probability of the other bit
        place = slope + member * high * wide + i[:, None].to(tl.int64) * wide + j[None, :]
        tl.store(place, tl.where(on, other, -other), mask=(i < high)[:, None] & is_unit)


def affine_log_likelihood(
    state: Tensor, weight: Tensor, bias: Tensor, bits: Tensor, slopes: bool, product: str, deferred: bool = False,
    chosen: Tile | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the log mass of bits, which all samples share, and with `slopes` its derivative by every logit."""
    (members, samples, batch, deep), wide = state.shape, weight.shape[1]
    is_half = product == "bfloat16"
    state, weight = (state, weight.bfloat16()) if is_half else (state.float(), weight)
    shape = (members, samples * batch, wide) if slopes else (members, 0)
    slope = state.new_empty(shape, dtype=torch.bfloat16 if is_half else torch.float32)
    high, size = samples * batch, chosen or _tile(product, slope)
    columns = ceil_div(wide, size.wide)
    sums = partial_sums(columns, state.shape[:-1], state, torch.float32)
    if sums.numel():
        state, weight, bias, bits = rows(state), rows(weight), rows(bias), rows(_bytes(bits, samples))
        _log_likelihood[ceil_div(high, size.high) * columns, members](
            state, weight, bias, bits, sums, slope, high, batch, wide, deep,
            state.stride(0), weight.stride(0), bias.stride(0), bits.stride(0), SLOPES=slope.numel() > 0,
            PRODUCT=product, HIGH=size.high, WIDE=size.wide, DEEP=size.deep,
            num_warps=size.warps, num_stages=size.stages,
        )  # fmt: skip
    return sum_parts(sums, columns, torch.float32), slope


def affine_log_likelihood_backward(by: Any, needs: Any, inputs: Any, outputs: Any) -> tuple[Tensor | None, ...]:
    """Return the gradients of the states, of the weight and of the bias."""
    (state, weight, _, _, _, _, deferred), (_, slope) = inputs, outputs
    needs_state, needs_weight, needs_bias, *_ = needs
    pull, states = by[0].flatten(1, 2), state.flatten(1, 2)
    by_state = by_weight = by_bias = None
    # states and their gradients are scaled, since they are narrower than slopes
    if needs_state:
        by_states = multiplied(slope, weight.to(slope.dtype), state.dtype)
        by_state, weighted = scale_rows(pull, by_states, states, slope.dtype)
        by_state = by_state.view_as(state)
    else:  # a drawn state needs no gradient, which saves the most expensive product
        weighted = (pull.unsqueeze(-1) * states).to(slope.dtype)
    if needs_weight:
        by_weight = gradient_of_weight(weighted, slope, deferred=deferred)
    if needs_bias:
        by_bias = multiplied(slope.mT, pull.unsqueeze(-1).to(slope.dtype)).squeeze(-1)
    return by_state, by_weight, by_bias


def _tile(product: str, slope: Tensor) -> Tile:
    deep = 64 if product == "bfloat16" else 32
    return Tile(HIGH, WIDE_WITH_SLOPES if slope.numel() else WIDE, deep, WARPS, STAGES)


@Launched
def _scale_rows(
    pull, by_state, state, by_out, out, high, deep, pull_stride, by_stride, state_stride,
    HIGH: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * HIGH + tl.arange(0, HIGH)
    weight = tl.load(pull + member * pull_stride + i, mask=i < high, other=0.0)[:, None]
    for start in range(0, deep, DEEP):
        k = start + tl.arange(0, DEEP)
        at, mask = i[:, None].to(tl.int64) * deep + k[None, :], (i < high)[:, None] & (k < deep)[None, :]
        slope = tl.load(by_state + member * by_stride + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(state + member * state_stride + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(by_out + member * high * deep + at, weight * slope, mask=mask)
        tl.store(out + member * high * deep + at, weight * value, mask=mask)


def scale_rows(pull: Tensor, by_state: Tensor, state: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Multiply rows of gradients and rows of states by the gradient `pull` of their log mass."""
    members, high, deep = state.shape
    by_out, out = (state.new_empty(state.shape, dtype=kind) for kind in (state.dtype, dtype))
    if out.numel():
        pull, by_state, state = rows(pull), rows(by_state), rows(state)
        tile = SCALED_ROWS, min(power(deep), 256)
        _scale_rows[ceil_div(high, tile[0]), members](
            pull, by_state, state, by_out, out, high, deep, pull.stride(0), by_state.stride(0), state.stride(0),
            HIGH=tile[0], DEEP=tile[1],
        )  # fmt: skip
    return by_out, out


def _bytes(bits: Tensor, samples: int) -> Tensor:
    """Return bits as integers or floats; as bytes if several samples read them."""
    if bits.dtype == torch.bool:
        return bits.view(torch.uint8)
    return bits.to(torch.uint8) if samples > 1 else bits
