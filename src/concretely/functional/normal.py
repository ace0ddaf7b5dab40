"""The log density and the log CDF of the standard normal distribution."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

LOG_TWO_PI = math.log(2 * math.pi)


def log_density(noise: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the standard normal log density."""
    return -(noise.square() + LOG_TWO_PI) / 2


def log_cdf(noise: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the log CDF, precise in both tails. (`torch.special.log_ndtr` does not support `vmap`.)"""
    negative = noise < 0
    lower, upper = torch.where(negative, noise, 0), torch.where(negative, 0, noise)
    below = torch.log(torch.special.erfcx(-lower / math.sqrt(2)) / 2) - lower.square() / 2
    return torch.where(negative, below, torch.log1p(-torch.erfc(upper / math.sqrt(2)) / 2))
