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
from .cast import to_float64
from .invert import invert_noise
from .log_simplex import noise_behind, noise_of_key, push
from .squash import squashed
from .temperature import Temperature, log, over_categories

__all__ = ["draw", "log_density", "log_density_at_edge", "log_density_of_noise", "noise", "push", "score"]

category_axes = 1


def log_density_of_noise(noise: Float[Tensor, "*shape n"], temperature: Temperature) -> Float[Tensor, "*shape"]:
    """The log density of the node that noise becomes; the noise is overwritten."""
    # neither drawn noise nor noise with its smallest entry at 0 is below -4: the plain exponential is safe
    n = noise.shape[-1]
    total = to_float64(noise.sum(-1))
    log_sum = to_float64(noise.neg_().exp().sum(-1)).log()
    return (math.lgamma(n) + (n - 1) * log(temperature)) - total - n * log_sum


def log_density(
    value: Float[Tensor, "*shape n"], logits: Float[Tensor, "*batch n"], temperature: Temperature
) -> Float[Tensor, "*out"]:
    """The log density of a given node."""
    # a shift common to all categories cancels, and with it the normaliser between a value and its noise
    noise = invert_noise(value, logits, over_categories(temperature), up_to_shift=True)
    return log_density_of_noise(noise, temperature)


def log_density_at_edge(
    value: Float[Tensor, "*shape n"],
    logits: Float[Tensor, "*batch n"],
    temperature: Temperature,
    lost: Bool[Tensor, "*shape n"],
) -> Float[Tensor, "*out"]:
    r"""The average log density of nodes some of whose entries are only known to lie below a border.

    $$\log (m-1)! + (m-1) \log λ + \sum_{k ∉ Z} a_k - m \log \sum_i e^{a_i}, \quad m = n - |Z|$$

    The entries of Z are `lost`; their value is the border.
    """
    noise, left = noise_behind(value, logits, temperature), (~lost).sum(-1).to(torch.float64)
    total = torch.where(lost, 0, noise).sum(-1)
    constant = torch.lgamma(left) + (left - 1) * log(temperature)
    return constant - total - left * (-noise).logsumexp(-1)


def _fits(logits: Tensor, temperature: Tensor, key: Tensor, samples: int, *_: Any) -> bool:
    return fits(samples * logits.shape[1], logits.shape[2])


def _fits_nodes(node: Tensor, *_: Any) -> bool:
    return fits(node.shape[1] * node.shape[2], node.shape[3])


@operator("exp_concrete_draw", kernel="exp_concrete", eligible=_fits, nondifferentiable=[2])
def draw(
    logits: Float[Tensor, "members units n"],
    temperature: Float64[Tensor, " members"],
    key: Int64[Tensor, "members 2"],
    samples: int,
    squash: str,
    length: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes, what they are squashed to ("none", "simplex" or "cube"), and the log densities of the nodes.

    The noise is that of a key for each member. Log densities are summed over rows of so many units.
    """
    _, units, n = logits.shape
    drawn = noise_of_key(key, samples, units, n)
    node = push(logits.float().unsqueeze(1), temperature.float().view(-1, 1, 1), drawn)
    log_density = log_density_of_noise(drawn, temperature.view(-1, 1, 1)).float()
    return node, squashed(node, squash), row_sums(log_density, length)


@operator("exp_concrete_score", kernel="exp_concrete", eligible=_fits_nodes)
def score(
    node: Float[Tensor, "members m units n"],
    logits: Float[Tensor, "members units n"],
    temperature: Float64[Tensor, " members"],
    length: int = 1,
) -> Float[Tensor, "members m rows"]:
    """The log densities of given nodes, whose samples share their logits, summed over rows of so many units."""
    return row_sums(log_density(node, logits.unsqueeze(1), temperature.view(-1, 1, 1)).float(), length)
