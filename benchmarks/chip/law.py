"""Laws that must hold on a device before anything is timed on it."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from concretely.data import Bits, Dataset
from concretely.evaluation.likelihood import evaluate, exact_log_likelihood
from concretely.training.engine import Engine
from concretely.training.recipe import Recipe
from concretely.training.train_state import TrainState

from . import kernel, likelihood, work
from .peer import torch_likelihood
from .turn import Say

ERRORS = 5.0
"""The largest distance of two estimates, in standard errors."""

STEPS = 25


class Law(NamedTuple):
    """The law that a number is at most a limit.

    >>> Law("the same result", found=2.0, limit=1.0).sentence
    'the same result: must be within 1, got 2'
    """

    name: str
    found: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether the law holds. It does not if the number is NaN."""
        return self.found <= self.limit

    @property
    def sentence(self) -> str:
        """The law and what was found."""
        return f"{self.name}: must be within {self.limit:.3g}, got {self.found:.3g}"


def kept(*, device: torch.device, precision: str, quick: bool, say: Say) -> list[Law] | None:
    """Return all laws; print the first that is broken and return None."""
    checked = []
    for law in laws(device=device, precision=precision, quick=quick):
        say(f"{'holds' if law.holds else 'BROKEN'}  {law.sentence}")
        if not law.holds:
            say(f"nothing is timed, as a law is broken: {law.sentence}")
            return None
        checked.append(law)
    return checked


def laws(*, device: torch.device, precision: str, quick: bool) -> Iterator[Law]:
    """Yield the laws, each computed when it is requested."""
    torch.manual_seed(work.SEED)
    for name, distance, limit in kernel.distances(device, precision):
        yield Law(f"kernel against definition, {name}", distance, limit)
    for estimator in ("concrete", "vimco", "nvil"):
        with kernel.precise("highest"):  # or states that are drawn would differ in the end
            name = f"parameters of a member against those of the same run alone, {estimator}"
            yield Law(name, _apart(_small(estimator), _dots(), device), 1e-3)
    notation = "12H~40V" if quick else "200H~784V"
    yield Law(f"bound of a member against that of the same run alone, {notation}", _bounds(notation, device), 1e-2)
    yield Law("L_m against enumeration, 4H~12V, in standard errors", _against_enumeration(device), ERRORS)
    for looped in (notation, f"{notation.partition('~')[0]}~{notation}"):
        name = f"L_m by this library against a plain loop, {looped}, in standard errors"
        yield Law(name, _against_loop(looped, device), ERRORS)


def _apart(recipes: list[Recipe], data: Dataset, device: torch.device) -> float:
    """Return the largest distance of members from the same runs alone, in parameters and moments scaled to size one."""
    alone, together = ([TrainState.of(recipe, data, device=device) for recipe in recipes] for _ in range(2))
    for state in alone:
        Engine([state], stacked=False).advance(STEPS)
    Engine(together).advance(STEPS)
    pairs = (
        (one.tensors()[name], other.tensors()[name])
        for one, other in zip(alone, together, strict=True)
        for name in one.tensors()
    )
    return max(kernel.distance(other, one, relative_to=1 + one.double().abs().max().item()) for one, other in pairs)


def _bounds(notation: str, device: torch.device) -> float:
    """Return the relative distance of the bounds of members' first steps from those of the same runs alone."""
    recipe = work.recipe(notation)
    data = work.bits(recipe.width, points=1_000)
    alone, together = (work.states(recipe, data, members=2, device=device) for _ in range(2))
    for state in alone:
        Engine([state], stacked=False).advance(STEPS)
    Engine(together).advance(STEPS)
    pairs = zip(alone, together, strict=True)
    return max(abs(other.bound() / one.bound() - 1) for one, other in pairs)


def _against_enumeration(device: torch.device) -> float:
    """Return the distance of an estimated log-likelihood from the exact one, in standard errors over points."""
    samples = 10_000
    model, bits = likelihood.model_and_bits("4H~12V", points=64, device=device)
    estimated = evaluate(model, bits, samples=samples)
    variance = (1 / estimated.effective_sample_size.cpu() - 1 / samples).clamp(min=1e-12)
    wrong = (estimated.log_likelihood.cpu() - exact_log_likelihood(model, bits).cpu()).sum().abs()
    return float(wrong / variance.sum().sqrt())


def _against_loop(notation: str, device: torch.device) -> float:
    """Return the distance of two estimates, in standard errors of their difference over points."""
    model, bits = likelihood.model_and_bits(notation, points=256, device=device)
    ours, theirs = (
        score(model, bits, samples=1_000).cpu() for score in (likelihood.ours, torch_likelihood.log_likelihood)
    )
    difference = ours - theirs
    return float(difference.mean().abs() / (difference.std() / math.sqrt(len(difference))))


def _small(estimator: str) -> list[Recipe]:
    """Return recipes of members that differ in seed, learning rate and weight decay."""
    given: dict[str, Any] = {"batch": 16, "estimator": estimator, "samples": 2 if estimator == "vimco" else 1}
    others = ({"seed": 1, "lr": 0.02}, {"seed": 2, "lr": 0.01, "weight_decay": 3.0}, {"seed": 3, "lr": 0.02})
    return [work.recipe("4H~12V", **{**given, **other}) for other in others]


def _dots() -> Dataset:
    """Return data points of twelve bits, the last four of which repeat the first."""
    free = torch.rand(70, 8, generator=torch.Generator().manual_seed(7)) < torch.linspace(0.1, 0.7, 8)
    points = torch.cat([free, free[:, :4]], -1)
    return Dataset("dots", *(Bits.pack(part) for part in points.split([40, 20, 10])), source="made up.")
