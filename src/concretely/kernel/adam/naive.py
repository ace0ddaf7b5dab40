"""The definition of a step of Adam [kingma2015adam]."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Pace(NamedTuple):
    """How every member moves in a step."""

    rate: Float64[Tensor, " members"]
    """The learning rate, zero for a member that must not move."""
    decay: Float64[Tensor, " members"]
    """The factor of a weight that is added to its gradient."""
    mean: Float64[Tensor, " members"]
    """By what the first moment is multiplied to make up for its start at zero."""
    spread: Float64[Tensor, " members"]
    """Likewise the second."""


def corrections(steps: int) -> tuple[float, float]:
    """By what the moments are multiplied after so many steps."""
    return 1 / (1 - BETA1**steps), 1 / (1 - BETA2**steps)


def sound(tensors: Sequence[Float[Tensor, "members ..."]]) -> Bool[Tensor, " members"]:
    """Whether all that a member has in some tensors is finite."""
    return torch.stack([each.flatten(1).isfinite().all(1) for each in tensors]).all(0)


def adam_(
    parameter: Float[Tensor, "members ..."],
    gradient: Float[Tensor, "members ..."],
    first: Float[Tensor, "members ..."],
    second: Float[Tensor, "members ..."],
    pace: Pace,
    *,
    decays: bool,
) -> None:
    """Move a parameter and the moments of its gradient."""
    axes = [1] * (parameter.dim() - 1)
    rate, decay, mean, spread = (each.to(parameter.dtype).view(-1, *axes) for each in pace)
    moves = rate != 0
    gradient = gradient + decay * parameter if decays else gradient
    torch.where(moves, BETA1 * first + (1 - BETA1) * gradient, first, out=first)
    torch.where(moves, BETA2 * second + (1 - BETA2) * gradient * gradient, second, out=second)
    moved = parameter - rate * (first * mean) / ((second * spread).sqrt() + EPSILON)
    torch.where(moves, moved, parameter, out=parameter)  # what is not sound may be no number
