"""Arithmetic with a temperature, a number or a tensor, that may be zero."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .cast import to_float64

Temperature = float | Tensor
"""A number stays a Python float, so that it is not rounded."""


def divide(total: Tensor, temperature: Temperature, limit: Callable[[Tensor], Tensor]) -> Tensor:
    """Divide by the temperature, or return the limit where it is zero; may overwrite the total.

    >>> divide(torch.tensor([-1.0, 2.0]), 0.0, torch.sign)
    tensor([-1.,  1.])
    """
    if isinstance(temperature, Tensor):
        positive = temperature > 0
        # avoid 0 in the denominator, whose gradient would be NaN
        return torch.where(positive, total / torch.where(positive, temperature, 1), limit(total.detach()))
    return total.div_(temperature) if temperature > 0 else limit(total.detach())


def log(temperature: Temperature) -> Temperature:
    """Return the logarithm of a temperature."""
    if isinstance(temperature, Tensor):
        return temperature.log()
    return math.log(temperature) if temperature > 0 else -math.inf


def over_categories(temperature: Temperature) -> Temperature:
    """Add a category axis to a temperature tensor."""
    return temperature.unsqueeze(-1) if isinstance(temperature, Tensor) else temperature


def as_precise(temperature: Temperature) -> Temperature:
    """Convert a temperature tensor to float64."""
    return to_float64(temperature) if isinstance(temperature, Tensor) else temperature
