"""The standard normal distribution function in its logarithm."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

LOG_TWO_PI = math.log(2 * math.pi)


def log_density(noise: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The log density of standard normal noise."""
    return -(noise.square() + LOG_TWO_PI) / 2


def log_cdf(noise: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The log probability of smaller noise, precise in both tails; `torch.special.log_ndtr` has no rule for `vmap`."""
    negative = noise < 0
    lower, upper = torch.where(negative, noise, 0), torch.where(negative, 0, noise)
    below = torch.log(torch.special.erfcx(-lower / math.sqrt(2)) / 2) - lower.square() / 2
    return torch.where(negative, below, torch.log1p(-torch.erfc(upper / math.sqrt(2)) / 2))
