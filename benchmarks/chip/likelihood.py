"""Time the log-likelihood of a test set from 50,000 samples, against a plain loop. The models are not trained."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import concretely as c
from concretely.evaluation.likelihood import evaluate

from ..timing import Spread
from . import asked, turn, work
from .asked import Asked
from .peer import torch_likelihood
from .turn import Contender, Say

CASES = {"200H~784V": 4.0, "200H~200H~784V": 8.0}
"""The limit in seconds for every model."""

QUICK = {"6H~20V": 4.0, "6H~6H~20V": 8.0}
POINTS, SAMPLES = 10_000, 50_000
FEW = 20
"""The number of data points scored once before the timing, when everything is compiled."""


def results(
    *, device: torch.device, rounds: int, points: int | None, quick: bool, say: Say
) -> Iterator[dict[str, Any]]:
    """Yield the seconds of every model, scaled to all points if fewer are scored."""
    number, samples = points or (200 if quick else POINTS), 500 if quick else SAMPLES
    for notation, limit in (QUICK if quick else CASES).items():
        yield _result(notation, limit, device=device, rounds=rounds, points=number, samples=samples, say=say)


def model_and_bits(notation: str, *, points: int, device: torch.device) -> tuple[c.Model, Tensor]:
    """Return a model before training, and random bits for it."""
    data = work.bits(c.parse(notation).observed.units, points=points)
    generator = torch.Generator().manual_seed(work.SEED)
    return c.density(notation, base_rate=data.train.rate, generator=generator).to(device), data.test[:].to(device)


def ours(model: c.Model, bits: Tensor, *, samples: int) -> Tensor:
    """Return the log-likelihood of every data point, by this library."""
    return evaluate(model, bits, samples=samples).log_likelihood


def _result(
    notation: str, limit: float, *, device: torch.device, rounds: int, points: int, samples: int, say: Say
) -> dict[str, Any]:
    model, bits = model_and_bits(notation, points=points, device=device)
    nll: dict[str, float] = {}

    def contender(name: str, score: Callable[..., Tensor]) -> Contender:
        score(model, bits[:FEW], samples=samples)

        def step(seed: int) -> None:
            nll[name] = -score(model, bits, samples=samples).mean().item()  # this waits for the device

        return Contender(name, step, ours=score is ours)

    names = {"concretely, evaluate": ours, "torch by hand, loop": torch_likelihood.log_likelihood}
    ready = turn.made({name: lambda n=name, s=score: contender(n, s) for name, score in names.items()}, say)
    timings = turn.timed_once(ready, rounds=rounds, seed=work.SEED)
    title = f"L_{samples:,} of {points:,} points, {notation}"
    say(turn.lines(title, timings, unit=1.0, name="seconds"))
    whole = [timing.rounds * (POINTS / points) for timing in timings if timing.contender.ours]
    wish = Asked(f"L_{SAMPLES:,} of {POINTS:,} points, {notation}", "at most", limit, "s")
    beside = [wish.beside(Spread.of(seconds)) for seconds in whole] if samples == SAMPLES else []
    for row in beside:
        say(asked.line(row))
    sizes = {"architecture": notation, "points": points, "samples": samples, "nll": nll}
    return {**sizes, "contenders": turn.described(timings), "asked": beside}
