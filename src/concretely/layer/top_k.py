"""Draws of k items without replacement."""

import math

from jaxtyping import Float
from torch import Generator, Tensor

from ..distribution.check import as_temperature
from ..functional.arithmetic import Temperature, bool_or_none, cast, compute_dtype
from ..functional.noise import gumbel
from ..functional.top_k import push
from ..spelling import shown
from .base import require_count
from .gumbel import broadcasts, require_floating


def gumbel_top_k(
    scores: Float[Tensor, "..."],
    k: int,
    *,
    temperature: Temperature = 1.0,
    dim: int = -1,
    generator: Generator | None = None,
) -> Float[Tensor, "..."]:
    """Draw k items one after the other, each in proportion to exp(score) among those left, as a vector of k ones.

    These are the k largest scores with Gumbel noise, the Plackett-Luce law [kool2019stochastic]. It is not the law of
    `Subset` with the same logits, and the probability of an item has no closed form: use `Choose` where the gradient
    matters. Here the gradient is that of a relaxed value on the same noise, in which the entries sum to k.

    Args:
        scores: The logarithms of the items' weights.
        k: The number of items to draw.
        temperature: The temperature of the relaxed value: a number, a tensor that broadcasts with the scores, or 0 for
            no gradient.
        dim: The axis of the items.
        generator: The random number generator. A compiled program must draw without one.

    >>> import torch
    >>> gumbel_top_k(torch.tensor([0.0, 1e4, -1e4, 1e4]), 2)
    tensor([0., 1., 0., 1.])
    """
    require_floating(scores, "scores")
    if isinstance(dim, bool) or not isinstance(dim, int) or not -scores.dim() <= dim < scores.dim():
        got = f"{shown(dim)} for scores of shape {tuple(scores.shape)}"
        raise ValueError(f"dim must be an axis of the scores, got {got}")
    require_count("k", k, most=scores.shape[dim], of=", the number of items")
    temperature = as_temperature(temperature, dtype=scores.dtype, validate=not scores.is_cuda)
    rows = scores.movedim(dim, -1)
    if isinstance(temperature, Tensor):
        if not broadcasts(temperature.shape, scores.shape):
            asked = f"broadcast to the scores' shape {tuple(scores.shape)}"
            raise ValueError(f"temperature must {asked}, got shape {tuple(temperature.shape)}")
        temperature = temperature.expand(scores.shape).movedim(dim, -1)
    if not scores.is_cuda and bool_or_none((rows < math.inf).all()) is False:
        raise ValueError("scores must be numbers below infinity, got inf or nan")
    if not scores.is_cuda and bool_or_none(((rows > -math.inf).sum(-1) >= k).all()) is False:
        raise ValueError(f"scores must leave at least k = {k} items possible in every row, got fewer above -inf")
    noise = gumbel(rows.shape, compute_dtype(scores.dtype), device=scores.device, generator=generator)
    return cast(push(rows, k, temperature, noise), scores.dtype).movedim(-1, dim)
