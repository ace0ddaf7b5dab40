r"""The ExpConcrete node, the logarithm of a Concrete variable [maddison2017concrete], appendix C.3.

$$\log κ(y) = \log (n-1)! + (n-1) \log λ + \sum_k a_k - n \log \sum_k e^{a_k}, \quad a_k = \log α_k - λ y_k$$
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ..kernel.operator import operator, row_sums
from ..kernel.tile import fits
from ..noise import gumbel as noise
from .arithmetic import Temperature, invert_noise, log_temperature, over_categories, to_float64
from .draw import squashed
from .log_simplex import noise_behind, noise_of_key, push

__all__ = ["draw", "log_density", "log_density_at_edge", "log_density_of_noise", "noise", "push", "score"]

category_axes = 1


def log_density_of_noise(noise: Float[Tensor, "*shape n"], temperature: Temperature) -> Float[Tensor, "*shape"]:
    """Return the log density of the node made from noise; overwrites the noise."""
    # both drawn and shifted noise are above -4, so that the exponential does not overflow
    n = noise.shape[-1]
    total = to_float64(noise.sum(-1))
    log_sum = to_float64(noise.neg_().exp().sum(-1)).log()
    return (math.lgamma(n) + (n - 1) * log_temperature(temperature)) - total - n * log_sum


def log_density(
    value: Float[Tensor, "*shape n"], logits: Float[Tensor, "*batch n"], temperature: Temperature
) -> Float[Tensor, "*out"]:
    """Return the log density of a node."""
    # a shift common to all categories cancels in the density
    noise = invert_noise(value, logits, over_categories(temperature), up_to_shift=True)
    return log_density_of_noise(noise, temperature)


def log_density_at_edge(
    value: Float[Tensor, "*shape n"],
    logits: Float[Tensor, "*batch n"],
    temperature: Temperature,
    lost: Bool[Tensor, "*shape n"],
) -> Float[Tensor, "*out"]:
    r"""Return the log of the average density over a cell of nodes.

    $$\log (m-1)! + (m-1) \log λ + \sum_{k ∉ Z} a_k - m \log \sum_i e^{a_i}, \quad m = n - |Z|$$

    The entries in Z (`lost`) lie anywhere below a border, which `value` contains in their place.
    """
    noise, left = noise_behind(value, logits, temperature), (~lost).sum(-1).to(torch.float64)
    total = torch.where(lost, 0, noise).sum(-1)
    constant = torch.lgamma(left) + (left - 1) * log_temperature(temperature)
    return constant - total - left * (-noise).logsumexp(-1)


def fits_draw(logits: Tensor, temperature: Tensor, key: Tensor, samples: int, *_: Any) -> bool:
    """Return whether the kernel supports a draw of this size."""
    return fits(samples * logits.shape[1], logits.shape[2])


def fits_nodes(node: Tensor, *_: Any) -> bool:
    """Return whether the kernel can score this number of nodes."""
    return fits(node.shape[1] * node.shape[2], node.shape[3])


@operator("exp_concrete_draw", kernel="exp_concrete", eligible=fits_draw, nondifferentiable=[2])
def draw(
    logits: Float[Tensor, "members units n"],
    temperature: Float64[Tensor, " members"],
    key: Int64[Tensor, "members 2"],
    samples: int,
    squash: str,
    length: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw nodes, squash them ("none", "simplex" or "cube"), and score the nodes.

    Each member has its own key. Log densities are summed over rows of `length` units.
    """
    _, units, n = logits.shape
    drawn = noise_of_key(key, samples, units, n)
    node = push(logits.float().unsqueeze(1), temperature.float().view(-1, 1, 1), drawn)
    log_density = log_density_of_noise(drawn, temperature.view(-1, 1, 1)).float()
    return node, squashed(node, squash), row_sums(log_density, length)


@operator("exp_concrete_score", kernel="exp_concrete", eligible=fits_nodes)
def score(
    node: Float[Tensor, "members m units n"],
    logits: Float[Tensor, "members units n"],
    temperature: Float64[Tensor, " members"],
    length: int = 1,
) -> Float[Tensor, "members m rows"]:
    """Return the log densities of nodes, summed over rows of `length` units; samples share logits."""
    temperature = temperature.view(-1, 1, 1)
    # only the subtraction needs float64; the kernel also continues in float32
    noise = invert_noise(node, logits.unsqueeze(1), over_categories(temperature), up_to_shift=True).float()
    return row_sums(log_density_of_noise(noise, temperature).float(), length)
