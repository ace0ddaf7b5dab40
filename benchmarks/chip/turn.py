"""Time contenders in turns on a device. A turn repeats the same work a given number of times."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from concretely.training.capture import Captured

from .. import record
from ..timing import Spread, Timing, first_call, interleaved

Say = Callable[[str], None]
"""Prints a line."""


@dataclass(frozen=True)
class Contender:
    """A way of doing some work. A call repeats it a given number of times and returns when all of it is done."""

    name: str
    step: Callable[[int], Any]
    times: int = 1
    ours: bool = False
    bound: Callable[[], float] | None = None
    """Returns the mean bound of the first steps of a contender that trains. It is called after the first call."""


Entrants = Mapping[str, Callable[[], Contender]]
"""Functions that build the contenders, by name. A contender may be missing or fail."""


def repeated(work: Callable[[], Any], times: int, device: torch.device) -> Callable[[int], None]:
    """Return a turn of work that torch queues on a device."""

    def step(seed: int) -> None:
        for _ in range(times):
            work()
        wait(device)

    return step


def captured(work: Callable[[], Any], device: torch.device) -> Captured:
    """Return work that is captured as a CUDA graph and replayed, on a device that supports it."""
    return Captured(work, torch.cuda.Stream(device) if device.type == "cuda" else None)


def wait(device: torch.device) -> None:
    """Wait for a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def made(
    entrants: Entrants, say: Say, *, suits: Callable[[Contender], None] = lambda contender: None
) -> list[Timing[Contender]]:
    """Return the contenders whose first call succeeds, with its seconds; print a line about each of the others."""
    timings = []
    for name, make in entrants.items():
        try:
            contender = make()
            first = first_call(contender)
            suits(contender)
        except Exception as reason:  # whatever is wrong with one, the others are timed
            say(f"{name} is left out, as it fails: {type(reason).__name__}: {(str(reason).splitlines() or [''])[0]}")
        else:
            timings.append(Timing(contender, first, np.empty(0)))
    return timings


def timed(ready: Sequence[Timing[Contender]], *, rounds: int, seed: int) -> list[Timing[Contender]]:
    """Return the seconds of the work of every contender, in rounds of turns of at least 20 ms."""
    contenders = [timing.contender for timing in ready]
    seconds = interleaved(contenders, rounds, seed=seed, finished=lambda: None) if contenders else []
    return _per_work(ready, seconds)


def timed_once(ready: Sequence[Timing[Contender]], *, rounds: int, seed: int) -> list[Timing[Contender]]:
    """Return the seconds of long work, of which every contender does one call in a round."""
    shuffle, order = random.Random(seed).shuffle, list(range(len(ready)))
    seconds = np.empty((len(ready), rounds))
    for number in range(rounds):
        shuffle(order)
        for i in order:
            seconds[i, number] = first_call(ready[i].contender)
    return _per_work(ready, seconds)


def described(timings: Sequence[Timing[Contender]], *, models: int = 1) -> list[dict[str, Any]]:
    """Return timings for one of several models as a record stores them, with ratios to our contenders."""
    ours = [timing for timing in timings if timing.contender.ours]
    return [
        {
            "name": timing.contender.name,
            "ours": timing.contender.ours,
            "first_call_ms": float(f"{timing.first * 1e3:.4g}"),
            "us": record.described_spread(Spread.of(timing.rounds * 1e6 / models)),
            "ratio": {other.contender.name: record.described_spread(timing.over(other)) for other in ours},
        }
        for timing in timings
    ]


def lines(title: str, timings: Sequence[Timing[Contender]], *, unit: float, name: str) -> str:
    """Return timings as text, the fastest first, with ratios to our fastest contender."""
    ranked = sorted(timings, key=lambda timing: Spread.of(timing.rounds).median)
    ours = next((timing for timing in ranked if timing.contender.ours), None)
    rows = [f"{title}, {name}"]
    for timing in ranked:
        median, lower, upper = Spread.of(timing.rounds / unit)
        ratio = "" if ours is None else f"÷ ours {timing.over(ours).median:8.3g}"
        rows.append(f"  {timing.contender.name:<44} {median:10.4g} ({lower:.4g} – {upper:.4g})  {ratio}")
    return "\n".join(rows)


def _per_work(ready: Sequence[Timing[Contender]], seconds: Any) -> list[Timing[Contender]]:
    return [
        Timing(timing.contender, timing.first, row / timing.contender.times)
        for timing, row in zip(ready, seconds, strict=True)
    ]
