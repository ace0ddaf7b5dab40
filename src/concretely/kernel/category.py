"""Indices, loads and stores of the kernels of n-ary nodes."""

import triton
import triton.language as tl

STEPS = 16
"""The minimum number of steps of a program before sums are split over programs."""


@triton.jit
def sign(category, bit, BITS: tl.constexpr):
    """Return a coordinate of the hypercube corner of a category."""
    return (2 * (category >> (BITS - 1 - bit) & 1) - 1).to(tl.float32)


@triton.jit
def load_quarter(
    logits, place, k, total, units, quarter,
    N: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Load the logits of a tile in one quarter."""
    row = k * quarter + place
    category = tl.arange(0, WIDTH)[None, :]
    unit = row % units if SHARED else row
    mask = ((place < quarter) & (row < total))[:, None] & (category < N)
    logit = tl.load(logits + unit.to(tl.int64)[:, None] * N + category, mask=mask, other=0.0).to(tl.float32)
    return tl.where(category < N, logit, float("-inf")) if WIDTH > N else logit


@triton.jit
def load_four(
    logits, place, total, units, quarter,
    N: tl.constexpr, SHARED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Start loading the logits of a tile in all quarters."""
    return (
        load_quarter(logits, place, 0, total, units, quarter, N, SHARED, WIDTH),
        load_quarter(logits, place, 1, total, units, quarter, N, SHARED, WIDTH),
        load_quarter(logits, place, 2, total, units, quarter, N, SHARED, WIDTH),
        load_quarter(logits, place, 3, total, units, quarter, N, SHARED, WIDTH),
    )


@triton.jit
def placed(offset, quarter, LENGTH: tl.constexpr, ROWS: tl.constexpr):
    """Return the counters of a tile at an offset in a program's row, `quarter` beyond its end."""
    along = offset + tl.arange(0, ROWS)
    if LENGTH == 1:
        place = tl.program_id(0) * ROWS + along
    else:
        place = tl.where(along < LENGTH, tl.program_id(0) * LENGTH + along, quarter)
    return place


@triton.jit
def in_quarter(k, total):
    """Return a vector of four with the total at quarter k."""
    return tl.where(tl.arange(0, 4) == k, total, 0.0)


@triton.jit
def store_rows(sums, member, result):
    """Store the sums of a program's rows, one in each quarter."""
    row = (member * 4 + tl.arange(0, 4)) * tl.num_programs(0) + tl.program_id(0)
    tl.store(sums + row, result)


@triton.jit
def unit_of(offset, units, LENGTH: tl.constexpr, UNITS: tl.constexpr):
    """Return the units of a tile at an offset in a program's row, `units` beyond its end."""
    along = offset + tl.arange(0, UNITS)
    if LENGTH == 1:
        unit = tl.program_id(0) * UNITS + along
    else:
        unit = tl.where(along < LENGTH, tl.program_id(0) * LENGTH + along, units)
    return unit


@triton.jit
def load_logits(logits, offset, units, N: tl.constexpr, LENGTH: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr):
    """Load the logits of a tile."""
    unit = unit_of(offset, units, LENGTH, UNITS)[:, None]
    category = tl.arange(0, WIDTH)[None, :]
    mask = (unit < units) & (category < N)
    return tl.load(logits + unit.to(tl.int64) * N + category, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_rows(by, sample, point, by_sample, by_point, inside):
    """Load the upstream gradient of every row."""
    at = sample.to(tl.int64) * by_sample + point.to(tl.int64) * by_point
    return tl.load(by + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_sum(by_logits, member, total, units, N: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr):
    """Store a program's partial sum of the gradient of the logits."""
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)[:, None]
    category = tl.arange(0, WIDTH)[None, :]
    part = member * tl.num_programs(1) + tl.program_id(1)
    tl.store(by_logits + (part * units + unit) * N + category, total, mask=(unit < units) & (category < N))


@triton.jit
def store_sums(result, member, samples, sums, SAMPLES: tl.constexpr):
    """Store a program's sums for the rows of one data point."""
    sample = tl.program_id(1).to(tl.int64) * SAMPLES + tl.arange(0, SAMPLES)[:, None]
    row = (member * samples + sample) * tl.num_programs(0) + tl.program_id(0)
    tl.store(result + row, sums, mask=sample < samples)
