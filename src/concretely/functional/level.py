r"""A number on L evenly spaced levels between -1 and 1, drawn by rounding with uniform noise.

With u in [0, L - 1], level $⌊u + U⌋$ has mean u. So the mean of the drawn value is the number itself.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def place(x: Float[Tensor, "*batch d"], levels: Int64[Tensor, " d"]) -> Float[Tensor, "*batch d"]:
    """Return the place of tanh(x) between the first level, 0, and the last, L - 1."""
    return (torch.tanh(x) + 1) * ((levels - 1) / 2).to(x.dtype)


def push(
    place: Float[Tensor, "*batch d"], levels: Int64[Tensor, " d"], noise: Float[Tensor, "*batch d"] | float = 0.5
) -> Int64[Tensor, "*batch d"]:
    """Return the level that noise between 0 and 1 rounds a place to. The noise 1/2 rounds to the nearest level."""
    return torch.minimum((place + noise).floor().long().clamp(min=0), levels - 1)


def value_of(level: Int64[Tensor, "*batch d"], levels: Int64[Tensor, " d"], dtype: torch.dtype) -> Tensor:
    """Return the values of levels, from -1 to 1."""
    return (2 * level - (levels - 1)).to(dtype) / (levels - 1).to(dtype)


def index_of(level: Int64[Tensor, "*batch d"], levels: Int64[Tensor, " d"]) -> Int64[Tensor, "*batch"]:
    """Return the number of a code: its levels as digits, the first one the highest."""
    return (level * _radix(levels)).sum(-1)


def level_of(index: Int64[Tensor, "*batch"], levels: Int64[Tensor, " d"]) -> Int64[Tensor, "*batch d"]:
    """Return the levels of the code with a number."""
    return index.unsqueeze(-1) // _radix(levels) % levels


def shares(place: Float[Tensor, "*batch d"], most: int) -> Float[Tensor, "*batch d {most}"]:
    """Return the probability of every level, up to the largest number of levels. At most two are not 0."""
    level = torch.arange(most, dtype=place.dtype, device=place.device)
    return (1 - (place.unsqueeze(-1) - level).abs()).clamp(min=0)


def entropy(share: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return -p log p, with a finite gradient at 0, where a place on a level leaves other levels."""
    return -share * torch.where(share > 0, share, 1).log()


def _radix(levels: Int64[Tensor, " d"]) -> Int64[Tensor, " d"]:
    return levels.flip(0).cumprod(0).flip(0) // levels
