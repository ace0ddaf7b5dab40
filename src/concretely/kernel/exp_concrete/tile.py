"""How rows of categories are dealt out to the programs of a GPU."""

from dataclasses import dataclass

LARGEST = 8192
"""The most categories that one program holds."""
_ROWS = 2**30
"""So many rows are counted in 32 bits, the four quarters of a tile included."""
_ENOUGH = 512
"""Programs that keep a GPU busy."""


def fits(rows: int, n: int) -> bool:
    """Whether rows of so many categories have a fast path."""
    return n <= LARGEST and rows <= _ROWS


def power(count: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(count - 1, 0).bit_length()


def row_tile(quarter: int, members: int, n: int) -> tuple[int, int, int]:
    """The rows of a quarter in a tile, its width, and the warps of a program, which has four such tiles.

    A thread has four neighbours of each quarter, as many as it can load at once.
    """
    width = power(n)
    rows = min(max(power(quarter * members // _ENOUGH), 128 // width), 512 // width)
    rows = max(rows, 1)
    return rows, width, min(max(rows * width // 128, 1), 16)


@dataclass(frozen=True)
class UnitTile:
    """A tile of samples, units and categories, which a program moves along the samples in steps."""

    samples: int
    units: int
    width: int
    steps: int
    warps: int
    grid: tuple[int, int]
    """The programs along the units and along the samples."""


def unit_tile(members: int, samples: int, units: int, n: int, *, least: int) -> UnitTile:
    """The tile for logits shared by samples, with at least so many steps as long as there are samples for them."""
    width = power(n)
    elements = 1024 if members * samples * units * width >= 2**20 else 256
    across = min(power(units), max(elements // width, 1))
    along = min(power(samples), max(elements // (width * across), 1))
    columns, blocks = -(-units // across), -(-samples // along)
    chunks = max(min(4 * _ENOUGH // (columns * members), -(-blocks // least)), 1)
    steps = -(-blocks // chunks)
    warps = min(max(along * across * width // 256, 1), 16)
    return UnitTile(along, across, width, steps, warps, (columns, -(-blocks // steps)))
