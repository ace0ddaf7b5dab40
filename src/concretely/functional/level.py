r"""A number on L evenly spaced levels between -1 and 1, drawn by rounding with uniform noise.

With u in [0, L - 1], level $⌈u - U⌉$ has mean u. So the mean of the drawn value is the number itself.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..kernel.operator import is_plain, is_watched, plain_apply
from .arithmetic import compute_dtype, is_hidden, plus, scalar

LONG, ROWS = 2**12, 16
"""Above this number of inputs, torch on a CPU broadcasts to several rows at once in a fifth of the time."""


class Grid(NamedTuple):
    """Numbers of levels, and tensors computed from them."""

    end: Float[Tensor, " d"]
    """The last level, L - 1, in float32."""
    half: Float[Tensor, " d"]
    """Half of it."""
    levels: Int64[Tensor, " d"]
    """The number of levels L."""
    radix: Int64[Tensor, " d"]
    """The number of codes that differ in later dimensions only."""
    weight: Float[Tensor, " d"]
    """The same in float32."""
    order: Float[Tensor, "most 1 1"]
    """All levels up to the largest number of levels."""


def grid(levels: Int64[Tensor, " d"]) -> Grid:
    """Return numbers of levels, and tensors computed from them."""
    radix, end = levels.flip(0).cumprod(0).flip(0) // levels, (levels - 1).float()
    order = torch.arange(float(levels.max()), device=levels.device).view(-1, 1, 1)
    return Grid(end, end / 2, levels, radix, radix.float(), order)


def rounded(
    x: Float[Tensor, "*batch d"], grid: Grid, noise: Float[Tensor, "*batch d"] | None
) -> tuple[Float[Tensor, "*batch d"], Float[Tensor, "*batch d"], Float[Tensor, "*batch d"]]:
    """Return the rounded tanh of numbers with the gradient of the tanh, its places, and the levels.

    The place of a number lies between the first level, 0, and the last, L - 1. Without noise, which is between 0 and 1,
    the nearest level is taken. All results are in at least float32. Noise of many inputs is overwritten.
    """
    if is_plain((x,)) and not is_watched():
        return _ROUNDED(x, grid.end, grid.half, noise)  # type: ignore[return-value]
    share = torch.sigmoid(2 * x.to(compute_dtype(x.dtype)))
    place = share * grid.end
    level = push(place.detach(), noise)
    value = value_of(level, grid.half)
    return value + 2 * (share - share.detach()), place, level


def push(
    place: Float[Tensor, "*batch d"], noise: Float[Tensor, "*batch d"] | None, *, out: Tensor | None = None
) -> Float[Tensor, "*batch d"]:
    """Return the level that noise, at least 0 and below 1, rounds a place to; without noise, the nearest level."""
    if noise is None:
        return plus(place, 0.5).floor_()
    return torch.sub(place, noise, out=out).ceil_()  # never above the last level, even if the difference is rounded


def _pushed(
    share: Tensor, noise: Tensor | None, end: Tensor, half: Tensor, *, out: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return values, places and levels."""
    place = share * end
    level = push(place, noise, out=out)
    return value_of(level, half), place, level


class _Rounded(torch.autograd.Function):
    """`rounded` as one autograd node."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, end: Tensor, half: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        wide = x if x.dtype.itemsize > 2 else x.float()
        share = torch.add(wide, wide).sigmoid_()
        if x.is_cpu and x.numel() > LONG and x.is_contiguous():
            size = math.gcd(x.numel() // len(end), ROWS) * len(end)
            end_of, half_of = (each.repeat(size // len(end)) for each in (end, half))
            rows = None if noise is None else noise.view(-1, size)
            # levels overwrite the noise, as new memory takes longer than a difference
            joined = _pushed(share.view(-1, size), rows, end_of, half_of, out=rows)
            value, place, level = (each.view(x.shape) for each in joined)
        else:
            value, place, level = _pushed(share, noise, end, half)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(level)
        ctx.save_for_backward(x, end, share)
        return value, place, level

    @staticmethod
    def backward(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, ...]:
        x, end, share = ctx.saved_tensors
        by_value, by_place, _ = by
        # the derivatives of tanh(x) and of σ(2x) are 4σ(1 - σ) and 2σ(1 - σ)
        if torch.is_grad_enabled():
            share = torch.sigmoid(2 * x.to(share.dtype))
        elif by_value is not None and by_place is None:
            return sigmoid_backward(by_value, share).mul_(scalar(4.0)).to(x.dtype), None, None, None
        parts = [] if by_value is None else [by_value + by_value]
        parts += [] if by_place is None else [by_place * end]
        if not parts:
            return None, None, None, None
        total = parts[0] + parts[1] if len(parts) > 1 else parts[0]
        slope = sigmoid_backward(total, share)
        return (slope + slope).to(x.dtype), None, None, None


_ROUNDED: Callable[..., tuple[Tensor, ...]] = plain_apply(_Rounded)
sigmoid_backward = torch.ops.aten.sigmoid_backward.default


def value_of(level: Float[Tensor, "*batch d"], half: Float[Tensor, " d"]) -> Float[Tensor, "*batch d"]:
    """Return the values of levels, from -1 to 1, given half of the last level."""
    return (level - half).div_(half)


def index_of(
    level: Float[Tensor, "*batch d"] | Int64[Tensor, "*batch d"], grid: Grid, codes: float = math.inf
) -> Int64[Tensor, "*batch"]:
    """Return the number of a code: its levels as digits, the first one the highest. There are at most `codes`."""
    # products on a CPU are exact up to 2²⁴ in float32, without autocast
    if codes <= 2**24 and level.is_cpu and level.dim() == 2 and not torch.is_autocast_enabled("cpu"):
        return torch.mv(level, grid.weight.to(level.dtype)).long()
    return (level.long() * grid.radix).sum(-1)


def have_nan(level: Float[Tensor, "*batch d"]) -> bool:
    """Return whether levels on a CPU, which are at least 0, are not all numbers, if they can be read."""
    if not level.is_cpu or not level.numel() or is_hidden(level) or not is_plain((level,)):
        return False
    return not level.min().item() >= 0


def counts(
    level: Float[Tensor, "*batch d"],
    index: Int64[Tensor, "*batch"],
    grid: Grid,
    *,
    mask: Bool[Tensor, "*batch"] | None,
    codes: int,
) -> Float[Tensor, "d most"]:
    """Return how often each level occurs in each dimension, where the mask is True."""
    if index.is_cpu and index.numel() > codes and mask is None and is_plain((index,)):
        number = torch.bincount(index.flatten(), minlength=codes)
        found = grid.order.new_zeros(len(grid.levels), len(grid.order))
        for own, length, radix in zip(found, grid.levels.tolist(), grid.radix.tolist(), strict=True):
            own[:length] = number.view(-1, length, radix).sum((0, 2))
        return found
    on = (level if level.dim() == 2 else level.reshape(-1, level.shape[-1])) == grid.order
    on = on if mask is None else on & mask.reshape(-1, 1)
    return on.sum(1, dtype=torch.float32).T


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
