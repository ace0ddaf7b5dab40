"""Functions shared by the kernels of n-ary nodes: how programs divide the rows of categories among them.

A Philox counter gives four random words. Each goes to one quarter of a draw, so that a program handles the same place
in all four quarters.
"""

import triton
import triton.language as tl

STEPS = 16
"""The minimum number of tiles that a program sums before another launch adds the partial sums of several programs."""


@triton.jit
def sign(category, bit, BITS: tl.constexpr):
    """Return a coordinate, -1 or +1, of the corner of the hypercube that represents a category."""
    return (2 * (category >> (BITS - 1 - bit) & 1) - 1).to(tl.float32)


@triton.jit
def load_quarter(logits, place, k, total, units, quarter, N: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr):
    """Return the logits of the rows of a tile in one quarter."""
    row = k * quarter + place
    category = tl.arange(0, WIDTH)[None, :]
    unit = row % units if SHARED else row
    mask = ((place < quarter) & (row < total))[:, None] & (category < N)
    logit = tl.load(logits + unit.to(tl.int64)[:, None] * N + category, mask=mask, other=0.0).to(tl.float32)
    return tl.where(category < N, logit, float("-inf")) if WIDTH > N else logit


@triton.jit
def load_four(logits, place, total, units, quarter, N: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr):
    """Load the logits of the rows of a tile in all quarters, before any is needed."""
    return [load_quarter(logits, place, k, total, units, quarter, N, SHARED, WIDTH) for k in (0, 1, 2, 3)]


@triton.jit
def placed(offset, end, LENGTH: tl.constexpr, UNITS: tl.constexpr):
    """Return the units of a tile at an offset along the row of a program; `end` for those past the end of the row."""
    along, number = offset + tl.arange(0, UNITS), tl.program_id(0)
    return number * UNITS + along if LENGTH == 1 else tl.where(along < LENGTH, number * LENGTH + along, end)


@triton.jit
def in_quarter(k, total):
    """Return a vector with `total` in one quarter, and 0 in the others."""
    return tl.where(tl.arange(0, 4) == k, total, 0.0)


@triton.jit
def store_rows(sums, member, totals):
    """Store the sums of the rows of a program, one in each quarter."""
    row = (member * 4 + tl.arange(0, 4)) * tl.num_programs(0) + tl.program_id(0)
    tl.store(sums + row, totals)


@triton.jit
def load_logits(logits, offset, units, N: tl.constexpr, LENGTH: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr):
    """Load the logits of the units of a tile."""
    unit = placed(offset, units, LENGTH, UNITS)[:, None]
    category = tl.arange(0, WIDTH)[None, :]
    mask = (unit < units) & (category < N)
    return tl.load(logits + unit.to(tl.int64) * N + category, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_rows(by, sample, point, by_sample, by_point, inside):
    """Load one number for every row. With strides of zero, rows share a number."""
    at = sample.to(tl.int64) * by_sample + point.to(tl.int64) * by_point
    return tl.load(by + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_sum(by_logits, member, total, units, N: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr):
    """Store the partial gradient of the logits, summed over the samples of a program."""
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)[:, None]
    category = tl.arange(0, WIDTH)[None, :]
    part = member * tl.num_programs(1) + tl.program_id(1)
    tl.store(by_logits + (part * units + unit) * N + category, total, mask=(unit < units) & (category < N))


@triton.jit
def store_sums(totals, member, samples, sums, SAMPLES: tl.constexpr):
    """Store the sums of a program for the rows of one data point, one for each sample."""
    sample = tl.program_id(1).to(tl.int64) * SAMPLES + tl.arange(0, SAMPLES)[:, None]
    row = (member * samples + sample) * tl.num_programs(0) + tl.program_id(0)
    tl.store(totals + row, sums, mask=sample < samples)
