"""Draws and scores of categorical units in one pass each, and the gradient of their log masses."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import category as nary
from .exp_concrete import exponential
from .launch import Launched
from .layout import partial_sums, row_sums, rows, sum_parts
from .native import exp, log
from .philox import drawing, parts_of, quarter, words_beside
from .row import gradients_of_mass, point_of
from .tile import draw_tile, power, score_tile, unit_tile


@drawing
def _draw(
    logits, key, nonce, value, log_mass, total, units, quarter, logits_stride,
    N: tl.constexpr, SHARED: tl.constexpr, SQUASH: tl.constexpr, BITS: tl.constexpr, BIT_WIDTH: tl.constexpr,
    LENGTH: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    category = tl.arange(0, WIDTH)[None, :]
    sums = tl.zeros((4,), tl.float32)
    for offset in range(0, LENGTH, ROWS):
        place = nary.placed(offset, quarter, LENGTH, ROWS)
        held = nary.load_four(logits + member * logits_stride, place, total, units, quarter, N, SHARED, WIDTH)
        four = words_beside(held[0], key, member, place.to(tl.int64)[:, None] * N + category, nonce)
        for k in tl.static_range(4):
            row = k * quarter + place
            inside = (place < quarter) & (row < total)
            mask = inside[:, None] & (category < N)
            logit = held[k] - tl.max(held[k], 1)[:, None]
            noisy = logit - log(exponential(four[k]))
            # the first category among those with the largest noisy logit
            chosen = tl.min(tl.where(noisy == tl.max(noisy, 1)[:, None], category, WIDTH), 1)[:, None]
            mass = tl.sum(tl.where(category == chosen, logit, 0.0), 1) - tl.log(tl.sum(exp(logit), 1))
            row = member * total + row
            if LENGTH == 1:
                tl.store(log_mass + row, mass, mask=inside)
            else:
                sums += nary.in_quarter(k, tl.sum(tl.where(inside, mass, 0.0), 0))
            if SQUASH == "corner":
                bit = tl.arange(0, BIT_WIDTH)[None, :]
                digit = chosen >> tl.maximum(BITS - 1 - bit, 0) & 1
                corner = (2 * digit - 1).to(tl.float32)
                tl.store(value + row[:, None] * BITS + bit, corner, mask=inside[:, None] & (bit < BITS))
            else:
                tl.store(value + row[:, None] * N + category, (category == chosen).to(tl.float32), mask=mask)
    if LENGTH > 1:
        nary.store_rows(log_mass, member, sums)


def draw(
    logits: Tensor, key: Tensor | tuple[int, int], samples: int, squash: str, length: int = 1
) -> tuple[Tensor, Tensor]:
    """Draw values; return them and their log masses, summed over rows of `length` units."""
    members, units, n = logits.shape
    total, logits, bits = samples * units, rows(logits), n.bit_length() - 1
    tile = draw_tile(members, total, n, length)
    log_mass = logits.new_empty(members, samples, units // tile.length, dtype=torch.float32)
    value = log_mass.new_empty(members, samples, units, bits if squash == "corner" else n)
    if log_mass.numel():
        _draw[tile.programs, members](
            logits, *parts_of(key), value, log_mass, total, units, quarter(total), logits.stride(0),
            N=n, SHARED=samples > 1, SQUASH=squash, BITS=bits, BIT_WIDTH=power(bits), LENGTH=tile.length,
            ROWS=tile.units, WIDTH=tile.width, num_warps=tile.warps,
        )  # fmt: skip
    return value, row_sums(log_mass, length // tile.length)


@triton.jit
def _chosen(
    value, row, inside, category,
    N: tl.constexpr, SQUASH: tl.constexpr, BITS: tl.constexpr, SAMPLES: tl.constexpr, UNITS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Return the category that a value, a one-hot vector or a corner, represents."""
    if SQUASH == "corner":
        chosen = tl.zeros((SAMPLES, UNITS), tl.int32)
        for bit in tl.static_range(BITS):
            on = tl.load(value + row * BITS + bit, mask=inside, other=0.0).to(tl.float32) > 0
            chosen = 2 * chosen + on.to(tl.int32)
    else:
        mask = inside[:, :, None] & (category < N)
        entry = tl.load(value + row[:, :, None] * N + category, mask=mask, other=float("-inf")).to(tl.float32)
        chosen = tl.min(tl.where(entry == tl.max(entry, 2)[:, :, None], category, WIDTH), 2)
    return chosen[:, :, None]


@Launched
def _score(
    value, logits, log_mass, samples, units, steps, value_stride, logits_stride,
    N: tl.constexpr, SQUASH: tl.constexpr, BITS: tl.constexpr, LENGTH: tl.constexpr, SAMPLES: tl.constexpr,
    UNITS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    category = tl.arange(0, WIDTH)[None, None, :]
    sums = tl.zeros((SAMPLES, 1), tl.float32)
    for offset in range(0, LENGTH, UNITS):
        unit = nary.placed(offset, units, LENGTH, UNITS)[None, :]
        logit = _shifted(logits + member * logits_stride, offset, units, N, LENGTH, UNITS, WIDTH)
        log_probs = (logit - tl.log(tl.sum(exp(logit), 1))[:, None])[None, :, :]
        sample = tl.program_id(1) * steps * SAMPLES + tl.arange(0, SAMPLES)[:, None]
        for _ in range(steps):
            row = sample.to(tl.int64) * units + unit
            inside = (unit < units) & (sample < samples)
            chosen = _chosen(
                value + member * value_stride, row, inside, category, N, SQUASH, BITS, SAMPLES, UNITS, WIDTH
            )  # fmt: skip
            mass = tl.sum(tl.where(category == chosen, log_probs, 0.0), 2)
            if LENGTH == 1:
                tl.store(log_mass + member * samples * units + row, mass, mask=inside)
            else:
                sums += tl.sum(tl.where(inside, mass, 0.0), 1)[:, None]
            sample += SAMPLES
    if LENGTH > 1:
        nary.store_sums(log_mass, member, samples, sums, SAMPLES)


@triton.jit
def _shifted(logits, offset, units, N: tl.constexpr, LENGTH: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr):
    """Return the logits of the units of a tile, shifted so that the largest of each unit is 0."""
    logit = nary.load_logits(logits, offset, units, N, LENGTH, UNITS, WIDTH)
    if WIDTH > N:
        logit = tl.where(tl.arange(0, WIDTH)[None, :] < N, logit, float("-inf"))
    return logit - tl.max(logit, 1)[:, None]


def score(value: Tensor, logits: Tensor, squash: str, length: int = 1) -> Tensor:
    """Return the log mass of given values, summed over rows of `length` units."""
    members, samples, units, _ = value.shape
    n = logits.shape[-1]
    tile = score_tile(members, samples, units, n, length)
    log_mass = value.new_empty(members, samples, units // tile.length, dtype=torch.float32)
    value, logits = rows(value), rows(logits)
    if log_mass.numel():
        _score[*tile.grid, members](
            value, logits, log_mass, samples, units, tile.steps, value.stride(0), logits.stride(0),
            N=n, SQUASH=squash, BITS=n.bit_length() - 1, LENGTH=tile.length, SAMPLES=tile.samples, UNITS=tile.units,
            WIDTH=tile.width, num_warps=tile.warps,
        )  # fmt: skip
    return row_sums(log_mass, length // tile.length)


@Launched
def _score_backward(
    by, value, logits, by_logits, samples, units, steps, by_member, by_sample, by_point, value_stride, logits_stride,
    N: tl.constexpr, SQUASH: tl.constexpr, BITS: tl.constexpr, LENGTH: tl.constexpr, SAMPLES: tl.constexpr,
    UNITS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)[None, :]
    point = point_of(unit, LENGTH)
    sample = tl.program_id(1) * steps * SAMPLES + tl.arange(0, SAMPLES)[:, None]
    category = tl.arange(0, WIDTH)[None, None, :]
    picked = tl.zeros((SAMPLES, UNITS, WIDTH), tl.float32)
    weight = tl.zeros((SAMPLES, UNITS), tl.float32)
    for _ in range(steps):
        row = sample.to(tl.int64) * units + unit
        inside = (unit < units) & (sample < samples)
        chosen = _chosen(value + member * value_stride, row, inside, category, N, SQUASH, BITS, SAMPLES, UNITS, WIDTH)
        pull = nary.load_rows(by + member * by_member, sample, point, by_sample, by_point, inside)
        picked += tl.where(category == chosen, pull[:, :, None], 0.0)
        weight += pull
        sample += SAMPLES
    share = exp(_shifted(logits + member * logits_stride, 0, units, N, 1, UNITS, WIDTH))
    share *= (tl.sum(weight, 0) / tl.sum(share, 1))[:, None]
    nary.store_sum(by_logits, member, tl.sum(picked, 0) - share, units, N, UNITS, WIDTH)


def _gradient(by: Tensor, value: Tensor, logits: Tensor, squash: str, length: int) -> Tensor:
    members, samples, units, _ = value.shape
    n, dtype = logits.shape[-1], logits.dtype
    if not by.numel():
        return torch.zeros_like(logits)
    tile = unit_tile(members, samples, units, n, least=nary.STEPS)
    value, logits = rows(value), rows(logits)
    partial = partial_sums(tile.grid[1], logits.shape, logits, dtype)
    _score_backward[*tile.grid, members](
        by, value, logits, partial, samples, units, tile.steps, *by.stride(), value.stride(0), logits.stride(0),
        N=n, SQUASH=squash, BITS=n.bit_length() - 1, LENGTH=length, SAMPLES=tile.samples, UNITS=tile.units,
        WIDTH=tile.width, num_warps=tile.warps,
    )  # fmt: skip
    return sum_parts(partial, tile.grid[1], dtype)


draw_backward, score_backward = gradients_of_mass(_gradient)
