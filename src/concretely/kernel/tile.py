"""How rows of categories are divided among the programs of a GPU."""

from typing import NamedTuple

LARGEST = 8192
"""The maximum number of categories that one program holds."""
_ROWS = 2**30
"""The maximum number of rows that 32 bits can count, with the four quarters of a tile."""
_SAMPLES = 2**16
"""The maximum number of programs along the second axis of a launch."""
_ENOUGH = 512
"""The number of programs that keeps a GPU busy."""


def fits(rows: int, n: int) -> bool:
    """Return whether kernels support this number of rows of n categories."""
    return n <= LARGEST and rows <= _ROWS


def power(count: int) -> int:
    """Return the smallest power of two that is at least `count`."""
    return 1 << max(count - 1, 0).bit_length()


def ceil_div(count: int, size: int) -> int:
    """Return how many tiles of a size hold `count` elements. Triton's own function is slow outside of kernels."""
    return -(-count // size)


class DrawTile(NamedTuple):
    """A tile of units and categories. A program has one in each quarter and, if rows are summed, loops along a row."""

    length: int
    """The length of the rows that are summed, or 1 if none are, as when a quarter does not consist of whole rows."""
    units: int
    width: int
    warps: int
    programs: int


def draw_tile(members: int, total: int, n: int, length: int) -> DrawTile:
    """Return the tile for a draw of `total` units, summed over rows of `length`.

    A thread has four neighbouring numbers of each quarter, as many as it can load at once.
    """
    width, quarter = power(n), -(-total // 4)
    if length == 1 or total // length % 4:
        length = 1
        units = max(min(max(power(quarter * members // _ENOUGH), 128 // width), 512 // width), 1)
        programs = -(-quarter // units)
    else:
        programs = quarter // length
        units = stretch(length, width, busy=programs * members >= 4 * _ENOUGH)
    return DrawTile(length, units, width, min(max(units * width // 128, 1), 16), programs)


def stretch(length: int, width: int, *, busy: bool) -> int:
    """Return how many units of a row to process at a time. If the GPU is busy, few are left over at the end."""
    units = most = min(power(length), max(512 // width, 1))
    while busy and units * width > 128:
        units //= 2
        if -(-length // units) * units < -(-length // most) * most:
            most = units
    return most


class UnitTile(NamedTuple):
    """A tile of samples, units and categories. A program loops over the samples, one tile at each step."""

    samples: int
    units: int
    width: int
    steps: int
    warps: int
    grid: tuple[int, int]
    """The programs along the units and along the samples."""
    length: int = 1
    """The length of the rows that are summed, or 1 if none are."""


def unit_tile(members: int, samples: int, units: int, n: int, *, least: int) -> UnitTile:
    """Return the tile for logits shared by samples, with at least `least` steps if there are enough samples."""
    width = power(n)
    elements = 1024 if members * samples * units * width >= 2**20 else 256
    along = min(power(samples), 8)
    across = min(power(units), max(elements // (width * along), 32 // width, 1))
    along = min(power(samples), max(elements // (width * across), 1))
    columns, blocks = -(-units // across), -(-samples // along)
    chunks = max(min(4 * _ENOUGH // (columns * members), -(-blocks // least)), 1)
    steps = -(-blocks // chunks)
    warps = min(max(along * across * width // 256, 1), 16)
    return UnitTile(along, across, width, steps, warps, (columns, -(-blocks // steps)))


def score_tile(members: int, samples: int, units: int, n: int, length: int) -> UnitTile:
    """Return the tile for log densities that are summed over rows of `length`, along which a program loops."""
    if length == 1 or samples >= _SAMPLES:
        return unit_tile(members, samples, units, n, least=1)
    width, points = power(n), units // length
    across = stretch(length, width, busy=members * samples * points >= 4 * _ENOUGH)
    few = max(members * samples * points // (4 * _ENOUGH), 1)
    deep = min(power(samples), max(1024 // (across * width), 1), power(few))
    warps = min(max(deep * across * width // 128, 1), 16)
    return UnitTile(deep, across, width, 1, warps, (points, -(-samples // deep)), length)
