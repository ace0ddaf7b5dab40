"""Time many contenders in turns, so that a busy machine affects all of them alike."""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

WARM_UPS = 5
TURN_SECONDS = 0.02
"""The minimum seconds of a turn. OpenMP threads spin for 5 ms after their last work, on a core that others need."""


class Contender(Protocol):
    """A way of doing a task. The work is done when the call returns."""

    @property
    def name(self) -> str: ...

    @property
    def ours(self) -> bool: ...

    @property
    def step(self) -> Callable[[int], Any]: ...


Entrant = TypeVar("Entrant", bound=Contender)


class Spread(NamedTuple):
    """The median of some measurements and the quartiles around it."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, measurements: NDArray[np.float64]) -> Self:
        """Return the spread of measurements.

        >>> Spread.of(np.arange(5.0))
        Spread(median=2.0, lower=1.0, upper=3.0)
        """
        lower, median, upper = np.quantile(measurements, (0.25, 0.5, 0.75)).tolist()
        return cls(median, lower, upper)


@dataclass(frozen=True)
class Timing(Generic[Entrant]):
    """The seconds of a contender's first call, and those of a call in each round."""

    contender: Entrant
    first: float
    rounds: NDArray[np.float64]

    def over(self, reference: "Timing[Any]") -> Spread:
        """Return the ratio of the times of two contenders, round by round."""
        return Spread.of(self.rounds / reference.rounds)


def first_call(contender: Contender) -> float:
    """Return the seconds of a first call, including tracing and compilation."""
    return _seconds(contender, range(1))


def interleaved(
    contenders: Sequence[Contender], rounds: int, *, seed: int, finished: Callable[[], None]
) -> NDArray[np.float64]:
    """Return the seconds of a call, by contender and round. Every round runs all contenders in a new order."""
    shuffle = random.Random(seed).shuffle
    calls = [_calls(contender) for contender in contenders]
    seconds = np.empty((len(contenders), rounds))
    order = list(range(len(contenders)))
    for number in range(rounds):
        shuffle(order)
        for i in order:
            seeds = range(number * 2 * calls[i], (number + 1) * 2 * calls[i])
            # as long a turn without the clock first, in which the contender before comes to rest
            _seconds(contenders[i], seeds[: calls[i]])
            seconds[i, number] = _seconds(contenders[i], seeds[calls[i] :]) / calls[i]
        finished()
    return seconds


def _calls(contender: Contender) -> int:
    """Return the number of calls that fill a turn."""
    quickest = min(_seconds(contender, range(i, i + 1)) for i in range(WARM_UPS))
    return math.ceil(TURN_SECONDS / quickest)


def _seconds(contender: Contender, seeds: range) -> float:
    start = time.perf_counter()
    for seed in seeds:
        contender.step(seed)
    return time.perf_counter() - start
