"""Tiles, loads and stores of the kernels of binary nodes.

One call of the generator gives four words; they go to the same index in the four quarters of a draw.
"""

from typing import NamedTuple

import triton
import triton.language as tl

BLOCK = 128
BUSY = 2048
"""The number of programs that keeps a device busy."""
FEW = 2**19
"""Up to this number of nodes a kernel takes little longer than its launch."""
STEPS = 8
"""The minimum number of steps of a program before sums are split over programs."""


@triton.jit
def placed(first, k, units, total, quarter, LONG: tl.constexpr, BLOCK: tl.constexpr):
    """Return the elements of a block in one quarter of a draw, their units, and the mask of those that exist."""
    place = first + tl.arange(0, BLOCK)
    element = k * quarter + place
    unit = (k * quarter + first) % units + tl.arange(0, BLOCK)
    unit = tl.where(unit < units, unit, unit - units) if LONG else unit % units
    return element, unit, (place < quarter) & (element < total)


@triton.jit
def load_quarter(logits, first, k, units, total, quarter, LONG: tl.constexpr, BLOCK: tl.constexpr):
    """Load the logits of a block in one quarter."""
    _, unit, mask = placed(first, k, units, total, quarter, LONG, BLOCK)
    return tl.load(logits + unit, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_four(logits, first, units, total, quarter, LONG: tl.constexpr, BLOCK: tl.constexpr):
    """Start loading the logits of a block in all quarters."""
    return (
        load_quarter(logits, first, 0, units, total, quarter, LONG, BLOCK),
        load_quarter(logits, first, 1, units, total, quarter, LONG, BLOCK),
        load_quarter(logits, first, 2, units, total, quarter, LONG, BLOCK),
        load_quarter(logits, first, 3, units, total, quarter, LONG, BLOCK),
    )


@triton.jit
def point_in(k, step, points):
    """Return the data point of a program's row in quarter k."""
    point = tl.program_id(0) % points
    for _ in tl.static_range(k):
        point += step
        point = tl.where(point < points, point, point - points)
    return point.to(tl.int64)


@triton.jit
def row_in(k):
    """Return the row of a program in quarter k."""
    return k * tl.num_programs(0).to(tl.int64) + tl.program_id(0)


@triton.jit
def load_piece(
    logits, offset, k, step, points,
    LENGTH: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Load the logits of a piece of a row in one quarter."""
    along = tl.arange(0, BLOCK)
    mask = None if EVEN else offset + along < LENGTH
    return tl.load(logits + (point_in(k, step, points) * LENGTH + offset) + along, mask=mask).to(tl.float32)


@triton.jit
def load_pieces(
    logits, offset, step, points,
    SAME: tl.constexpr, LENGTH: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Load the logits of a piece of a row in all quarters, once if they are the same."""
    a = load_piece(logits, offset, 0, step, points, LENGTH, BLOCK, EVEN)
    b, c, d = a, a, a
    if not SAME:
        b = load_piece(logits, offset, 1, step, points, LENGTH, BLOCK, EVEN)
        c = load_piece(logits, offset, 2, step, points, LENGTH, BLOCK, EVEN)
        d = load_piece(logits, offset, 3, step, points, LENGTH, BLOCK, EVEN)
    return a, b, c, d


@triton.jit
def store_piece(
    out, result, offset, k, member,
    LENGTH: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Store a piece of a row in one quarter."""
    row = member * 4 * tl.num_programs(0) + row_in(k)
    along = tl.arange(0, BLOCK)
    tl.store(out + (row * LENGTH + offset) + along, result, mask=None if EVEN else offset + along < LENGTH)


@triton.jit
def store_rows(out, member, a, b, c, d, constant):
    """Store the sums of the rows of a program, one in each quarter."""
    out += member * 4 * tl.num_programs(0)
    tl.store(out + row_in(0), constant + tl.sum(a, 0))
    tl.store(out + row_in(1), constant + tl.sum(b, 0))
    tl.store(out + row_in(2), constant + tl.sum(c, 0))
    tl.store(out + row_in(3), constant + tl.sum(d, 0))


@triton.jit
def place_of(offset, LENGTH: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Return the counters of a piece of a row."""
    return tl.program_id(0).to(tl.int64 if WIDE else tl.int32) * LENGTH + (offset + tl.arange(0, BLOCK))


class Pieces(NamedTuple):
    """The pieces of a row, chosen so that few lanes are idle."""

    LANES: int
    BLOCK: int
    """The length of the first pieces."""
    WHOLE: int
    """The end of the first pieces."""
    REST: int
    """The length of the next piece; the last piece has one unit per lane."""


def pieces(length: int, *, busy: bool) -> Pieces:
    """Return the pieces of a row, for one warp if busy and for more warps if there are few rows."""
    width = max(triton.next_power_of_2(length), 32)
    lanes = 32 if busy else min(width, 2 * BLOCK)
    block = min(width, BLOCK if busy else lanes)
    whole = length // block * block
    left = triton.cdiv(length - whole, lanes)
    return Pieces(lanes, block, whole, (2 if left == 3 else left) * lanes)


def has_quarters(total: int, length: int) -> bool:
    """Return whether each quarter of a draw contains whole rows."""
    return length > 1 and total // length % 4 == 0


class Tiling(NamedTuple):
    """The tile of a program: some units, and some samples at every step."""

    rows: int
    units: int
    parts: int
    """The number of programs that share the samples of a unit; each stores a partial sum."""
    steps: int
    warps: int
    grid: tuple[int, int]


def tiling(members: int, samples: int, units: int, *, sums: bool) -> Tiling:
    """Return the tiling of nodes, with few partial sums if the device is busy."""
    count = members * samples * units
    elements = min(max(triton.next_power_of_2(count // BUSY), 128), 512)
    if sums and samples >= 16 and count <= FEW:  # tall tiles need fewer sequential steps
        elements, height = 512, min(triton.next_power_of_2(samples), 64)
    else:
        height = min(triton.next_power_of_2(samples), 16, elements // 32)
    while height > 1 and 8 * (triton.cdiv(samples, height) * height - samples) > samples:
        height //= 2  # limit the padding
    width = elements // height
    tall, wide = triton.cdiv(samples, height), triton.cdiv(units, width)
    parts = max(min(triton.cdiv(tall, STEPS), BUSY // (members * wide)), 1)
    steps = triton.cdiv(tall, parts) if sums else 1
    parts = triton.cdiv(tall, steps)
    return Tiling(height, width, parts, steps, elements // 128, (parts * wide, members))


@triton.jit
def corner(units, steps, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """Return the part, the first rows and the units of a program."""
    wide = tl.cdiv(units, UNITS)
    part = tl.program_id(0) // wide
    row = part.to(tl.int64) * steps * ROWS + tl.arange(0, ROWS)
    unit = (tl.program_id(0) % wide).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    return part, row[:, None], unit[None, :]


@triton.jit
def point_of(unit, LENGTH: tl.constexpr):
    """Return the rows of units; the division in 32 bits is faster."""
    return unit if LENGTH == 1 else (unit.to(tl.uint32) // LENGTH).to(tl.int64)


class RowTiling(NamedTuple):
    """The rows of a program, which belong to one data point if there are several samples."""

    shared: bool
    rows: int
    cut: Pieces
    warps: int
    grid: tuple[int, int]


def row_tiling(members: int, samples: int, units: int, length: int) -> RowTiling:
    """Return the tiling of rows of `length` units."""
    points = units // length
    count = members * samples * points
    cut, height = pieces(length, busy=count >= BUSY), 1
    if length <= 16:  # several rows per warp
        width = max(triton.next_power_of_2(length), 4)
        cut, height = Pieces(width, width, length // width * width, width), 32 // width
    while height < (8 if length > 16 else 128 // cut.LANES) and count // height >= 4 * BUSY:
        height *= 2
    height = min(height, triton.next_power_of_2(samples)) if samples > 1 else height
    programs = points * triton.cdiv(samples, height) if samples > 1 else triton.cdiv(points, height)
    return RowTiling(samples > 1, height, cut, max(cut.LANES // 32, 1), (programs, members))


@triton.jit
def placed_rows(samples, points, SHARED: tl.constexpr, ROWS: tl.constexpr):
    """Return the rows of a program, their data points, and the mask of those that exist."""
    number = tl.program_id(0)
    if SHARED:
        sample = (number // points).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        point = (number % points).to(tl.int64) + tl.arange(0, 1)[:, None]
        row, inside = sample * points + point, sample < samples
    else:
        row = number.to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        point, inside = row, row < points
    return row, point, inside


@triton.jit
def load_stretch(
    rows, row, inside, offset, other,
    LENGTH: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Load a piece of each row."""
    along = tl.arange(0, BLOCK)[None, :]
    mask = inside if EVEN else inside & (offset + along < LENGTH)
    return tl.load(rows + (row * LENGTH + offset) + along, mask=mask, other=other).to(tl.float32)
