r"""A number on L evenly spaced levels between -1 and 1, drawn by rounding with uniform noise.

With u in [0, L - 1], level $⌊u + U⌋$ has mean u. So the mean of the drawn value is the number itself.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor


class Grid(NamedTuple):
    """Numbers of levels, and what follows from them."""

    half: Float[Tensor, " d"]
    """(L - 1) / 2."""
    top: Int64[Tensor, " d"]
    """The last level L - 1."""
    bottom: Int64[Tensor, " d"]
    """Minus the last level."""
    levels: Int64[Tensor, " d"]
    """The number of levels L."""
    radix: Int64[Tensor, " d"]
    """The number of codes that differ in later dimensions only."""


def grid(levels: Int64[Tensor, " d"]) -> Grid:
    """Return what follows from numbers of levels."""
    return Grid((levels - 1) / 2, levels - 1, 1 - levels, levels, levels.flip(0).cumprod(0).flip(0) // levels)


def place(soft: Float[Tensor, "*batch d"], grid: Grid) -> Float[Tensor, "*batch d"]:
    """Return the place of a number in [-1, 1] between the first level, 0, and the last, L - 1."""
    return torch.addcmul(grid.half, soft, grid.half)


def push(
    place: Float[Tensor, "*batch d"], grid: Grid, noise: Float[Tensor, "*batch d"] | float = 0.5
) -> Int64[Tensor, "*batch d"]:
    """Return the level that noise between 0 and 1 rounds a place to. The noise 1/2 rounds to the nearest level."""
    return torch.minimum((place + noise).long().clamp(min=0), grid.top)


def value_of(level: Int64[Tensor, "*batch d"], grid: Grid, dtype: torch.dtype) -> Tensor:
    """Return the values of levels, from -1 to 1."""
    return torch.add(grid.bottom, level, alpha=2).to(dtype) / grid.top


def index_of(level: Int64[Tensor, "*batch d"], grid: Grid) -> Int64[Tensor, "*batch"]:
    """Return the number of a code: its levels as digits, the first one the highest."""
    return (level * grid.radix).sum(-1)


def level_of(index: Int64[Tensor, "*batch"], grid: Grid) -> Int64[Tensor, "*batch d"]:
    """Return the levels of the code with a number."""
    return index.unsqueeze(-1) // grid.radix % grid.levels


def shares(place: Float[Tensor, "*batch d"], most: int) -> Float[Tensor, "*batch d {most}"]:
    """Return the probability of every level, up to the largest number of levels. At most two are not 0."""
    level = torch.arange(most, dtype=place.dtype, device=place.device)
    return (1 - (place.unsqueeze(-1) - level).abs()).clamp(min=0)


def entropy(share: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return -p log p, with a finite gradient at 0, where a place on a level leaves other levels."""
    return -share * torch.where(share > 0, share, 1).log()
