"""A binary unit drawn and scored in one pass or scored in one, and the gradient of both in another."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..logistic.triton import (
    both,
    corner,
    in_quarter,
    load_four,
    log1p,
    placed,
    placed_rows,
    point_of,
    row_tiling,
    sigmoid,
    store_rows,
    strip,
    tiling,
)
from ..operator import joined, parted, rows
from ..philox.naive import quarter
from ..philox.triton import logistic, words_beside
from ..row import summed


@triton.jit
def log_sigmoid(node):
    """The logarithm of the sigmoid."""
    return tl.where(node < 0, node, 0.0) - log1p(tl.exp(-tl.abs(node)))


@triton.jit
def sign(value, SQUASH: tl.constexpr):
    """Plus one for the upper state, minus one for the lower."""
    return value if SQUASH == "corner" else 2 * value - 1


@triton.jit
def _draw(
    logits, key, value, log_mass, units, total, quarter, logits_stride,
    SQUASH: tl.constexpr, LENGTH: tl.constexpr, WIDE: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    SPAN: tl.constexpr = BLOCK if LENGTH == 1 else LENGTH
    start = tl.program_id(0).to(tl.int64 if WIDE else tl.int32) * SPAN
    logits += member * logits_stride
    sums = tl.zeros((4,), tl.float32)
    for offset in range(0, SPAN, BLOCK):
        first = start + offset
        held = load_four(logits, first, offset, units, total, quarter, LENGTH, LONG, BLOCK)
        four = words_beside(held[0], key, member, first + tl.arange(0, BLOCK))
        for k in tl.static_range(4):
            element, _, mask = placed(first, offset, k, units, total, quarter, LENGTH, LONG, BLOCK)
            upper = held[k] + logistic(four[k]) >= 0
            at = member * total + element
            tl.store(value + at, tl.where(upper, 1.0, -1.0 if SQUASH == "corner" else 0.0), mask=mask)
            signed = tl.where(upper, held[k], -held[k])
            if LENGTH == 1:
                tl.store(log_mass + at, log_sigmoid(signed), mask=mask)
            else:
                small = tl.where(mask, tl.exp(-tl.abs(signed)), 0.0)
                product = tl.reduce(tl.reshape(small, (BLOCK // 4, 4)), 1, both)  # one logarithm for four
                low = tl.where(mask & (signed < 0), signed, 0.0)
                sums += in_quarter(k, tl.sum(low, 0) - tl.sum(log1p(product), 0))
    if LENGTH > 1:
        store_rows(log_mass, member, sums)


def draw(logits: Tensor, key: Tensor, samples: int, squash: str, length: int = 1) -> tuple[Tensor, Tensor]:
    """States and their log masses, of rows of units."""
    members, units = logits.shape
    value = torch.empty((members, samples, units), dtype=torch.float32, device=logits.device)
    total, logits = samples * units, rows(logits)
    each = strip(members, total, length)
    log_mass = value.new_empty((members, samples, units // each.length))
    if value.numel():
        _draw[each.grid](
            logits, key.contiguous(), value, log_mass, units, total, quarter(total), logits.stride(0),
            SQUASH=squash, LENGTH=each.length, WIDE=total >= 2**30, LONG=units >= each.block, BLOCK=each.block,
            num_warps=each.warps,
        )  # fmt: skip
    return value, summed(log_mass, length // each.length)


@triton.jit
def _score(
    value, logits, log_mass, units, samples, value_stride, logits_stride,
    SQUASH: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    _, row, unit = corner(units, 1, ROWS, UNITS)
    mask = (row < samples) & (unit < units)
    logit = tl.load(logits + member * logits_stride + unit, mask=unit < units, other=0.0).to(tl.float32)
    state = tl.load(value + member * value_stride + row * units + unit, mask=mask, other=0.0).to(tl.float32)
    tl.store(log_mass + (member * samples + row) * units + unit, log_sigmoid(sign(state, SQUASH) * logit), mask=mask)


@triton.jit
def _score_rows(
    value, logits, log_mass, samples, points, value_stride, logits_stride,
    SQUASH: tl.constexpr, LENGTH: tl.constexpr, SHARED: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    row, point, inside = placed_rows(samples, points, SHARED, ROWS)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, LENGTH, UNITS):
        unit = start + tl.arange(0, UNITS)[None, :]
        shared, mask = (point < points) & (unit < LENGTH), inside & (unit < LENGTH)
        logit = tl.load(logits + member * logits_stride + point * LENGTH + unit, mask=shared, other=0.0).to(tl.float32)
        state = tl.load(value + member * value_stride + row * LENGTH + unit, mask=mask, other=0.0).to(tl.float32)
        signed = sign(state, SQUASH) * logit
        small = tl.where(mask, tl.exp(-tl.abs(signed)), 0.0)
        product = tl.reduce(tl.reshape(small, (ROWS, UNITS // 4, 4)), 2, both)
        total += tl.sum(tl.where(mask & (signed < 0), signed, 0.0), 1) - tl.sum(log1p(product), 1)
    tl.store(log_mass + member * samples * points + row, total[:, None], mask=inside)


def score(value: Tensor, logits: Tensor, squash: str, length: int = 1) -> Tensor:
    """The log mass of given states, of rows of units."""
    members, samples, units = value.shape
    log_mass = torch.empty((members, samples, units // length), dtype=torch.float32, device=value.device)
    if not value.numel():
        return log_mass
    value, logits = rows(value), rows(logits)
    if length == 1:
        tile = tiling(members, samples, units, sums=False)
        _score[tile.grid](
            value, logits, log_mass, units, samples, value.stride(0), logits.stride(0),
            SQUASH=squash, ROWS=tile.rows, UNITS=tile.units, num_warps=tile.warps,
        )  # fmt: skip
    else:
        own = row_tiling(members, samples, units, length)
        _score_rows[own.grid](
            value, logits, log_mass, samples, units // length, value.stride(0), logits.stride(0),
            SQUASH=squash, LENGTH=length, SHARED=own.shared, ROWS=own.rows, UNITS=own.units, num_warps=own.warps,
        )  # fmt: skip
    return log_mass


@triton.jit
def _backward(
    by, value, logits, by_logits, units, samples, parts, steps,
    by_member, by_sample, by_point, value_stride, logits_stride,
    SQUASH: tl.constexpr, LENGTH: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    part, row, unit = corner(units, steps, ROWS, UNITS)
    by += member * by_member + point_of(unit, LENGTH) * by_point
    logit = tl.load(logits + member * logits_stride + unit, mask=unit < units, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, UNITS), tl.float32)
    for _ in range(steps):
        mask = (row < samples) & (unit < units)
        state = tl.load(value + member * value_stride + row * units + unit, mask=mask, other=0.0).to(tl.float32)
        pull = tl.load(by + row * by_sample, mask=mask, other=0.0).to(tl.float32)
        signed = sign(state, SQUASH)
        total += pull * signed * sigmoid(-signed * logit)
        row += ROWS
    found = tl.sum(total, 0, keep_dims=True)
    tl.store(by_logits + (member * parts + part) * units + unit, found, mask=unit < units)


def backward(by: Tensor, value: Tensor, logits: Tensor, squash: str, length: int = 1) -> Tensor:
    """The gradient of the logits, over all samples."""
    members, samples, units = value.shape
    if not value.numel():
        return torch.zeros_like(logits)
    dtype, tile = logits.dtype, tiling(members, samples, units, sums=True)
    value, logits, by_logits = rows(value), rows(logits), parted(tile.parts, value[:, 0], dtype)
    _backward[tile.grid](
        by, value, logits, by_logits, units, samples, tile.parts, tile.steps,
        *by.stride(), value.stride(0), logits.stride(0),
        SQUASH=squash, LENGTH=length, ROWS=tile.rows, UNITS=tile.units, num_warps=tile.warps,
    )  # fmt: skip
    return joined(by_logits, dtype)
