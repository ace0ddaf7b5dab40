r"""The k largest of n noisy scores: the choice of experts, and how often each is chosen.

Score i is $s_i + σ_i ε_i$, where ε is normal or Gumbel noise.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float
from numpy.polynomial.legendre import leggauss
from torch import Tensor

from .arithmetic import Temperature, to_float64
from .log_simplex import perturb
from .noise import few_normal, gumbel
from .squashing import straight_through
from .threshold import largest, threshold

Noise = Literal["normal", "gumbel"]
NOISE = {"normal": few_normal, "gumbel": gumbel}
PIECES = {
    "normal": (-10.0, -6.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 10.0),
    "gumbel": (-5.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 7.0, 12.0, 20.0, 40.0),
}
"""Between these, a polynomial approximates the density of the noise. Beyond, it is below the rounding error."""
ROOTS, SHARES = (numbers.tolist() for numbers in leggauss(10))  # torch.compile cannot trace leggauss


def push(
    scores: Float[Tensor, "*batch n"], k: int, temperature: Temperature, noise: Float[Tensor, "*batch n"]
) -> Float[Tensor, "*batch n"]:
    """Return 1 for the k largest noisy scores and 0 for the others, in at least float32.

    The gradient is that of the relaxed value σ(noisy / temperature - c), with the c for which it sums to k. At
    temperature 0 there is none.
    """
    noisy = perturb(scores, noise)
    state = largest(noisy.detach(), k).to(noisy.dtype)
    is_zero = not isinstance(temperature, Tensor) and temperature == 0
    if is_zero or k == scores.shape[-1] or not torch.is_grad_enabled():
        return state
    is_cold = temperature == 0  # of a tensor, some temperatures may be 0
    if isinstance(is_cold, Tensor):
        temperature = torch.where(is_cold, 1.0, temperature)
    cooled = to_float64(noisy) / temperature
    soft = torch.sigmoid(cooled - threshold(cooled, k)).to(noisy.dtype)
    if isinstance(is_cold, Tensor):
        soft = torch.where(is_cold, soft.detach(), soft)
    return straight_through(state, soft, lambda soft: soft)


def survival(noise: Float[Tensor, "..."], law: Noise) -> Float[Tensor, "..."]:
    """Return the probability that standard noise is larger."""
    if law == "normal":
        return torch.erfc(noise * math.sqrt(0.5)) * 0.5
    return -torch.expm1(-torch.exp(-noise.clamp(min=-40)))  # where it is 1, and the exponential does not overflow


def density(noise: Float[Tensor, "..."], law: Noise) -> Float[Tensor, "..."]:
    """Return the density of standard noise."""
    if law == "normal":
        return torch.exp(-0.5 * noise.square()) / math.sqrt(2 * math.pi)
    return torch.exp(-noise - torch.exp(-noise.clamp(min=-40)))  # where it is 0, and the exponential does not overflow


def load_given_others(
    scores: Float[Tensor, "*batch n"],
    scale: Float[Tensor, "*batch n"] | None,
    noisy: Float[Tensor, "*batch n"],
    top: Float[Tensor, "*batch top"],
    k: int,
    law: Noise,
) -> Float[Tensor, "*batch n"]:
    """Return for each entry the probability that it is among the k largest, given the noise of all others.

    `top` are the k + 1 largest noisy scores in descending order, or all if there are only k. The mean over the noise is
    `inclusion`, which sums to k. See [shazeer2017outrageously], equation 8, where the threshold of an entry is the kth
    largest of the *other noisy scores*. The mean of its gradient is that of `inclusion`.
    """
    if k == scores.shape[-1]:
        return torch.ones_like(scores)
    inner, outer = top.split([k - 1, 1, 1], -1)[1:]
    least = torch.where(noisy >= inner, outer, inner) - scores
    return survival(least if scale is None else least / scale, law)


def inclusion(
    scores: Float[Tensor, "*batch n"], scale: Float[Tensor, "*batch n"], k: int, law: Noise
) -> Float[Tensor, "*batch n"]:
    """Return for each entry the probability that it is among the k largest. The probabilities sum to k.

    It is the integral over a threshold, of the density of the entry there times the probability that fewer than k
    others are larger, by Gauss quadrature between the places where a density changes. Its time grows with n³ k.
    """
    places = torch.tensor(PIECES[law], dtype=scores.dtype, device=scores.device)
    ends = (scores.unsqueeze(-1) + scale.unsqueeze(-1) * places).detach().flatten(-2).sort(-1).values
    roots, shares = (torch.tensor(numbers, dtype=scores.dtype, device=scores.device) for numbers in (ROOTS, SHARES))
    half = (ends[..., 1:] - ends[..., :-1]).unsqueeze(-1) / 2
    threshold = (ends[..., :-1].unsqueeze(-1) + half * (1 + roots)).flatten(-2).unsqueeze(-2)
    weight = (half * shares).flatten(-2).unsqueeze(-2)
    noise = (threshold - scores.unsqueeze(-1)) / scale.unsqueeze(-1)
    above = survival(noise, law)
    counts = [torch.ones_like(above), *(torch.zeros_like(above) for _ in range(k - 1))]  # of larger others, up to k - 1
    for j in range(scores.shape[-1]):
        is_own = torch.arange(scores.shape[-1], device=scores.device).unsqueeze(-1) == j
        larger = torch.where(is_own, 0, above[..., j : j + 1, :])
        counts = [(1 - larger) * count + (larger * counts[i - 1] if i else 0) for i, count in enumerate(counts)]
    own = density(noise, law) / scale.unsqueeze(-1)
    return (weight * own * sum(counts[1:], counts[0])).sum(-1)
