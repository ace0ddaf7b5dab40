"""Turns that contenders take on a device, each so many times the same work, and what is said of them."""

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
"""Where lines for people go."""


@dataclass(frozen=True)
class Contender:
    """A way of doing some work, so many times in a call; all of it is done when the call returns."""

    name: str
    step: Callable[[int], Any]
    times: int = 1
    ours: bool = False
    bound: Callable[[], float] | None = None
    """Where it trains, the average bound of its first steps, as many for all; asked for after a first call."""


Entrants = Mapping[str, Callable[[], Contender]]
"""How each contender is made, by its name; what is made may turn out to be missing or to fail."""


def repeated(work: Callable[[], Any], times: int, device: torch.device) -> Callable[[int], None]:
    """A turn of work that torch puts in the queue of a device."""

    def step(seed: int) -> None:
        for _ in range(times):
            work()
        wait(device)

    return step


def captured(work: Callable[[], Any], device: torch.device) -> Captured:
    """Work that is recorded once and replayed, on a device that can."""
    return Captured(work, torch.cuda.Stream(device) if device.type == "cuda" else None)


def wait(device: torch.device) -> None:
    """Return when a device has done all it was told to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def made(
    entrants: Entrants, say: Say, *, suits: Callable[[Contender], None] = lambda contender: None
) -> list[Timing[Contender]]:
    """The contenders whose first call works and suits, with its seconds; and a line about each of the others."""
    found = []
    for name, make in entrants.items():
        try:
            contender = make()
            first = first_call(contender)
            suits(contender)
        except Exception as reason:  # whatever is wrong with one, the others are timed
            say(f"{name} is left out, as it fails: {type(reason).__name__}: {(str(reason).splitlines() or [''])[0]}")
        else:
            found.append(Timing(contender, first, np.empty(0)))
    return found


def timed(ready: Sequence[Timing[Contender]], *, rounds: int, seed: int) -> list[Timing[Contender]]:
    """The seconds of the work of each contender, in rounds of turns of at least a fiftieth of a second."""
    contenders = [timing.contender for timing in ready]
    seconds = interleaved(contenders, rounds, seed=seed, finished=lambda: None) if contenders else []
    return _per_work(ready, seconds)


def timed_once(ready: Sequence[Timing[Contender]], *, rounds: int, seed: int) -> list[Timing[Contender]]:
    """The same for work so long that a round is one call of each, and nothing has to come to rest before it."""
    shuffle, order = random.Random(seed).shuffle, list(range(len(ready)))
    seconds = np.empty((len(ready), rounds))
    for number in range(rounds):
        shuffle(order)
        for i in order:
            seconds[i, number] = first_call(ready[i].contender)
    return _per_work(ready, seconds)


def described(timings: Sequence[Timing[Contender]], *, models: int = 1) -> list[dict[str, Any]]:
    """What a record says of timings, for one of so many models; ratios are against each contender of this library."""
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
    """Timings as text, the fastest first, in a unit of so many seconds; ratios are against the fastest of ours."""
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
