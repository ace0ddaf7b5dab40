r"""A number on L evenly spaced levels between -1 and 1, drawn by rounding with uniform noise.

With u in [0, L - 1], level $⌊u + U⌋$ has mean u. So the mean of the drawn value is the number itself.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..kernel.operator import is_plain, is_watched, plain_apply
from .arithmetic import compute_dtype, scalar


class Grid(NamedTuple):
    """Numbers of levels, and what follows from them."""

    end: Float[Tensor, " d"]
    """The last level in float32."""
    levels: Int64[Tensor, " d"]
    """The number of levels L."""
    radix: Int64[Tensor, " d"]
    """The number of codes that differ in later dimensions only."""
    weight: Float[Tensor, " d"]
    """The same in float32."""


def grid(levels: Int64[Tensor, " d"]) -> Grid:
    """Return what follows from numbers of levels."""
    radix = levels.flip(0).cumprod(0).flip(0) // levels
    return Grid((levels - 1).float(), levels, radix, radix.float())


def rounded(
    x: Float[Tensor, "*batch d"], grid: Grid, noise: Float[Tensor, "*batch d"] | None
) -> tuple[Float[Tensor, "*batch d"], Float[Tensor, "*batch d"], Float[Tensor, "*batch d"]]:
    """Return the rounded tanh of numbers with the gradient of the tanh, its places, and the levels.

    The place of a number lies between the first level, 0, and the last, L - 1. Without noise, which is between 0 and 1,
    the nearest level is taken. All results are in at least float32.
    """
    if is_plain((x,)) and not is_watched():
        return _ROUNDED(x, grid.end, noise)  # type: ignore[return-value]
    share = torch.sigmoid(2 * x.to(compute_dtype(x.dtype)))
    place = share * grid.end
    level = push(place.detach(), grid.end, 0.5 if noise is None else noise)
    value = value_of(level, grid.end)
    return value + 2 * (share - share.detach()), place, level


def push(
    place: Float[Tensor, "*batch d"], end: Float[Tensor, " d"], noise: Float[Tensor, "*batch d"] | float | Tensor
) -> Float[Tensor, "*batch d"]:
    """Return the level that noise between 0 and 1 rounds a place to. The noise 1/2 rounds to the nearest level."""
    level = (place + noise).floor_()
    return torch.minimum(level, end)  # the sum may be rounded up


class _Rounded(torch.autograd.Function):
    """`rounded` as one autograd node."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, end: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        wide = x if x.dtype.itemsize > 2 else x.float()
        share = torch.add(wide, wide).sigmoid_()
        place = share * end
        level = push(place, end, scalar(0.5) if noise is None else noise)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(level)
        ctx.save_for_backward(x, end, share)
        return value_of(level, end), place, level

    @staticmethod
    def backward(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, None, None]:
        x, end, share = ctx.saved_tensors
        by_value, by_place, _ = by
        # the derivatives of tanh(x) and of σ(2x) are 4σ(1 - σ) and 2σ(1 - σ)
        if torch.is_grad_enabled():
            share = torch.sigmoid(2 * x.to(share.dtype))
        elif by_value is not None and by_place is None:
            return sigmoid_backward(by_value, share).mul_(scalar(4.0)).to(x.dtype), None, None
        parts = [] if by_value is None else [by_value + by_value]
        parts += [] if by_place is None else [by_place * end]
        if not parts:
            return None, None, None
        total = parts[0] + parts[1] if len(parts) > 1 else parts[0]
        slope = sigmoid_backward(total, share)
        return (slope + slope).to(x.dtype), None, None


_ROUNDED: Callable[..., tuple[Tensor, ...]] = plain_apply(_Rounded)
sigmoid_backward = torch.ops.aten.sigmoid_backward.default


def value_of(level: Float[Tensor, "*batch d"], end: Float[Tensor, " d"]) -> Float[Tensor, "*batch d"]:
    """Return the values of levels, from -1 to 1."""
    return (level + level).sub_(end).div_(end)


def index_of(
    level: Float[Tensor, "*batch d"] | Int64[Tensor, "*batch d"], grid: Grid, codes: float = math.inf
) -> Int64[Tensor, "*batch"]:
    """Return the number of a code: its levels as digits, the first one the highest. There are at most `codes`."""
    # products on a CPU are exact up to 2²⁴ in float32, without autocast
    if codes <= 2**24 and level.is_cpu and level.dim() == 2 and not torch.is_autocast_enabled("cpu"):
        return torch.mv(level, grid.weight.to(level.dtype)).long()
    return (level.long() * grid.radix).sum(-1)


def counts(
    level: Float[Tensor, "*batch d"],
    index: Int64[Tensor, "*batch"],
    order: Float[Tensor, " most"],
    grid: Grid,
    *,
    mask: Bool[Tensor, "*batch"] | None,
    codes: int,
) -> Float[Tensor, "d most"]:
    """Return how often each level occurs in each dimension, where the mask is True. `order` has all levels."""
    most = len(order)
    if index.is_cpu and index.numel() > codes and mask is None and is_plain((index,)):
        number = torch.bincount(index.flatten().clamp(0, codes - 1), minlength=codes)  # a code of NaN is no number
        every = level_of(torch.arange(codes), grid)
        place = (every + torch.arange(0, every.shape[-1] * most, most)).flatten()
        share = number.to(order.dtype).unsqueeze(-1).expand_as(every).flatten()
        return order.new_zeros(every.shape[-1] * most).index_add_(0, place, share).view(-1, most)
    on = level.unsqueeze(-1) == order
    on = on if mask is None else on & mask[..., None, None]
    return (on if on.dim() == 3 else on.reshape(-1, *on.shape[-2:])).sum(0, dtype=torch.float32)


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
