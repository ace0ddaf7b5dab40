r"""The ExpConcrete variable, the logarithm of a Concrete variable [maddison2017concrete], appendix C.3.

$$\log κ(y) = \log (n-1)! + (n-1) \log λ + \sum_k a_k - n \log \sum_k e^{a_k}, \quad a_k = \log α_k - λ y_k$$
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .arithmetic import Temperature, invert_noise, log_temperature, over_categories, to_float64
from .log_simplex import noise_behind, noise_of_key, pull, push
from .node import node_operators
from .noise import gumbel as noise

__all__ = ["draw", "log_density", "log_density_at_edge", "log_density_of_noise", "noise", "pull", "push", "score"]

category_axes = 1


def log_density_of_noise(noise: Float[Tensor, "*shape n"], temperature: Temperature) -> Float[Tensor, "*shape"]:
    """Return the log density of the value made from `noise`, which is modified in place."""
    # both drawn and shifted noise are above -4, so that the exponential does not overflow
    n = noise.shape[-1]
    total = to_float64(noise.sum(-1))
    log_sum = to_float64(noise.neg_().exp().sum(-1)).log()
    return (math.lgamma(n) + (n - 1) * log_temperature(temperature, total)) - total - n * log_sum


def log_density(
    value: Float[Tensor, "*shape n"], logits: Float[Tensor, "*batch n"], temperature: Temperature
) -> Float[Tensor, "*out"]:
    """Return the log density of a value."""
    # a shift common to all categories cancels in the density
    noise = invert_noise(value, logits, over_categories(temperature), up_to_shift=True)
    return log_density_of_noise(noise, temperature)


def log_density_at_edge(
    value: Float[Tensor, "*shape n"],
    logits: Float[Tensor, "*batch n"],
    temperature: Temperature,
    lost: Bool[Tensor, "*shape n"],
) -> Float[Tensor, "*out"]:
    r"""Return the log of the average density over a cell, all values that were rounded to one point of the simplex.

    $$\log (m-1)! + (m-1) \log λ + \sum_{k ∉ Z} a_k - m \log \sum_i e^{a_i}, \quad m = n - |Z|$$

    The entries in Z (`lost`) lie anywhere below a border, and `value` contains this border in their place.
    """
    noise, left = noise_behind(value, logits, temperature), (~lost).sum(-1).to(torch.float64)
    total = torch.where(lost, 0, noise).sum(-1)
    constant = torch.lgamma(left) + (left - 1) * log_temperature(temperature, noise)
    return constant - total - left * (-noise).logsumexp(-1)


draw, score = node_operators("exp_concrete", noise_of_key, push, log_density_of_noise, category_axes=category_axes)
