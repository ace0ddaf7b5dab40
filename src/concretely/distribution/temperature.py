"""Arithmetic with a temperature that is a number or a tensor, down to zero."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

Temperature = float | Tensor
"""A number is kept as it was given, so that nothing is rounded before the arithmetic."""


def cool(total: Tensor, temperature: Temperature, limit: Callable[[Tensor], Tensor]) -> Tensor:
    """The total divided by the temperature, and its limit where the temperature is zero; the total may be reused.

    >>> cool(torch.tensor([-1.0, 2.0]), 0.0, torch.sign)
    tensor([-1.,  1.])
    """
    if isinstance(temperature, Tensor):
        hot = temperature > 0
        # the quotient is not taken where the temperature is 0, so that no gradient passes there
        return torch.where(hot, total / torch.where(hot, temperature, 1), limit(total.detach()))
    return total.div_(temperature) if temperature > 0 else limit(total.detach())


def log(temperature: Temperature) -> Temperature:
    """The logarithm of a temperature."""
    if isinstance(temperature, Tensor):
        return temperature.log()
    return math.log(temperature) if temperature > 0 else -math.inf
