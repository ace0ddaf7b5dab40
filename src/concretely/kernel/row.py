"""Functions shared by the kernels of binary nodes: how programs divide the rows of units among them.

A Philox counter gives four random words. Each goes to one quarter of a draw, so that a program handles the same place
in all four quarters. A program sums along a row in `LANES` partial sums, one for each thread.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from .philox import quarter, words_beside
from .tile import ceil_div, power

BLOCK = 128
BUSY = 2048
"""The number of programs that keeps a GPU busy."""
FEW = 2**19
"""Up to this number of units, a kernel takes little more time than its launch."""
STEPS = 8
"""The minimum number of tiles that a program sums before another launch adds the partial sums of several programs."""


@triton.jit
def placed(first, k, units, total, quarter, LONG: tl.constexpr, BLOCK: tl.constexpr):
    """Return the elements of a block in one quarter of a draw, their units, and the mask of those that exist.

    If rows are at least as long as a block (LONG), one division suffices for all elements.
    """
    place = first + tl.arange(0, BLOCK)
    element = k * quarter + place
    unit = (k * quarter + first) % units + tl.arange(0, BLOCK)
    unit = tl.where(unit < units, unit, unit - units) if LONG else unit % units
    return element, unit, (place < quarter) & (element < total)


@triton.jit
def load_quarter(logits, first, k, units, total, quarter, LONG: tl.constexpr, BLOCK: tl.constexpr):
    """Return the logits of a block in one quarter."""
    _, unit, mask = placed(first, k, units, total, quarter, LONG, BLOCK)
    return tl.load(logits + unit, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_four(logits, first, units, total, quarter, LONG: tl.constexpr, BLOCK: tl.constexpr):
    """Load the logits of a block in all quarters, before any is needed."""
    return [load_quarter(logits, first, k, units, total, quarter, LONG, BLOCK) for k in (0, 1, 2, 3)]


@triton.jit
def point_in(k, step, points):
    """Return the data point of a program's row in quarter k. It advances by `step` from one quarter to the next."""
    point = tl.program_id(0) % points
    for _ in tl.static_range(k):
        point += step
        point = tl.where(point < points, point, point - points)
    return point.to(tl.int64)


@triton.jit
def row_in(k):
    """Return the index of the row of a program in one quarter."""
    return k * tl.num_programs(0).to(tl.int64) + tl.program_id(0)


@triton.jit
def load_piece(logits, offset, k, step, points, LENGTH: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Load the logits of a piece of a row in one quarter."""
    along = tl.arange(0, BLOCK)
    mask = None if EVEN else offset + along < LENGTH
    return tl.load(logits + (point_in(k, step, points) * LENGTH + offset) + along, mask=mask).to(tl.float32)


@triton.jit
def store_piece(out, values, offset, k, member, LENGTH: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Store a piece of a row of one quarter."""
    row = member * 4 * tl.num_programs(0) + row_in(k)
    along = tl.arange(0, BLOCK)
    tl.store(out + (row * LENGTH + offset) + along, values, mask=None if EVEN else offset + along < LENGTH)


@triton.jit
def draw_pieces(
    HOW: tl.constexpr, given, offset, LENGTH: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """Draw a piece of a row in each quarter. With SAME, all quarters have the same logits, as of different samples."""
    DRAW: tl.constexpr = HOW[0]
    SQUASH: tl.constexpr = HOW[1]
    SAME: tl.constexpr = HOW[2]
    WIDE: tl.constexpr = HOW[3]
    own, logits, key, nonce, member, points, step = given
    held = [load_piece(logits, offset, k, step, points, LENGTH, BLOCK, EVEN) for k in ((0,) if SAME else (0, 1, 2, 3))]
    place = tl.program_id(0).to(tl.int64 if WIDE else tl.int32) * LENGTH + (offset + tl.arange(0, BLOCK))
    words = words_beside(held[0], key, member, place, nonce)
    return [
        DRAW(held[0 if SAME else k], words[k], own, offset, k, member, SQUASH, LENGTH, LANES, BLOCK, EVEN)
        for k in (0, 1, 2, 3)
    ]


@triton.jit
def draw_rows(
    DRAW: tl.constexpr, own, logits, key, nonce, member, points, step,
    SQUASH: tl.constexpr, SAME: tl.constexpr, WIDE: tl.constexpr,
    LENGTH: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Draw the rows of a program, one in each quarter, and return their log probabilities, a partial sum per lane.

    `DRAW` draws a piece of one quarter and takes the extra arguments `own`.
    """
    zero = tl.zeros((LANES,), tl.float32)
    return over_row(
        draw_pieces, (DRAW, SQUASH, SAME, WIDE), (own, logits, key, nonce, member, points, step),
        (zero, zero, zero, zero), LENGTH, LANES, BLOCK, WHOLE, REST,
    )  # fmt: skip


@triton.jit
def store_rows(out, member, total, constant):
    """Store the sums of the rows of a program, one in each quarter."""
    out += member * 4 * tl.num_programs(0)
    for k in tl.static_range(4):
        tl.store(out + row_in(k), constant + tl.sum(total[k], 0))


@triton.jit
def over_row(
    TAKE: tl.constexpr, HOW: tl.constexpr, given, total,
    LENGTH: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """Call the function TAKE on every piece of a row, and add its results to the totals."""
    for offset in range(0, WHOLE, BLOCK):
        total = added(total, TAKE(HOW, given, offset, LENGTH, LANES, BLOCK, True))
    if WHOLE < LENGTH:
        total = added(total, TAKE(HOW, given, WHOLE, LENGTH, LANES, REST, WHOLE + REST <= LENGTH))
    if WHOLE + REST < LENGTH:
        total = added(total, TAKE(HOW, given, WHOLE + REST, LENGTH, LANES, LANES, WHOLE + REST + LANES <= LENGTH))
    return total


@triton.jit
def added(total, parts):
    """Return the elementwise sums of two tuples."""
    sums = ()
    for i in tl.static_range(len(total)):
        sums = sums + (total[i] + parts[i],)  # type: ignore[assignment]  # noqa: RUF005 (Triton unpacks nothing)
    return sums


class Pieces(NamedTuple):
    """How a row is cut into pieces so that few lanes are idle."""

    LANES: int
    BLOCK: int
    """The length of the first pieces."""
    WHOLE: int
    """The total length of the first pieces."""
    REST: int
    """The length of the next piece. If another piece follows, its length is the number of lanes."""


def pieces(length: int, *, busy: bool) -> Pieces:
    """Return the pieces of a row: for one warp, which sums without synchronization, or for several if not `busy`."""
    width = max(power(length), 32)
    lanes = 32 if busy else min(width, 2 * BLOCK)
    block = min(width, BLOCK if busy else lanes)
    whole = length // block * block
    left = ceil_div(length - whole, lanes)
    return Pieces(lanes, block, whole, (2 if left == 3 else left) * lanes)


def has_quarters(total: int, length: int) -> bool:
    """Return whether each quarter of a draw consists of whole rows, so that it can be drawn row by row."""
    return length > 1 and total // length % 4 == 0


class Launch(NamedTuple):
    """A kernel launch: its grid of programs and members, its counts of units, samples or rows, and its options."""

    grid: tuple[int, int]
    counts: tuple[int, ...]
    options: dict[str, int]


@lru_cache(maxsize=1024)
def draws(members: int, samples: int, units: int, length: int) -> Launch:
    """Return the launch of a draw, by rows if `length` > 1, else by units. Quarters must consist of whole rows."""
    total = samples * units
    wide = total >= 2**30  # most draws can be numbered in 32 bits, in which division is faster
    if length > 1:
        programs, points = total // length // 4, units // length
        cut, step = pieces(length, busy=programs * members >= BUSY), programs % points
        options = {"SAME": step == 0, "WIDE": wide, "LENGTH": length, **cut._asdict(), "num_warps": cut.LANES // 32}
        return Launch((programs, members), (points, step), options)
    programs = ceil_div(quarter(total), BLOCK)
    options = {"WIDE": wide, "LONG": units >= BLOCK, "BLOCK": BLOCK}
    options["num_warps"] = 1 if programs * members >= 2 * BUSY else 4
    return Launch((programs, members), (units, total, quarter(total)), options)


class Tiling(NamedTuple):
    """How programs divide samples and units: each handles some units, and loops over the samples, some at a time."""

    rows: int
    units: int
    parts: int
    """The number of programs that share the samples of a unit. Each stores the sum over its part."""
    steps: int
    warps: int
    grid: tuple[int, int]


@lru_cache(maxsize=1024)
def tiling(members: int, samples: int, units: int, *, sums: bool) -> Tiling:
    """Return the tiling. Sums over many samples have no more parts than needed to keep the device busy."""
    count = members * samples * units
    elements = min(max(power(count // BUSY), 128), 512)
    if sums and samples >= 16 and count <= FEW:  # tall tiles, since the number of sequential steps decides the time
        elements, height = 512, min(power(samples), 64)
    else:
        height = min(power(samples), 16, elements // 32)
    while height > 1 and 8 * (ceil_div(samples, height) * height - samples) > samples:
        height //= 2  # so that few rows of a tile lie past the end
    width = elements // height
    tall, wide = ceil_div(samples, height), ceil_div(units, width)
    parts = max(min(ceil_div(tall, STEPS), BUSY // (members * wide)), 1)
    steps = ceil_div(tall, parts) if sums else 1
    parts = ceil_div(tall, steps)
    return Tiling(height, width, parts, steps, elements // 128, (parts * wide, members))


@triton.jit
def corner(units, steps, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """Return the part of a sum that a program computes, its first rows, and its units."""
    wide = tl.cdiv(units, UNITS)
    part = tl.program_id(0) // wide
    row = part.to(tl.int64) * steps * ROWS + tl.arange(0, ROWS)
    unit = (tl.program_id(0) % wide).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    return part, row[:, None], unit[None, :]


@triton.jit
def point_of(unit, LENGTH: tl.constexpr):
    """Return the rows that units belong to. Units are numbered in 32 bits, in which division is faster."""
    return unit if LENGTH == 1 else (unit.to(tl.uint32) // LENGTH).to(tl.int64)


@lru_cache(maxsize=1024)
def scores(members: int, samples: int, units: int, length: int) -> Launch:
    """Return the launch of a score, of units or of rows. With several samples, a program has rows of one data point."""
    if length == 1:
        tile = tiling(members, samples, units, sums=False)
        return Launch(tile.grid, (units, samples), {"ROWS": tile.rows, "UNITS": tile.units, "num_warps": tile.warps})
    points = units // length
    count = members * samples * points
    cut, height = pieces(length, busy=count >= BUSY), 1
    if length <= 16:  # a warp has several rows
        width = max(power(length), 4)
        cut, height = Pieces(width, width, length // width * width, width), 32 // width
    while height < (8 if length > 16 else 128 // cut.LANES) and count // height >= 4 * BUSY:
        height *= 2
    height = min(height, power(samples)) if samples > 1 else height
    programs = points * ceil_div(samples, height) if samples > 1 else ceil_div(points, height)
    shared, warps = samples > 1, max(cut.LANES // 32, 1)
    options = {"LENGTH": length, "SHARED": shared, "ROWS": height, **cut._asdict(), "num_warps": warps}
    return Launch((programs, members), (samples, points), options)


@triton.jit
def placed_rows(samples, points, SHARED: tl.constexpr, ROWS: tl.constexpr):
    """Return the rows of a program, the data point of each (or of all, if SHARED), and the mask of existing rows."""
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
def load_stretch(rows, row, inside, offset, other, LENGTH: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Load a piece of each of some rows."""
    along = tl.arange(0, BLOCK)[None, :]
    mask = inside if EVEN else inside & (offset + along < LENGTH)
    return tl.load(rows + (row * LENGTH + offset) + along, mask=mask, other=other).to(tl.float32)


def gradients_of_mass(gradient: Callable[..., Tensor]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the backward functions of a draw and of a score of states, from the gradient of the log mass."""

    def draw_backward(by: Any, needs: Any, inputs: Any, outputs: Any) -> tuple[Tensor]:
        logits, _, _, squash, length = inputs
        return (gradient(by[1], outputs[0], logits, squash, length),)

    def score_backward(by: Any, needs: Any, inputs: Any, outputs: Any) -> tuple[None, Tensor]:
        return None, gradient(by[0], *inputs)

    return draw_backward, score_backward
