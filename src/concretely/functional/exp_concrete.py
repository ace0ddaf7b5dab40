r"""The ExpConcrete node, the logarithm of a Concrete variable [maddison2017concrete], appendix C.3.

$$\log κ(y) = \log (n-1)! + (n-1) \log λ + \sum_k a_k - n \log \sum_k e^{a_k}, \quad a_k = \log α_k - λ y_k$$
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..noise import gumbel as noise
from .cast import to_float64
from .invert import invert_noise
from .log_simplex import noise_behind, push
from .temperature import Temperature, as_precise, log, over_categories

__all__ = ["log_density", "log_density_at_edge", "log_density_of_noise", "noise", "push"]

category_axes = 1


def log_density_of_noise(noise: Float[Tensor, "*shape n"], temperature: Temperature) -> Float[Tensor, "*shape"]:
    """The log density of the node that noise becomes; the noise is overwritten."""
    # neither drawn noise nor noise with its smallest entry at 0 is below -4: the plain exponential is safe
    n = noise.shape[-1]
    total = to_float64(noise.sum(-1))
    log_sum = to_float64(noise.neg_().exp().sum(-1)).log()
    return (math.lgamma(n) + (n - 1) * log(as_precise(temperature))) - total - n * log_sum


def log_density(
    value: Float[Tensor, "*shape n"], logits: Float[Tensor, "*batch n"], temperature: Temperature
) -> Float[Tensor, "*out"]:
    """The log density of a given node."""
    # a shift common to all categories cancels, and with it the normaliser between a value and its noise
    noise = invert_noise(value, logits, over_categories(as_precise(temperature)), up_to_shift=True)
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
    constant = torch.lgamma(left) + (left - 1) * log(as_precise(temperature))
    return constant - total - left * (-noise).logsumexp(-1)
