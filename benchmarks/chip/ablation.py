"""The worth of every Triton kernel: time steps and likelihoods of this library with all kernels and without one.

If a kernel is switched off, its definition in torch operations runs instead, on the same device. Every pair of a row
and a switch is timed in turns against the same row with all kernels, and gives one result, or the error if it fails.
"""

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from concretely.data import Dataset
from concretely.evaluation.likelihood import _suitable, evaluate
from concretely.training.engine import Engine
from concretely.training.feed import LINES

from .. import record
from ..timing import Spread
from . import likelihood, work
from .switch import counted, off, switched_off, switches
from .turn import Say, wait

SECONDS = 270.0
"""The time limit of all rows in seconds. Pairs that would start later are recorded as left out."""
ROUNDS = 5
TURN_SECONDS = 0.02
"""The minimum seconds of a turn with all kernels."""
WARM_UP = 60
"""Steps before the first turn, in which the graphs of an engine are captured, that of ten steps as the last."""
PLAIN = 32
"""Steps of a turn where the program could not be captured, and takes far longer."""
POINTS, SAMPLES = 200, 50_000


@dataclass(frozen=True)
class Run:
    """Work that a call repeats a given number of times."""

    turn: Callable[[int], None]
    times: int
    calls: Counter[str]
    """How often the first step called every kernel."""
    found: float
    """The bound or the log-likelihood, which shows that two runs do the same work."""
    captured: bool | None = None
    """Whether it was recorded as a CUDA graph, if that was tried."""
    warned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """Training steps of some models as one program."""

    members: int
    samples: int
    estimator: str = "concrete"
    notation: str = "200H~784V"
    optimizer: str = "adam"
    batch: int = 64

    @property
    def title(self) -> str:
        """The row in one line."""
        many = f"{self.members} model{'s' * (self.members > 1)}"
        return f"step {self.notation}, {self.estimator}, m = {self.samples}, {self.optimizer}, {many}"

    @property
    def described(self) -> dict[str, Any]:
        """The row as a record stores it."""
        return {"work": "step", **vars(self)}

    def run(self, switch: str | None, device: torch.device, quick: bool) -> Run:
        """Return an engine that has taken its first steps."""
        given = {"batch": self.batch, "samples": self.samples, "estimator": self.estimator}
        recipe = work.recipe(self.notation, optimizer=self.optimizer, **given)
        engine = Engine(work.states(recipe, _data(recipe.width, device), members=self.members, device=device))
        with off(switch), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with counted() as calls:
                work.taken(engine, 1)
            work.taken(engine, 1 if quick else WARM_UP - 1)
        captured = engine.is_captured

        def turn(steps: int) -> None:
            with off(switch):  # a program that could not be captured asks again in every step
                work.taken(engine, steps)

        bound = sum(run.bound() for run in engine.runs) / self.members
        times = 2 if quick else PLAIN if captured is False else LINES
        warned = tuple(dict.fromkeys((str(warning.message).splitlines() or [""])[0] for warning in caught))
        return Run(turn, times, calls, bound, captured, warned)


@dataclass(frozen=True)
class Score:
    """The log-likelihood of data points from many samples."""

    notation: str
    points: int = POINTS
    samples: int = SAMPLES
    members: int = 1

    @property
    def title(self) -> str:
        """The row in one line."""
        return f"L_{self.samples:,} of {self.points:,} points, {self.notation}"

    @property
    def described(self) -> dict[str, Any]:
        """The row as a record stores it."""
        return {"work": "likelihood", **vars(self)}

    def run(self, switch: str | None, device: torch.device, quick: bool) -> Run:
        """Return a model that has scored a few data points."""
        model, bits = likelihood.model_and_bits(self.notation, points=self.points, device=device)
        # the same for all switches: left to itself, it depends on the memory that other runs have left free
        chunk = _chunk(self.notation, device)

        def turn(times: int) -> None:
            with off(switch):
                for _ in range(times):
                    evaluate(model, bits, samples=self.samples, chunk=chunk)
                wait(device)

        with off(switch), counted() as calls:
            few = evaluate(model, bits[: likelihood.FEW], samples=self.samples, chunk=chunk)
        return Run(turn, 1, calls, few.log_likelihood.mean().item())


Row = Step | Score
ROWS: tuple[Row, ...] = (
    Score("200H~784V"),
    Score("240H:8~784V"),
    Score("200H~200H~784V"),
    Step(1, 1),
    Step(8, 5),
    Step(8, 5, "vimco"),
    Step(8, 1, "nvil"),
    Step(8, 1, notation="240H:8~784V"),
    Step(8, 1, optimizer="muon"),
    Step(8, 5, "logistic-normal", notation="240H:8~784V"),
    Step(8, 50),
    Step(1, 1, notation="200H~200H~784V", optimizer="muon"),
    Step(8, 5, "vimco", notation="240H:8~784V"),
    Step(8, 1, "logistic-normal"),
)
"""The first rows together use every kernel, in case time runs out."""
QUICK: tuple[Row, ...] = (
    Score("6H~20V", points=20, samples=50),
    Step(1, 1, notation="4H~12V", batch=8),
    Step(2, 2, "vimco", notation="6H:8~12V", batch=8),
)


def results(*, device: torch.device, quick: bool, say: Say, seconds: float = SECONDS) -> Iterator[dict[str, Any]]:
    """Yield, for every row, the kernels that it calls, and then a result for every switch."""
    end = time.perf_counter() + seconds
    for row in QUICK if quick else ROWS:
        yield from row_results(row, device=device, quick=quick, say=say, end=end)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def row_results(
    row: Row, *, device: torch.device, quick: bool, say: Say, end: float = math.inf
) -> Iterator[dict[str, Any]]:
    """Yield the results of one row. Pairs that would start after the deadline are recorded as left out."""
    on, failed = _tried(_run_in_time, row, None, device, quick, end)
    about = failed if on is None else {"calls": dict(sorted(on.calls.items())), **_about(on)}
    say(f"{row.title}: {failed['error'] if on is None else _calls(on.calls)}")
    yield {**row.described, "off": None, **about}
    for switch in [] if on is None else switches(on.calls):
        measured, failed = _tried(_measured, row, on, switch, device=device, quick=quick, end=end)
        result = {**row.described, "off": switch, **(measured or failed)}
        say(f"{row.title}, without {switch}: {_line(result)}")
        yield result


def _measured(row: Row, on: Run, switch: str, *, device: torch.device, quick: bool, end: float) -> dict[str, Any]:
    """Return how many times longer a row takes with a kernel switched off."""
    without = _run_in_time(row, switch, device, quick, end)
    still = [name for name in switched_off(switch) if without.calls[name]]
    if still:
        raise RuntimeError(f"kernels that are switched off must not run, got calls of {', '.join(still)}")
    on.turn(on.times)  # once without the clock, for what is compiled or allocated on first use
    without.turn(without.times)
    turns = max(1, math.ceil(TURN_SECONDS / _seconds(on, on.times)))
    rounds = []
    for number in range(2 if quick else ROUNDS):
        pair = [(0, on), (1, without)]
        seconds = [0.0, 0.0]
        for place, run in pair if number % 2 else reversed(pair):
            steps = run.times * (turns if run.captured is not False else 1)
            seconds[place] = _seconds(run, steps) / steps
        rounds.append(seconds)
    with_it, without_it = np.array(rounds).T
    return {
        "us": record.described_spread(Spread.of(with_it * 1e6 / row.members)),
        "us_off": record.described_spread(Spread.of(without_it * 1e6 / row.members)),
        "ratio": record.described_spread(Spread.of(without_it / with_it)),
        **_about(without),
        "found_on": on.found,
    }


def _run_in_time(row: Row, switch: str | None, device: torch.device, quick: bool, end: float) -> Run:
    if time.perf_counter() > end:
        raise TimeoutError("left out, as there is no time left")
    return row.run(switch, device, quick)


def _about(run: Run) -> dict[str, Any]:
    return {"captured": run.captured, "warned": list(run.warned), "found": run.found}


def _tried(attempt: Callable[..., Any], *given: Any, **named: Any) -> tuple[Any, dict[str, Any]]:
    """Return the result of a call, or None and its error as text."""
    try:
        return attempt(*given, **named), {}
    except Exception as reason:  # whatever is wrong with one pair, the others are timed
        return None, {"error": f"{type(reason).__name__}: {(str(reason).splitlines() or [''])[0]}"}


def _calls(calls: Counter[str]) -> str:
    return "calls " + (", ".join(f"{name} {count}" for name, count in sorted(calls.items())) or "no kernel")


def _line(result: dict[str, Any]) -> str:
    """Return a result in words."""
    if "error" in result:
        return str(result["error"])
    ratio = result["ratio"]
    low, high = ratio["quartiles"]
    took = f"{result['us']['median']:.4g} -> {result['us_off']['median']:.4g} µs"
    plain = ", NOT CAPTURED" if result["captured"] is False else ""
    return f"× {ratio['median']:.3f} ({low:.3f} – {high:.3f}), {took}{plain}"


def _seconds(run: Run, steps: int) -> float:
    start = time.perf_counter()
    run.turn(steps)
    return time.perf_counter() - start


@cache
def _data(width: int, device: torch.device) -> Dataset:
    return work.bits(width).to(device)


@cache
def _chunk(notation: str, device: torch.device) -> int:
    model, bits = likelihood.model_and_bits(notation, points=1, device=device)
    return _suitable(model, (bits,))
