"""Schedules: numbers that change during training, such as temperatures."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, overload

from .spelling import number

__all__ = ["Annealing", "Warmup"]

Schedule = float | Callable[[int], float]
"""A number, or a function of the step that returns one."""


@overload
def at_step(schedule: Schedule, step: int) -> float: ...
@overload
def at_step(schedule: Schedule | None, step: int) -> float | None: ...
def at_step(schedule: Schedule | None, step: int) -> float | None:
    """Return the value of a schedule at a step, or None if there is no schedule.

    >>> at_step(0.5, 3), at_step(lambda step: 2.0 * step, 3)
    (0.5, 6.0)
    """
    value = schedule(step) if callable(schedule) else schedule
    return None if value is None else float(value)  # which may be of numpy or torch


class Within:
    """A function of the steps of a run, which later steps do not call: they have the value of the last one.

    The numbers of steps are computed ahead, and a function such as `lambda step: rates[step]` has none after the last.

    >>> Within([1.0, 0.5].__getitem__, 2)(5)
    0.5
    """

    def __init__(self, schedule: Callable[[int], float], steps: int) -> None:
        self._schedule, self._last = schedule, steps - 1

    def __call__(self, step: int) -> float:
        """Return the value at a step."""
        return self._schedule(min(step, self._last))

    def __repr__(self) -> str:
        return repr(self._schedule)


def within(schedule: Any, steps: int) -> Any:
    """Return a schedule, or schedules by node, whose functions are only called for the steps of a run."""
    if isinstance(schedule, Mapping):
        return {node: within(own, steps) for node, own in schedule.items()}
    return Within(schedule, steps) if callable(schedule) and not isinstance(schedule, Annealing | Warmup) else schedule


def lr_factor(name: str, step: int, steps: int) -> float:
    """Return the factor by which a named schedule multiplies the learning rate at a step out of `steps`.

    >>> lr_factor("constant", 50, 100), lr_factor("linear", 25, 100), lr_factor("cosine", 50, 100)
    (1.0, 0.75, 0.5)
    """
    done = min(step / steps, 1.0)
    match name:
        case "linear":
            return 1 - done
        case "cosine":
            return (1 + math.cos(math.pi * done)) / 2
        case _:
            return 1.0


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
            _require_number(name, value)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive, got {value:.9g}")

    def __call__(self, step: int) -> float:
        """Return the temperature of an optimizer update, counted from 0."""
        gone = min(max(step / self.steps, 0.0), 1.0)
        return float(self.start ** (1 - gone) * self.end**gone)


@dataclass(frozen=True)
class Warmup:
    """A number that rises linearly from `start` to `end` within some steps, and then stays constant.

    It serves as the weight of a KL, or as the factor of a learning rate.

    >>> beta = Warmup(1000)
    >>> beta(0), beta(500), beta(5000)
    (0.0, 0.5, 1.0)
    """

    steps: int
    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("steps", self.steps), ("start", self.start), ("end", self.end)):
            _require_number(name, value)
        if not 0 < self.steps < math.inf:
            raise ValueError(f"steps must be positive, got {self.steps:.9g}")
        for name, value in (("start", self.start), ("end", self.end)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must not be negative, got {value:.9g}")

    def __call__(self, step: int) -> float:
        """Return the number at an optimizer update, counted from 0."""
        gone = min(max(step / self.steps, 0.0), 1.0)
        return float(self.start + (self.end - self.start) * gone)


def read_start_end_steps(name: str, text: str) -> Annealing | Warmup:
    """Read the start, the end and the steps of a schedule: a `Warmup` of beta, or an `Annealing` of a temperature.

    >>> read_start_end_steps("beta", "0:1:1000"), read_start_end_steps("temperature", "1:1/2:10000")
    (Warmup(steps=1000, start=0.0, end=1.0), Annealing(start=1.0, end=0.5, steps=10000))
    """
    try:
        start, end, steps = (number(part) for part in text.split(":"))
        if steps != steps // 1:
            raise ValueError
        return Warmup(int(steps), start, end) if name == "beta" else Annealing(start, end, int(steps))
    except ValueError:
        must = "must be a number, or start:end:steps such as 1:1/2:10000"
        raise ValueError(f"{name} {must}, got {text!r}") from None


def _require_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
