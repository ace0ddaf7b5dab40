"""What the paper found, in words, and whether it is so in our numbers."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
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


class Score(NamedTuple):
    """A number of nats and its standard error."""

    value: float
    error: float


Lookup = Callable[[str, int, str, str, str], Score | None]
"""The negative log-likelihood of a notation, m, data, estimator as the paper's table has it, and part, if known."""

Comparison = tuple[str, Score | None]
"""Which cells are compared, and by how many nats they are as the paper says, if they are known."""


class Finding(NamedTuple):
    """Something that the paper says."""

    name: str
    claim: str
    held: bool | None
    """Whether it is so; None if too little is known."""
    found: str
    """What our numbers are."""
    partial: bool = False
    """Whether some of our numbers are still missing."""

    @property
    def verdict(self) -> str:
        """Whether it is so, in words."""
        if self.held is None:
            return "not known yet"
        return ("held" if self.held else "not held") + (" so far" if self.partial else "")


def findings(lookup: Lookup, points: Sequence[Point], *, temperatures: int) -> list[Finding]:
    """All that the paper found, from scores of cells and from those of the temperatures that are known."""
    return [
        linear(lookup),
        nonlinear(lookup),
        prediction(lookup),
        arity_in_prediction(lookup),
        arity_in_density(lookup),
        more_samples(lookup),
        overfitting(lookup),
        integrality(points, temperatures=temperatures),
    ]


def linear(lookup: Lookup) -> Finding:
    """VIMCO is ahead for linear models."""
    return _judged(
        "Linear models",
        "In density estimation by linear models, VIMCO finds a lower test NLL than Concrete.",
        list(_estimators(lookup, LINEAR, SAMPLES, DATA, ahead="vimco", behind="concrete")),
    )


def nonlinear(lookup: Lookup) -> Finding:
    """Concrete is ahead for non-linear models."""
    return _judged(
        "Non-linear models",
        "In density estimation by non-linear models, Concrete finds a lower test NLL than VIMCO.",
        list(_estimators(lookup, NONLINEAR, SAMPLES, DATA, ahead="concrete", behind="vimco")),
    )


def prediction(lookup: Lookup) -> Finding:
    """Concrete is ahead in structured prediction with few samples."""
    return _judged(
        "Structured prediction",
        "In structured prediction with m = 1 and m = 5, Concrete finds a lower test NLL than VIMCO.",
        list(_estimators(lookup, PREDICTION, (1, 5), ("mnist",), ahead="concrete", behind="vimco")),
    )


def arity_in_prediction(lookup: Lookup) -> Finding:
    """More states are better in structured prediction."""
    return _judged(
        "Arity in structured prediction",
        "In structured prediction, nodes of 4 and 8 states find a lower test NLL than binary ones.",
        [
            (label, _minus(binary, several))
            for label, binary, several in _arities(lookup, PREDICTION[1:], (1,), ("mnist",))
        ],
    )


def arity_in_density(lookup: Lookup) -> Finding:
    """More states are not better in density estimation."""
    return _judged(
        "Arity in density estimation",
        "In density estimation, nodes of 4 and 8 states find no lower test NLL than binary ones.",
        [(label, _minus(several, binary)) for label, binary, several in _arities(lookup, ARITIES, SAMPLES, DATA)],
    )


def more_samples(lookup: Lookup) -> Finding:
    """A larger m finds better likelihoods."""

    def comparisons() -> Iterator[Comparison]:
        for notation in (*LINEAR, *NONLINEAR, *PREDICTION):
            for estimator in ESTIMATORS:
                for few, many in pairwise(SAMPLES):
                    scores = (lookup(notation, m, "mnist", estimator, "test") for m in (few, many))
                    yield f"`{notation}` by {estimator}, m = {many} after {few}", _minus(*scores)

    return _judged("More samples", "On MNIST, a larger m finds a lower test NLL.", list(comparisons()))


def overfitting(lookup: Lookup) -> Finding:
    """A larger m overfits where data are few."""

    def gap(notation: str, m: int, estimator: str) -> Score | None:
        return _minus(*(lookup(notation, m, "omniglot", estimator, part) for part in ("test", "train")))

    return _judged(
        "Overfitting",
        "On Omniglot a larger m overfits: from m = 1 to m = 50, the test NLL moves away from the training NLL.",
        [
            (f"`{notation}` by {estimator}", _minus(gap(notation, 50, estimator), gap(notation, 1, estimator)))
            for notation in (*LINEAR, *NONLINEAR)
            for estimator in ESTIMATORS
        ],
    )


def integrality(points: Sequence[Point], *, temperatures: int) -> Finding:
    """Above some temperature the discrete graph loses what the relaxed one does not."""
    name = "Integrality gap"
    claim = "Above some temperature the relaxed objective is no worse, while the NLL of the discrete graph grows."
    if 2 * len(points) < temperatures or not points:
        return Finding(name, claim, None, f"{len(points)} of {temperatures} temperatures are known yet.")
    points = sorted(points)
    best = min(points, key=lambda point: point.discrete)
    lost = [
        point
        for point in points
        if point.temperature > best.temperature
        and point.discrete > best.discrete + WORSE
        and point.relaxed <= best.relaxed + WORSE
    ]
    found = f"The discrete graph is best at λ = {written(best.temperature)} with {_both(best)}."
    if lost:
        first, last = lost[0], lost[-1]
        found += f" It is worse by more than {WORSE:g} nat from λ = {written(first.temperature)} on with {_both(first)}"
        found += f", to λ = {written(last.temperature)} with {_both(last)}." if last is not first else "."
    start = interior(points)
    if start is not None:
        found += f" The interior, where the gap stays above {GAP:g} nats, begins at about λ = {start:.2g}."
    return Finding(name, claim, bool(lost), found, len(points) < temperatures)


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


def _judged(name: str, claim: str, comparisons: Sequence[Comparison]) -> Finding:
    """A claim that holds if comparisons are as it says on average; of fewer than half, nothing is said."""
    known = [(score, label) for label, score in comparisons if score is not None]
    every, missing = len(comparisons), len(comparisons) - len(known)
    if not known:
        return Finding(name, claim, None, f"None of {every} comparisons can be made yet.")
    mean = math.fsum(score.value for score, _ in known) / len(known)
    agree = sum(score.value > 0 for score, _ in known)
    (low, where_low), (high, where_high) = min(known), max(known)
    found = f"By {_signed(mean)} nats on average, where plus is as the paper says: so are {agree} of {len(known)}"
    found += f" comparisons, from {_difference(low)} ({where_low}) to {_difference(high)} ({where_high})."
    found += f" {missing} more cannot be made yet." if missing else ""
    return Finding(name, claim, mean > 0 if 2 * len(known) >= every else None, found, missing > 0)


def _minus(one: Score | None, other: Score | None) -> Score | None:
    """A difference, as of scores that are independent; on the same data its error is smaller."""
    if one is None or other is None:
        return None
    return Score(one.value - other.value, math.hypot(one.error, other.error))


def _both(point: Point) -> str:
    return f"{point.discrete:.2f} (relaxed {point.relaxed:.2f})"


def _difference(score: Score) -> str:
    return f"{_signed(score.value)} ± {score.error:.2f}"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")
