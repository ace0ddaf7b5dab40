"""A binary unit drawn and scored in one pass or scored in one, and the gradient of both in another."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..logistic.triton import BLOCK, corner, log1p, sigmoid, tiling, wrapped
from ..operator import joined, parted, rows
from ..philox.naive import quarter
from ..philox.triton import logistic, words


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
    SQUASH: tl.constexpr, WIDE: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0).to(tl.int64 if WIDE else tl.int32) * BLOCK
    place = first + tl.arange(0, BLOCK)
    four = words(key, member, place)
    for k in tl.static_range(4):
        element = k * quarter + place
        mask = (place < quarter) & (element < total)
        unit = wrapped(k * quarter + first, units, BLOCK, LONG)
        logit = tl.load(logits + member * logits_stride + unit, mask=mask).to(tl.float32)
        upper = logit + logistic(four[k]) >= 0
        at = member * total + element
        tl.store(value + at, tl.where(upper, 1.0, -1.0 if SQUASH == "corner" else 0.0), mask=mask)
        tl.store(log_mass + at, log_sigmoid(tl.where(upper, logit, -logit)), mask=mask)


def draw(logits: Tensor, key: Tensor, samples: int, squash: str) -> tuple[Tensor, Tensor]:
    """States and their log masses."""
    members, units = logits.shape
    value = torch.empty((members, samples, units), dtype=torch.float32, device=logits.device)
    log_mass = torch.empty_like(value)
    if value.numel():
        total, logits = samples * units, rows(logits)
        grid = (triton.cdiv(quarter(total), BLOCK), members)
        _draw[grid](
            logits, key.contiguous(), value, log_mass, units, total, quarter(total), logits.stride(0),
            SQUASH=squash, WIDE=total >= 2**30, LONG=units >= BLOCK, BLOCK=BLOCK,
        )  # fmt: skip
    return value, log_mass


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


def score(value: Tensor, logits: Tensor, squash: str) -> Tensor:
    """The log mass of given states."""
    members, samples, units = value.shape
    log_mass = torch.empty((members, samples, units), dtype=torch.float32, device=value.device)
    if value.numel():
        value, logits, tile = rows(value), rows(logits), tiling(members, samples, units, sums=False)
        _score[tile.grid](
            value, logits, log_mass, units, samples, value.stride(0), logits.stride(0),
            SQUASH=squash, ROWS=tile.rows, UNITS=tile.units,
        )  # fmt: skip
    return log_mass


@triton.jit
def _backward(
    by, value, logits, by_logits, units, samples, parts, steps,
    by_member, by_sample, by_unit, value_stride, logits_stride,
    SQUASH: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    part, row, unit = corner(units, steps, ROWS, UNITS)
    logit = tl.load(logits + member * logits_stride + unit, mask=unit < units, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, UNITS), tl.float32)
    for _ in range(steps):
        mask = (row < samples) & (unit < units)
        state = tl.load(value + member * value_stride + row * units + unit, mask=mask, other=0.0).to(tl.float32)
        at = member * by_member + row * by_sample + unit * by_unit
        pull = tl.load(by + at, mask=mask, other=0.0).to(tl.float32)
        signed = sign(state, SQUASH)
        total += pull * signed * sigmoid(-signed * logit)
        row += ROWS
    found = tl.sum(total, 0, keep_dims=True)
    tl.store(by_logits + (member * parts + part) * units + unit, found, mask=unit < units)


def backward(by: Tensor, value: Tensor, logits: Tensor, squash: str) -> Tensor:
    """The gradient of the logits, over all samples."""
    members, samples, units = value.shape
    if not value.numel():
        return torch.zeros_like(logits)
    dtype, tile = logits.dtype, tiling(members, samples, units, sums=True)
    value, logits, by_logits = rows(value), rows(logits), parted(tile.parts, value[:, 0], dtype)
    _backward[tile.grid](
        by, value, logits, by_logits, units, samples, tile.parts, tile.steps,
        *by.stride(), value.stride(0), logits.stride(0), SQUASH=squash, ROWS=tile.rows, UNITS=tile.units,
    )  # fmt: skip
    return joined(by_logits, dtype)
