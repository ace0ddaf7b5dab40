"""Whether contenders estimate the same loss and the same gradient, up to the noise of their draws."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LIMIT = 5.0
"""How many standard errors two averages may lie apart."""


class Probe(NamedTuple):
    """What one draw says of a loss: its value, and its derivatives along two directions that know no order or layout.

    Along the first all parameters grow in proportion, along the second those that are zero grow by the same amount.
    """

    loss: float
    growth: float
    shift: float


def probed(probe: Callable[[int], Probe], draws: int) -> NDArray[np.float64]:
    """Probes of so many draws, as rows."""
    return np.array([probe(seed) for seed in range(draws)])


def apart(found: NDArray[np.float64], expected: NDArray[np.float64]) -> Probe:
    """How many standard errors the averages of two sets of probes lie apart.

    >>> apart(np.array([[0.0] * 3, [2.0] * 3]), np.array([[3.0] * 3, [5.0] * 3])).loss.item()
    2.1213203435596424
    """
    variance = found.var(0, ddof=1) / len(found) + expected.var(0, ddof=1) / len(expected)
    return Probe(*(np.abs(found.mean(0) - expected.mean(0)) / np.sqrt(variance)))
