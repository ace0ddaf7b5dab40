"""The definition of NVIL's normalised signal."""

import torch
from jaxtyping import Float
from torch import Tensor


def normalized(
    signal: Float[Tensor, "members m batch"],
    mean: Float[Tensor, " members"],
    variance: Float[Tensor, " members"],
    rate: float,
    centre: bool,
    scale: bool,
) -> tuple[Float[Tensor, "members m batch"], Float[Tensor, " members"], Float[Tensor, " members"]]:
    """The signal less its running mean, over its running deviation where that exceeds 1; both are updated before."""
    spread, middle = torch.var_mean(signal, (1, 2), correction=0)
    mean, variance = rate * mean + (1 - rate) * middle, rate * variance + (1 - rate) * spread
    found = signal - mean.view(-1, 1, 1) if centre else signal.clone()
    return found / variance.sqrt().clamp(min=1).view(-1, 1, 1) if scale else found, mean, variance
