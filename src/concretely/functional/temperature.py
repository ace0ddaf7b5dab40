"""Arithmetic with a temperature that is a number or a tensor, down to zero."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .cast import to_float64

Temperature = float | Tensor
"""A number is kept as it was given, so that nothing is rounded before the arithmetic."""


def divide(total: Tensor, temperature: Temperature, limit: Callable[[Tensor], Tensor]) -> Tensor:
    """The total divided by the temperature, and its limit where the temperature is zero; may overwrite the total.

    >>> divide(torch.tensor([-1.0, 2.0]), 0.0, torch.sign)
    tensor([-1.,  1.])
    """
    if isinstance(temperature, Tensor):
        positive = temperature > 0
        # the quotient is not taken where the temperature is 0, so that no gradient passes there
        return torch.where(positive, total / torch.where(positive, temperature, 1), limit(total.detach()))
    return total.div_(temperature) if temperature > 0 else limit(total.detach())


def log(temperature: Temperature) -> Temperature:
    """The logarithm of a temperature."""
    if isinstance(temperature, Tensor):
        return temperature.log()
    return math.log(temperature) if temperature > 0 else -math.inf


def over_categories(temperature: Temperature) -> Temperature:
    """A temperature of the batch in a shape that broadcasts with values that have a category axis."""
    return temperature.unsqueeze(-1) if isinstance(temperature, Tensor) else temperature


def as_precise(temperature: Temperature) -> Temperature:
    """A temperature in float64, if it is a tensor."""
    return to_float64(temperature) if isinstance(temperature, Tensor) else temperature
