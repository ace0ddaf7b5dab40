"""How programs share rows of categories, and the quarters of a draw: what kernels of n-ary nodes have in common."""

import triton
import triton.language as tl

STEPS = 16
"""The fewest steps that a program adds up before sums are finished by another launch."""


@triton.jit
def sign(category, bit, BITS: tl.constexpr):
    """A coordinate of the corner of the hypercube that stands for a category."""
    return (2 * (category >> (BITS - 1 - bit) & 1) - 1).to(tl.float32)


@triton.jit
def load_quarter(logits, place, k, total, units, quarter, N: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr):
    """The logits of the rows of a tile in one quarter."""
    row = k * quarter + place
    category = tl.arange(0, WIDTH)[None, :]
    unit = row % units if SHARED else row
    mask = ((place < quarter) & (row < total))[:, None] & (category < N)
    logit = tl.load(logits + unit.to(tl.int64)[:, None] * N + category, mask=mask, other=0.0).to(tl.float32)
    return tl.where(category < N, logit, float("-inf")) if WIDTH > N else logit


@triton.jit
def load_four(logits, place, total, units, quarter, N: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr):
    """The logits of the rows of a tile in all quarters, loaded before any is needed."""
    return [load_quarter(logits, place, k, total, units, quarter, N, SHARED, WIDTH) for k in (0, 1, 2, 3)]


@triton.jit
def placed(offset, end, LENGTH: tl.constexpr, UNITS: tl.constexpr):
    """The units of a tile at an offset along the row of a program; those past the end of the row are masked."""
    along, number = offset + tl.arange(0, UNITS), tl.program_id(0)
    return number * UNITS + along if LENGTH == 1 else tl.where(along < LENGTH, number * LENGTH + along, end)


@triton.jit
def in_quarter(k, total):
    """A number for one quarter, and 0 for the others."""
    return tl.where(tl.arange(0, 4) == k, total, 0.0)


@triton.jit
def store_rows(sums, member, found):
    """Store what a program has for its rows, one in each quarter."""
    row = (member * 4 + tl.arange(0, 4)) * tl.num_programs(0) + tl.program_id(0)
    tl.store(sums + row, found)


@triton.jit
def load_logits(logits, offset, units, N: tl.constexpr, LENGTH: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr):
    """The logits of the units of a tile."""
    unit = placed(offset, units, LENGTH, UNITS)[:, None]
    category = tl.arange(0, WIDTH)[None, :]
    mask = (unit < units) & (category < N)
    return tl.load(logits + unit.to(tl.int64) * N + category, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_rows(by, sample, point, by_sample, by_point, inside):
    """A number for every row, where rows may share one."""
    at = sample.to(tl.int64) * by_sample + point.to(tl.int64) * by_point
    return tl.load(by + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_sum(by_logits, member, total, units, N: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr):
    """Store the part that the samples of a program have in the gradient of the logits."""
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)[:, None]
    category = tl.arange(0, WIDTH)[None, :]
    part = member * tl.num_programs(1) + tl.program_id(1)
    tl.store(by_logits + (part * units + unit) * N + category, total, mask=(unit < units) & (category < N))


@triton.jit
def store_sums(found, member, samples, sums, SAMPLES: tl.constexpr):
    """Store what a program has for the rows of one data point."""
    sample = tl.program_id(1).to(tl.int64) * SAMPLES + tl.arange(0, SAMPLES)[:, None]
    row = (member * samples + sample) * tl.num_programs(0) + tl.program_id(0)
    tl.store(found + row, sums, mask=sample < samples)
