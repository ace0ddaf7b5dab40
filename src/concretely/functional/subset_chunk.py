"""Relaxed draws of many subsets on a CPU, for some rows of logits at a time, so that their trees stay in the cache.

This computes what `subset_concrete` defines, in fewer passes: from the odds of items rather than from their logits,
with exponentials that are computed once, and by Newton's method without a bracket. Where that may not suffice, as for
logits that are far apart, it leaves the work to the definition.
"""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.linalg import vector_norm

from .arithmetic import cast, compute_dtype, to_float64
from .subset import levels_above, select
from .threshold import NEAR, ROUGH, STEPS

FAR, FARTHER = 80.0, 600.0
"""Distances of logits beyond which a ratio of odds may be too small for float32, and for float64."""
UNITS = 2.0**-20
"""More than the error of a threshold that was computed in float32."""
COARSE = 2.0**-6
"""A step in float32 after which Newton's method goes on in float64. Its error is about the square."""

Rows = Float[Tensor, "samples units n"]


def relax_chunk(
    logits: Float[Tensor, "units n"],
    noise: Float[Tensor, "samples units 2 n"],
    k: int,
    temperature: float,
    *,
    slope: Rows,
    value: Rows,
) -> bool:
    """Write the values that noise leads to, and their derivatives by the logits; return whether that was possible.

    The derivatives, in at least float32, are those at a constant threshold.
    """
    dtype = compute_dtype(logits.dtype)
    wide = to_float64(logits)
    wide = wide - wide.amax(-1, keepdim=True)
    least = float(wide.amin())
    if not least > -FARTHER:  # also if it is NaN
        return False
    odds = wide.exp()
    scale = _scale(odds, k, dtype) if least > -FAR else None
    scale = _scale_by_ranks(wide, k, dtype) if scale is None else scale
    if scale is None:
        return False
    places = select(levels_above(_leaves(odds, scale)[: k + 1], k), k, noise)
    kept, rest = _nodes(odds, scale, places, noise[..., 1, :], temperature)
    low, high = kept.amin(-1, keepdim=True), rest.amax(-1, keepdim=True)
    kept, rest = (low - kept).to(dtype).exp_(), rest.sub_(high).to(dtype).exp_()
    point = _middle(kept, rest, (low - high) / 2, dtype)
    if point is None:
        return False
    # from here on in float64, as errors of thresholds and values in float32 would add up in sums
    kept, rest, below, above = (tensor.double() for tensor in (kept, rest, *point))
    share = _share(rest, above)
    slopes = share.mul_(rest.mul_(above).mul_(share)).div_(temperature)
    largest = _share(kept, below)
    of_largest = kept.mul_(below).mul_(largest).mul_(largest).div_(temperature)
    slope.copy_(slopes.scatter_(-1, places, of_largest))
    if dtype != torch.float64:  # move the threshold, whose error may be some units of float32, by the error of the sum
        excess = rest.sum(-1, keepdim=True) + largest.sum(-1, keepdim=True) - k
        moved = excess.div_(slopes.sum(-1, keepdim=True).mul_(temperature)).nan_to_num_(0).clamp_(-UNITS, UNITS)
        rest.addcmul_(slopes, moved, value=-temperature)
        largest.addcmul_(of_largest, moved, value=-temperature)
    narrow = cast(largest, logits.dtype)
    # values of chosen items stay larger than all others, also when rounded
    lowest = to_float64(narrow.amin(-1, keepdim=True)) * (1 - 0.75 * torch.finfo(logits.dtype).eps)
    torch.minimum(cast(rest, logits.dtype), cast(lowest, logits.dtype), out=value)
    value.scatter_(-1, places, narrow)
    return True


def _share(part: Tensor, scale: Tensor) -> Tensor:
    """Return 1 / (1 + part · scale)."""
    return torch.addcmul(part.new_ones(()), part, scale).reciprocal_()


def _scale(odds: Float[Tensor, "units n"], k: int, dtype: torch.dtype) -> Float[Tensor, "units 1"] | None:
    """Return the scale for which Σ odds / (odds + scale) is k, or None if that takes too many steps.

    Without ranks, this takes few passes if no gap separates the largest logits from the others.
    """
    n = odds.shape[-1]
    if 2 * k > n:  # the sum of the others is more precise
        least = odds.amin(-1, keepdim=True)
        inverse = _scale(least / odds, n - k, dtype)
        return None if inverse is None else least / inverse
    scale = odds.mean(-1, keepdim=True) * ((n - k) / k)
    part, close = odds.to(dtype), NEAR if dtype == torch.float64 else COARSE
    for _ in range(STEPS):
        share = part / (part + scale.to(dtype))
        total, square = (
            share.sum(-1, keepdim=True).double(),
            vector_norm(share, dim=-1, keepdim=True).double().square_(),
        )
        # Newton's step for the logit of the mean share, which is linear if all odds are equal
        step = (total / (n - total) * ((n - k) / k)).log_() * (total * (n - total)) / ((total - square) * n)
        scale = scale.mul(step.exp())
        if float(step.abs().max()) <= close:
            if part.dtype == torch.float64:
                return scale
            dtype, part, close = torch.float64, odds, ROUGH
    return None


def _scale_by_ranks(logits: Float[Tensor, "units n"], k: int, dtype: torch.dtype) -> Float[Tensor, "units 1"] | None:
    """Return the same for any logits in float64."""
    top = logits.topk(k, -1)
    rest = logits.scatter(-1, top.indices, -math.inf)
    low, high = top.values[..., -1:], rest.amax(-1, keepdim=True)
    point = _middle((low - top.values).exp_(), rest.sub_(high).exp_(), (low - high) / 2, dtype)
    return None if point is None else low.exp() * point[0]


def _leaves(odds: Tensor, scale: Tensor) -> Float[Tensor, "2 n units"]:
    """Return the probabilities that an item is not chosen and that it is."""
    odds, scale = odds.T.contiguous(), scale.view(-1)
    total = odds + scale
    leaves = odds.new_empty(2, *odds.shape)
    torch.div(scale, total, out=leaves[0])
    torch.div(odds, total, out=leaves[1])
    return leaves


def _nodes(
    odds: Tensor, scale: Tensor, places: Int64[Tensor, "samples units k"], fraction: Rows, temperature: float
) -> tuple[Float[Tensor, "samples units k"], Rows]:
    """Return the scores of chosen items divided by the temperature, and those of all others, in float64."""
    fraction = to_float64(fraction)
    ratio = (scale / odds).expand(fraction.shape)
    ratio = ratio.scatter(-1, places, ratio.gather(-1, places).reciprocal_())
    # the size of a score is log(1 + ratio (1 - u)) - log u
    rest = ratio.mul_(1 - fraction).add_(1).div_(fraction).log_().div_(-temperature)
    kept = rest.gather(-1, places).neg_()
    return kept, rest.scatter_(-1, places, -math.inf)


def _middle(kept: Tensor, rest: Tensor, half: Tensor, of: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """Return exp(c - low) and exp(high - c) for the threshold c, or None if that takes too many steps.

    Low is the smallest score of a chosen item, and high the largest of another. `kept` is exp(low - score), `rest` is
    exp(score - high), and `half` is half of the gap. See `threshold` for the method. It is precise enough for results
    of a dtype.
    """
    dtype, close = kept.dtype, NEAR if of == torch.float64 else ROUGH
    shift = torch.zeros_like(half)  # from the middle of the gap
    for _ in range(STEPS):
        below, above = (shift - half).exp_().to(dtype), (-half - shift).exp_().to(dtype)
        lacking, having = kept * _share(kept, below), rest * _share(rest, above)
        lack, have = lacking.sum(-1, keepdim=True), having.sum(-1, keepdim=True)
        squares = [vector_norm(part, dim=-1, keepdim=True).square_() for part in (lacking, having)]
        step = (2 * shift + (lack / have).log_()) / (2 - below * squares[0] / lack - above * squares[1] / have)
        shift = shift - step
        if float(step.abs().max()) <= close:
            return (shift - half).exp_().to(dtype), (-half - shift).exp_().to(dtype)
    return None
