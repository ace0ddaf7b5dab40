"""Train a model of MNIST with several recipes, and record its NLL against seconds of training.

Seconds are the time of training steps on the device. They do not include validation, nor the first steps, in which
programs are compiled and recorded. All models are scored with the same precision of matrix products, whatever they
were trained with, and with the same draws.
"""

import math
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from concretely.data import Dataset, load_data
from concretely.evaluation.likelihood import Likelihood, evaluate
from concretely.model import Model
from concretely.training.capture import WARM_UPS
from concretely.training.engine import GAP_INTERVAL, Engine
from concretely.training.recipe import Recipe, read, resolve
from concretely.training.rng import Purpose, generator_of
from concretely.training.train_state import TrainState

from ..timing import Spread
from . import asked, kernel, turn, work
from .asked import Asked
from .turn import Say

FIRST = GAP_INTERVAL * (WARM_UPS + 2)
"""The steps before the clock starts. In the last of them, the graph of ten steps is captured."""

HORIZON = 0.05
"""The horizon of averaged weights, as a share of all steps."""

OFTEN = 50
"""The number of times that weights are added to the average within the horizon."""

LIMIT = 92.1
"""The test NLL in the paper, in nats."""


class Size(NamedTuple):
    """The model to train, and how it is validated and scored."""

    notation: str
    validations: int
    """The number of validations, evenly spaced."""
    valid_points: int
    valid_samples: int
    test_points: int | None
    """The number of data points to score, by default all."""
    test_samples: int
    changes: dict[str, Any]
    """Keys that replace those of the recipes."""


WHOLE = Size("200H~784V", 20, 2_000, 1_000, None, 50_000, {})
QUICK = Size("12H~784V", 2, 50, 20, 50, 20, {"steps": 60, "batch": 64})


class Case(NamedTuple):
    """A recipe, its time limit and its options."""

    name: str
    settings: dict[str, Any]
    seconds: float = math.inf
    """The number of seconds after which training ends."""
    matmul_precision: str | None = None
    """The precision of matrix products in training, by default that of the benchmark."""
    averages: bool = False
    """Whether the average of the weights is scored too."""


def cases(seconds: float) -> tuple[Case, ...]:
    """Return the paper's recipe with a time limit, the fast recipe, and variants of it.

    >>> [case.name for case in cases(60.0) if case.seconds == 60.0]
    ['paper']
    """
    paper, fast = (read(Path(name)) for name in ("paper", "fast"))
    return (
        Case("paper", paper, seconds=seconds),
        Case("fast", fast),
        Case("fast, by Adam", {**fast, "optimizer": "adam", "lr": 3e-3, "steps": 50_000}),
        Case("fast, Adam and batch 512", {**fast, "optimizer": "adam", "batch": 512, "lr": 1.5e-3, "steps": 100_000}),
        Case("fast, at a rate that stays", {**fast, "lr_schedule": "constant"}, averages=True),
        Case("fast, products of bfloat16", fast, matmul_precision="medium"),
        Case("fast, products of float32", fast, matmul_precision="highest"),
    )


def results(
    *, device: torch.device, seconds: float, points: int | None, quick: bool, say: Say
) -> Iterator[dict[str, Any]]:
    """Yield the result of every recipe, or print a line if MNIST is not available."""
    try:
        data = load_data("mnist").to(device)
    except (ImportError, OSError, ValueError) as reason:
        say(f"recipes are left out, as there is no MNIST: {reason}")
        return
    size = QUICK if quick else WHOLE
    size = size._replace(test_points=points or size.test_points)
    for case in cases(seconds):
        try:
            yield from _results(case, size, data, say)
        except Exception as reason:  # whatever is wrong with one, the others are trained
            why = (str(reason).splitlines() or [""])[0]
            say(f"{case.name} is left out, as it fails: {type(reason).__name__}: {why}")


class Average:
    """A model whose parameters are exponential moving averages of those of another model.

    >>> import concretely as c
    >>> model = c.density("2H-6V")
    >>> average = Average(model, share=0.1)
    >>> average.take(model)
    >>> all(map(torch.equal, average.model.parameters(), model.parameters()))
    True
    """

    def __init__(self, model: Model, *, share: float) -> None:
        self.model, self._share, self._taken = deepcopy(model), share, 0

    def take(self, model: Model) -> None:
        """Add the current parameters of a model. The first ones all have the same weight."""
        self._taken += 1
        for mean, now in zip(self.model.parameters(), model.parameters(), strict=True):
            mean.data.lerp_(now.data, max(self._share, 1 / self._taken))


class Run:
    """A run of a recipe, with a clock for its steps."""

    def __init__(self, case: Case, recipe: Recipe, data: Dataset) -> None:
        self.case, self.recipe, self.seconds = case, recipe, 0.0
        self.first = min(FIRST, recipe.steps)
        self.matmul_precision = case.matmul_precision or torch.get_float32_matmul_precision()
        self.state = TrainState.of(recipe, data, device=data.train.packed.device)
        self.engine = Engine([self.state])
        horizon = HORIZON * recipe.steps
        self._stretch = max(1, round(horizon / OFTEN)) if case.averages else recipe.steps
        share = -math.expm1(-self._stretch / horizon)
        self._average = Average(self.state.model, share=share) if case.averages else None

    @property
    def models(self) -> dict[str, Model]:
        """Return the models to score, by name."""
        average = {} if self._average is None else {f"{self.case.name}, averaged": self._average.model}
        return {self.case.name: self.state.model, **average}

    @property
    def goes_on(self) -> bool:
        """Return whether steps and seconds are left, and no step has failed."""
        left = self.engine.step < self.recipe.steps and self.seconds < self.case.seconds
        return left and self.state.first_nonfinite() is None

    def begin(self) -> None:
        """Take the first steps, without the clock."""
        self._advance(self.first, math.inf)

    def advance(self, validations: int) -> None:
        """Train until the next of this number of validations is due, by steps or by seconds."""
        taken, all_of_them = self.engine.step - self.first, self.recipe.steps - self.first
        until = self.first + math.ceil(mark(taken, all_of_them, validations))
        started = time.perf_counter()
        self._advance(until, started + mark(self.seconds, self.case.seconds, validations) - self.seconds)
        self.seconds += time.perf_counter() - started

    def _advance(self, until: int, end: float) -> None:
        """Take steps until a step or a time is reached, and wait for the device."""

        def late() -> bool:
            return time.perf_counter() >= end

        with kernel.precise(self.matmul_precision):
            while self.engine.step < until and not late():
                self.engine.advance(min(until, self.engine.step + self._stretch), pause=late)
                if self._average is not None:
                    self._average.take(self.state.model)
        turn.wait(self.engine.device)


def mark(now: float, last: float, validations: int) -> float:
    """Return the next of evenly spaced marks; the last argument is their number.

    >>> mark(0, 100, 4), mark(25, 100, 4), mark(26, 100, 4), mark(3, math.inf, 4)
    (25.0, 50.0, 50.0, inf)
    """
    return last * ((now * validations // last + 1) / validations)


def chosen(points: int, of: int) -> Tensor:
    """Return evenly spaced indices of some points among all, since a test set may be sorted.

    >>> chosen(3, 10)
    tensor([0, 3, 6])
    """
    return torch.arange(points) * of // points


def _results(case: Case, size: Size, data: Dataset, say: Say) -> Iterator[dict[str, Any]]:
    """Return the scores of the last weights and, if there is one, of their average."""
    recipe = resolve(**{**case.settings, "notation": size.notation, "data": "mnist", "seed": work.SEED, **size.changes})
    say(f"{case.name}: {recipe.steps:,} steps" + f", {case.seconds:g} s at most" * math.isfinite(case.seconds))
    run = Run(case, recipe, data)
    run.begin()
    valid = data.valid[: size.valid_points]
    curves: dict[str, list[dict[str, Any]]] = {name: [] for name in run.models}
    while run.goes_on:
        run.advance(size.validations)
        place = {"step": run.engine.step, "seconds": _rounded(run.seconds)}
        for name, model in run.models.items():
            likelihood = _scored(recipe, model, valid, size.valid_samples, Purpose.VALIDATION)
            curves[name].append({**place, "nll": likelihood.nll})
    fault = run.state.first_nonfinite()
    if fault is not None:
        say(f"  the gradient of step {fault[0] + 1:,} is not finite, first in layer {fault[1]}: it ends there")
    number = min(size.test_points or len(data.test), len(data.test))
    test = data.test[chosen(number, len(data.test)).to(data.test.packed.device)]
    for name, model in run.models.items():
        likelihood = _scored(recipe, model, test, size.test_samples, Purpose.EVALUATION)
        say(f"  {name:<36} step {run.engine.step:,}, {run.seconds:.4g} s: {likelihood}")
        whole = size.notation == WHOLE.notation and number == len(data.test)
        beside = [_asked(likelihood)] if name == "fast" and whole else []
        for row in beside:
            say(asked.line(row))
        yield {
            "name": name,
            "settings": recipe.settings,
            "matmul_precision": run.matmul_precision,
            "seconds_at_most": case.seconds,
            "steps_before_the_clock": run.first,
            "step": run.engine.step,
            "seconds": _rounded(run.seconds),
            "fault": None if fault is None else {"step": fault[0], "layer": fault[1]},
            "valid": {"points": len(valid), "samples": size.valid_samples, "curve": curves[name]},
            "test": _described(likelihood),
            "asked": beside,
        }


def _scored(recipe: Recipe, model: Model, bits: Tensor, samples: int, purpose: Purpose) -> Likelihood:
    """Return the likelihood of a model, from the same draws in every call."""
    return evaluate(model, bits, samples=samples, generator=generator_of(recipe.seed, purpose, device=bits.device))


def _described(likelihood: Likelihood) -> dict[str, Any]:
    return {
        "points": len(likelihood.log_likelihood),
        "samples": likelihood.samples,
        "nll": likelihood.nll,
        "standard_error": likelihood.standard_error,
        "effective_sample_size": likelihood.effective_sample_size.mean().item(),
    }


def _asked(likelihood: Likelihood) -> dict[str, Any]:
    """Return a limit and the result of one run, with a standard error instead of quartiles."""
    limit = Asked(f"test NLL of {WHOLE.notation}, fast recipe", "at most", LIMIT, "nats")
    return {
        **limit.beside(Spread(likelihood.nll, likelihood.nll, likelihood.nll)),
        "standard_error": likelihood.standard_error,
    }


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")
