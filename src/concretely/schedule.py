"""Schedules of the temperature during training."""

import math
from dataclasses import dataclass
from numbers import Real

__all__ = ["Annealing"]


@dataclass(frozen=True)
class Annealing:
    """A temperature that changes exponentially from `start` to `end`, and then stays constant.

    >>> temperature = Annealing(start=1.0, end=0.25, steps=1000)
    >>> temperature(0), temperature(500), temperature(5000)
    (1.0, 0.5, 0.25)
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        for name, value in (("start", self.start), ("end", self.end), ("steps", self.steps)):
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"{name} must be a number, got {type(value).__name__}")
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive, got {value:.9g}")

    def __call__(self, step: int) -> float:
        """Return the temperature of an optimizer update, counted from 0."""
        gone = min(max(step / self.steps, 0.0), 1.0)
        return float(self.start ** (1 - gone) * self.end**gone)
