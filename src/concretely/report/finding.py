"""What the paper found, in words, and whether it is so in our numbers."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from ..notation import parse
from .figure import written
from .temperature import GAP, Point, interior

LINEAR = ("200H-784V", "200H-200H-784V")
NONLINEAR = ("200H~784V", "200H~200H~784V")
ARITIES = ("240H~784V", "240H~240H~784V")
PREDICTION = ("392V-240H-240H-392V", "392V-240H-240H-240H-392V")
DATA, SAMPLES, ESTIMATORS = ("mnist", "omniglot"), (1, 5, 50), ("concrete", "vimco")

WORSE = 1.0
"""From how many nats on something is said to be lost."""
SURE = 2.0
"""By how many standard errors of a comparison something is so that is not said to be so weakly."""


class Score(NamedTuple):
    """A number of nats and its standard error."""

    value: float
    error: float


Lookup = Callable[[str, int, str, str, str], Score | None]
"""The negative log-likelihood of a notation, m, data, estimator as the paper's table has it, and part, if known."""

Comparison = tuple[str, Score | None]
"""Which cells are compared, and by how many nats they are as the paper says, if they are known."""


class Finding(NamedTuple):
    """Something that the paper says or its tables show."""

    name: str
    claim: str
    held: bool | None
    """Whether it is so; None if too little is known."""
    found: str
    """What our numbers are."""
    partial: bool = False
    """Whether some of our numbers are still missing."""
    weak: bool = False
    """Whether it is so by less than the numbers are sure of."""

    @property
    def verdict(self) -> str:
        """Whether it is so, in words."""
        if self.held is None:
            return "not known yet"
        return ("held" if self.held else "not held") + " weakly" * self.weak + " so far" * self.partial


class Claim(NamedTuple):
    """Something that the paper says of its cells or they show, and which of them tell whether it is so."""

    name: str
    text: str
    compare: Callable[[Lookup], Iterator[Comparison]]

    def judged(self, ours: Lookup, paper: Lookup) -> Finding:
        """Held if comparisons are as it says on average; of fewer than half, nothing is said."""
        every = list(self.compare(ours))
        known = [(score, label) for label, score in every if score is not None]
        missing = len(every) - len(known)
        if not known:
            return Finding(self.name, self.text, None, f"None of {len(every)} comparisons can be made yet.")
        scores = [score for score, _ in known]
        theirs = dict(self.compare(paper))
        same = [score for _, label in known if (score := theirs[label]) is not None]
        (low, where_low), (high, where_high) = min(known), max(known)
        sure = sum(score.value > SURE * score.error for score in scores)
        found = f"{_summary(scores)} and by more than {SURE:g} standard errors in {sure}, "
        found += f"from {_difference(low)} ({where_low}) to {_difference(high)} ({where_high})."
        found += f" In the paper: {_summary(same)}." if same else ""
        found += f" {missing} more comparisons cannot be made yet." if missing else ""
        mean, error = fmean(score.value for score in scores), fmean(score.error for score in scores)
        held = mean > 0 if 2 * len(known) >= len(every) else None
        return Finding(self.name, self.text, held, found, missing > 0, abs(mean) < SURE * error)


def findings(
    ours: Lookup, paper: Lookup, points: Sequence[Point], held_out: Sequence[Point], *, temperatures: int
) -> list[Finding]:
    """All that the paper found, from scores of cells and from those of the temperatures that are known."""
    return [*(claim.judged(ours, paper) for claim in CLAIMS), integrality(points, held_out, temperatures=temperatures)]


def linear(lookup: Lookup) -> Iterator[Comparison]:
    """VIMCO is ahead for linear models."""
    return _estimators(lookup, LINEAR, SAMPLES, DATA, ahead="vimco", behind="concrete")


def nonlinear(lookup: Lookup) -> Iterator[Comparison]:
    """Concrete is ahead for non-linear models."""
    return _estimators(lookup, NONLINEAR, SAMPLES, DATA, ahead="concrete", behind="vimco")


def prediction(lookup: Lookup) -> Iterator[Comparison]:
    """Concrete is ahead in structured prediction with few samples."""
    return _estimators(lookup, PREDICTION, (1, 5), ("mnist",), ahead="concrete", behind="vimco")


def prediction_by_many(lookup: Lookup) -> Iterator[Comparison]:
    """VIMCO is ahead in structured prediction with many samples."""
    return _estimators(lookup, PREDICTION, (50,), ("mnist",), ahead="vimco", behind="concrete")


def arity_in_prediction(lookup: Lookup) -> Iterator[Comparison]:
    """More states are better in structured prediction."""
    for label, binary, several in _arities(lookup, PREDICTION[1:], (1,), ("mnist",)):
        yield label, _minus(binary, several)


def arity_in_density(lookup: Lookup) -> Iterator[Comparison]:
    """More states are not better in density estimation."""
    for label, binary, several in _arities(lookup, ARITIES, SAMPLES, DATA):
        yield label, _minus(several, binary)


def more_samples(lookup: Lookup) -> Iterator[Comparison]:
    """A larger m finds better likelihoods."""
    models = [(notation, estimator) for notation in (*LINEAR, *NONLINEAR, *PREDICTION) for estimator in ESTIMATORS]
    models += [(str(parse(notation, arity=arity)), "concrete") for notation in ARITIES for arity in (2, 4, 8)]
    for notation, estimator in models:
        for few, many in pairwise(SAMPLES):
            scores = (lookup(notation, m, "mnist", estimator, "test") for m in (few, many))
            yield f"`{notation}` by {estimator}, m = {many} after {few}", _minus(*scores)


def overfitting(lookup: Lookup) -> Iterator[Comparison]:
    """A larger m overfits where data are few."""

    def gap(notation: str, m: int, estimator: str) -> Score | None:
        return _minus(*(lookup(notation, m, "omniglot", estimator, part) for part in ("test", "train")))

    for notation in (*LINEAR, *NONLINEAR):
        for estimator in ESTIMATORS:
            yield f"`{notation}` by {estimator}", _minus(gap(notation, 50, estimator), gap(notation, 1, estimator))


CLAIMS = (
    Claim(
        "Linear models",
        "In density estimation by linear models, VIMCO finds a lower test NLL than Concrete.",
        linear,
    ),
    Claim(
        "Non-linear models",
        "In density estimation by non-linear models, Concrete finds a lower test NLL than VIMCO.",
        nonlinear,
    ),
    Claim(
        "Structured prediction",
        "In structured prediction with m = 1 and m = 5, Concrete finds a lower test NLL than VIMCO.",
        prediction,
    ),
    Claim(
        "Structured prediction by many samples",
        "In structured prediction with m = 50, VIMCO finds a lower test NLL than Concrete.",
        prediction_by_many,
    ),
    Claim(
        "Arity in structured prediction",
        "In structured prediction, nodes of 4 and 8 states find a lower test NLL than binary ones.",
        arity_in_prediction,
    ),
    Claim(
        "Arity in density estimation",
        "In density estimation, nodes of 4 and 8 states find no lower test NLL than binary ones.",
        arity_in_density,
    ),
    Claim("More samples", "On MNIST, a larger m finds a lower test NLL.", more_samples),
    Claim(
        "Overfitting",
        "On Omniglot a larger m overfits: from m = 1 to m = 50, the test NLL moves away from the training NLL.",
        overfitting,
    ),
)


def integrality(points: Sequence[Point], held_out: Sequence[Point] = (), *, temperatures: int) -> Finding:
    """Above some temperature the discrete graph loses what the relaxed one does not.

    That is judged by the objective that was trained; whether it is so on points that were held out is told beside it.
    """
    name = "Integrality gap"
    claim = "Above some temperature the relaxed objective of training is no worse, while that of the discrete graph is."
    if 2 * len(points) < temperatures or not points:
        return Finding(name, claim, None, f"{len(points)} of {temperatures} temperatures are known yet.")
    best, lost, held = _lost(points)
    found = f"On the training points the discrete graph is best at λ = {written(best.temperature)} with {_both(best)}."
    if lost:
        found += f" It is worse by more than {WORSE:g} nat at λ = "
        found += "; ".join(f"{written(point.temperature)}: {_both(point)}" for point in lost) + "."
    start = interior(sorted(points))
    if start is not None:
        found += f" The interior, where the gap stays above {GAP:g} nats, begins at about λ = {start:.2g}."
    if held_out:
        best, lost, too = _lost(held_out)
        found += f" On the test points it is {'so, too' if too else 'not so'}: "
        found += f"the discrete graph is best at λ = {written(best.temperature)} with {_both(best)}"
        if lost:
            worst = max(lost, key=lambda point: point.relaxed)
            found += f", and of those where it is worse the relaxed one is worst at {written(worst.temperature)}: "
            found += _both(worst)
        found += "."
    return Finding(name, claim, held, found, len(points) < temperatures)


def _lost(points: Sequence[Point]) -> tuple[Point, list[Point], bool]:
    """Where the discrete graph is best, the temperatures above at which it loses, and if the relaxed one does at none.

    There must be some such temperatures.
    """
    best = min(points, key=lambda point: point.discrete)
    hotter = (point for point in sorted(points) if point.temperature > best.temperature)
    lost = [point for point in hotter if point.discrete > best.discrete + WORSE]
    return best, lost, bool(lost) and all(point.relaxed <= best.relaxed + WORSE for point in lost)


def _estimators(
    lookup: Lookup, notations: Sequence[str], samples: Sequence[int], data: Sequence[str], *, ahead: str, behind: str
) -> Iterator[Comparison]:
    """By how much one estimator is ahead of another, in all the cells that both have."""
    for notation in notations:
        for m in samples:
            for name in data:
                scores = (lookup(notation, m, name, estimator, "test") for estimator in (behind, ahead))
                yield f"`{notation}`, m = {m}, {name}", _minus(*scores)


def _arities(
    lookup: Lookup, notations: Sequence[str], samples: Sequence[int], data: Sequence[str]
) -> Iterator[tuple[str, Score | None, Score | None]]:
    """The scores of binary nodes, and those of nodes with more states."""
    for notation in notations:
        for arity in (4, 8):
            several = str(parse(notation, arity=arity))
            for m in samples:
                for name in data:
                    binary, more = (lookup(each, m, name, "concrete", "test") for each in (notation, several))
                    yield f"`{several}`, m = {m}, {name}", binary, more


def _summary(scores: Sequence[Score]) -> str:
    """How many nats differences are on average, and how many are above zero."""
    values = [score.value for score in scores]
    return f"{signed(fmean(values))} nats on average, above 0 in {sum(value > 0 for value in values)} of {len(values)}"


def _minus(one: Score | None, other: Score | None) -> Score | None:
    """A difference, as of scores that are independent; on the same data its error is smaller."""
    if one is None or other is None:
        return None
    return Score(one.value - other.value, math.hypot(one.error, other.error))


def _both(point: Point) -> str:
    return f"{point.discrete:.2f} (relaxed {point.relaxed:.2f})"


def _difference(score: Score) -> str:
    return f"{signed(score.value)} ± {score.error:.2f}"


def signed(value: float) -> str:
    """A difference with its sign, as it is shown."""
    return f"{value:+z.2f}".replace("-", "−")
