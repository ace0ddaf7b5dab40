"""Check that contenders estimate the same loss and the same gradient, up to the noise of their draws."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LIMIT = 5.0
"""The largest difference of two means, in standard errors."""


class Probe(NamedTuple):
    """The value of a loss in one draw, and its derivatives along two directions that do not depend on the layout.

    The first direction scales all parameters. The second adds the same amount to the parameters that are zero.
    """

    loss: float
    growth: float
    shift: float


def probed(probe: Callable[[int], Probe], draws: int) -> NDArray[np.float64]:
    """Return the probes of several draws, one in each row."""
    return np.array([probe(seed) for seed in range(draws)])


def apart(measured: NDArray[np.float64], expected: NDArray[np.float64]) -> Probe:
    """Return the difference of the means of two sets of probes, in standard errors.

    >>> apart(np.array([[0.0] * 3, [2.0] * 3]), np.array([[3.0] * 3, [5.0] * 3])).loss.item()
    2.1213203435596424
    """
    variance = measured.var(0, ddof=1) / len(measured) + expected.var(0, ddof=1) / len(expected)
    return Probe(*(np.abs(measured.mean(0) - expected.mean(0)) / np.sqrt(variance)))
