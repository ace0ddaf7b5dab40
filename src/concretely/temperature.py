"""Default temperatures of nodes, by their number of states."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

TEMPERATURES = {2: (2 / 3, 1 / 2), 4: (1.0, 2 / 3), 8: (2 / 3, 2 / 5)}
"""The paper's temperature and prior temperature by number of states, for the KL between densities.

See [maddison2017concrete], appendix D.5.
"""
ANALYTIC = {2: 2 / 3, 4: 1 / 2, 8: 2 / 3, 16: 1 / 2, 64: 1 / 2}
"""The temperature by number of states for the KL of the discrete distributions, measured by `benchmarks.temperature`.

It is the paper's temperature if that is within a tenth of a nat of the best one that was tried, by the mean of the NLLs
after a third of the steps and at the end. Otherwise it is 1/2, which is within a tenth of a nat too.
"""


@dataclass(frozen=True)
class ByStates:
    """A temperature for each number of states. Other numbers get the temperature of the closest one by ratio.

    >>> temperature = ByStates({2: 0.6, 8: 0.5})
    >>> [temperature(states) for states in (2, 3, 5, 100)]
    [0.6, 0.6, 0.5, 0.5]
    """

    table: Mapping[int, float]

    def __call__(self, states: int) -> float:
        """Return the temperature of a node."""
        nearest, closest = math.inf, math.nan
        states = min(states, 2**64)  # the number of subsets may exceed the floats
        for known, temperature in self.table.items():  # a loop, which torch.compile can trace
            ratio = max(known, states) / min(known, states)
            if ratio < nearest:
                nearest, closest = ratio, temperature
        return closest


PAPER = ByStates({states: temperature for states, (temperature, _) in TEMPERATURES.items()})
PAPER_PRIOR = ByStates({states: prior for states, (_, prior) in TEMPERATURES.items()})
MEASURED = ByStates(ANALYTIC)
