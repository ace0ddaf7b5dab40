"""Claims of the paper, and whether our numbers support them."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from ..notation import parse
from ..spelling import format_difference, format_number
from .result import CellResult, Score

LINEAR = ("200H-784V", "200H-200H-784V")
NONLINEAR = ("200H~784V", "200H~200H~784V")
ARITIES = ("240H~784V", "240H~240H~784V")
PREDICTION = ("392V-240H-240H-392V", "392V-240H-240H-240H-392V")
DATA, SAMPLES, ESTIMATORS = ("mnist", "omniglot"), (1, 5, 50), ("concrete", "vimco")

GAP = 2.0
"""The gap in nats between the discrete and the relaxed graph above which it counts as large."""
WORSE = 1.0
"""The difference in nats above which the discrete graph counts as worse."""
SURE = 2.0
"""The number of standard errors below which a result is weak."""


Lookup = Callable[[str, int, str, str, str], Score | None]
"""Returns the NLL of a notation, m, data set, estimator (of the table's head) and split, if it is known."""

Comparison = tuple[str, Score | None]
"""Which cells are compared, and by how many nats the claim is true, if the cells are known."""


class Verdict(NamedTuple):
    """A claim of the paper, and whether our numbers support it."""

    name: str
    claim: str
    held: bool | None
    """Whether it holds; None if too few numbers are known."""
    found: str
    """Our numbers, in words."""
    partial: bool = False
    """Whether some of our numbers are missing."""
    weak: bool = False
    """Whether the result is within the error of the numbers."""

    @property
    def verdict(self) -> str:
        """Whether it holds, in words."""
        if self.held is None:
            return "unknown yet"
        return ("held" if self.held else "not held") + " weakly" * self.weak + " so far" * self.partial


class TemperaturePoint(NamedTuple):
    """The two objectives of a model that was trained at a temperature; lower is better."""

    temperature: float
    relaxed: float
    discrete: float

    @property
    def gap(self) -> float:
        """The loss from rounding the states."""
        return self.discrete - self.relaxed


class Claim(NamedTuple):
    """A claim of the paper about its cells, and the comparisons that test it."""

    name: str
    text: str
    compare: Callable[[Lookup], Iterator[Comparison]]

    def judge(self, ours: Lookup, paper: Lookup) -> Verdict:
        """Return the verdict: held if the mean of the comparisons is positive; unknown if fewer than half are known."""
        every = list(self.compare(ours))
        known = [(score, label) for label, score in every if score is not None]
        missing = len(every) - len(known)
        if not known:
            return Verdict(self.name, self.text, None, f"None of {len(every)} comparisons can be made yet.")
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
        return Verdict(self.name, self.text, held, found, missing > 0, abs(mean) < SURE * error)


def judge_claims(results: Sequence[CellResult], warm: Sequence[CellResult]) -> list[Verdict]:
    """Return the verdicts on all claims, from the results of all cells and those of the temperature figure."""
    ours, paper = _lookups(results)
    points, held_out = (temperature_points(warm, split) for split in ("train", "test"))
    return [*(claim.judge(ours, paper) for claim in CLAIMS), integrality(points, held_out, temperatures=len(warm))]


def temperature_points(results: Sequence[CellResult], split: str) -> list[TemperaturePoint]:
    """Return the objectives on a split for all temperatures where both are known."""
    found = []
    for result in results:
        relaxed, discrete = (
            ((result.record or {}).get("metrics", {}).get(f"{split}_{name}") or {}).get("value")
            for name in ("relaxed", "nll")
        )
        if result.record is not None and relaxed is not None and discrete is not None:
            found.append(TemperaturePoint(result.record["recipe"]["temperature"], relaxed, discrete))
    return found


def large_gap_start(points: Sequence[TemperaturePoint]) -> float | None:
    """Return the temperature from which on the gap stays large, interpolated linearly; None if there is none.

    >>> points = [TemperaturePoint(1.0, 50.0, 51.0), TemperaturePoint(2.0, 50.0, 53.0)]
    >>> large_gap_start(points)
    1.5
    """
    points = sorted(points)
    small = [index for index, point in enumerate(points) if point.gap <= GAP]
    if not small:
        return points[0].temperature
    if small[-1] + 1 == len(points):
        return None
    below, above = points[small[-1]], points[small[-1] + 1]
    share = (GAP - below.gap) / (above.gap - below.gap)
    return below.temperature + share * (above.temperature - below.temperature)


def linear(lookup: Lookup) -> Iterator[Comparison]:
    """Compare VIMCO with Concrete on linear models."""
    return _estimators(lookup, LINEAR, SAMPLES, DATA, ahead="vimco", behind="concrete")


def nonlinear(lookup: Lookup) -> Iterator[Comparison]:
    """Compare Concrete with VIMCO on non-linear models."""
    return _estimators(lookup, NONLINEAR, SAMPLES, DATA, ahead="concrete", behind="vimco")


def prediction(lookup: Lookup) -> Iterator[Comparison]:
    """Compare Concrete with VIMCO in structured prediction with few samples."""
    return _estimators(lookup, PREDICTION, (1, 5), ("mnist",), ahead="concrete", behind="vimco")


def prediction_by_many(lookup: Lookup) -> Iterator[Comparison]:
    """Compare VIMCO with Concrete in structured prediction with many samples."""
    return _estimators(lookup, PREDICTION, (50,), ("mnist",), ahead="vimco", behind="concrete")


def arity_in_prediction(lookup: Lookup) -> Iterator[Comparison]:
    """Compare n-ary with binary units in structured prediction."""
    for label, binary, several in _arities(lookup, PREDICTION[1:], (1,), ("mnist",)):
        yield label, _minus(binary, several)


def arity_in_density(lookup: Lookup) -> Iterator[Comparison]:
    """Compare binary with n-ary units in density estimation."""
    for label, binary, several in _arities(lookup, ARITIES, SAMPLES, DATA):
        yield label, _minus(several, binary)


def more_samples(lookup: Lookup) -> Iterator[Comparison]:
    """Compare a larger m with a smaller one."""
    models = [(notation, estimator) for notation in (*LINEAR, *NONLINEAR, *PREDICTION) for estimator in ESTIMATORS]
    models += [(str(parse(notation, arity=arity)), "concrete") for notation in ARITIES for arity in (2, 4, 8)]
    for notation, estimator in models:
        for few, many in pairwise(SAMPLES):
            scores = (lookup(notation, m, "mnist", estimator, "test") for m in (few, many))
            yield f"`{notation}` by {estimator}, m = {many} after {few}", _minus(*scores)


def overfitting(lookup: Lookup) -> Iterator[Comparison]:
    """Compare the gap between test and training NLL for a large and a small m, where data are few."""

    def gap(notation: str, m: int, estimator: str) -> Score | None:
        return _minus(*(lookup(notation, m, "omniglot", estimator, part) for part in ("test", "train")))

    for notation in (*LINEAR, *NONLINEAR):
        for estimator in ESTIMATORS:
            yield f"`{notation}` by {estimator}", _minus(gap(notation, 50, estimator), gap(notation, 1, estimator))


CLAIMS = (
    Claim(
        "Linear models",
        "In density estimation with linear models, VIMCO reaches a lower test NLL than Concrete.",
        linear,
    ),
    Claim(
        "Non-linear models",
        "In density estimation with non-linear models, Concrete reaches a lower test NLL than VIMCO.",
        nonlinear,
    ),
    Claim(
        "Structured prediction",
        "In structured prediction with m = 1 and m = 5, Concrete reaches a lower test NLL than VIMCO.",
        prediction,
    ),
    Claim(
        "Structured prediction with many samples",
        "In structured prediction with m = 50, VIMCO reaches a lower test NLL than Concrete.",
        prediction_by_many,
    ),
    Claim(
        "Arity in structured prediction",
        "In structured prediction, units with 4 and 8 states reach a lower test NLL than binary ones.",
        arity_in_prediction,
    ),
    Claim(
        "Arity in density estimation",
        "In density estimation, units with 4 and 8 states do not reach a lower test NLL than binary ones.",
        arity_in_density,
    ),
    Claim("More samples", "On MNIST, a larger m reaches a lower test NLL.", more_samples),
    Claim(
        "Overfitting",
        "On Omniglot a larger m overfits: from m = 1 to m = 50 the test NLL rises relative to the training NLL.",
        overfitting,
    ),
)


def integrality(
    points: Sequence[TemperaturePoint], held_out: Sequence[TemperaturePoint] = (), *, temperatures: int
) -> Verdict:
    """Judge whether above some temperature the discrete graph gets worse while the relaxed one does not.

    The verdict is on the training objective; the result on the test set is reported with it.
    """
    name = "Integrality gap"
    claim = "Above some temperature the relaxed training objective is no worse, while that of the discrete graph is."
    if 2 * len(points) < temperatures or not points:
        return Verdict(name, claim, None, f"{len(points)} of {temperatures} temperatures are known yet.")
    best, lost, held = _lost(points)
    found = f"On the training set the discrete graph is best at {_both(best)}."
    if lost:
        found += f" It is worse by more than {WORSE:g} nat at {'; '.join(map(_both, lost))}."
    start = large_gap_start(points)
    if start is not None:
        found += f" From about λ = {start:.2g} on, the gap stays above {GAP:g} nats."
    if held_out:
        best, lost, too = _lost(held_out)
        found += f" On the test set the claim {'holds too' if too else 'does not hold'}: "
        found += f"the discrete graph is best at {_both(best)}"
        if lost:
            worst = max(lost, key=lambda point: point.relaxed)
            found += f"; where it is worse, the relaxed graph is worst at {_both(worst)}"
        found += "."
    return Verdict(name, claim, held, found, len(points) < temperatures)


def _lost(points: Sequence[TemperaturePoint]) -> tuple[TemperaturePoint, list[TemperaturePoint], bool]:
    """Return where the discrete graph is best, the higher temperatures where it is worse, and whether the claim holds.

    It holds if there are such temperatures, and the relaxed graph is not worse at any of them.
    """
    best = min(points, key=lambda point: point.discrete)
    hotter = (point for point in sorted(points) if point.temperature > best.temperature)
    lost = [point for point in hotter if point.discrete > best.discrete + WORSE]
    return best, lost, bool(lost) and all(point.relaxed <= best.relaxed + WORSE for point in lost)


def _estimators(
    lookup: Lookup, notations: Sequence[str], samples: Sequence[int], data: Sequence[str], *, ahead: str, behind: str
) -> Iterator[Comparison]:
    """Yield the difference between two estimators for all cells."""
    for notation in notations:
        for m in samples:
            for name in data:
                scores = (lookup(notation, m, name, estimator, "test") for estimator in (behind, ahead))
                yield f"`{notation}`, m = {m}, {name}", _minus(*scores)


def _arities(
    lookup: Lookup, notations: Sequence[str], samples: Sequence[int], data: Sequence[str]
) -> Iterator[tuple[str, Score | None, Score | None]]:
    """Yield the scores of binary units and of units with more states."""
    for notation in notations:
        for arity in (4, 8):
            several = str(parse(notation, arity=arity))
            for m in samples:
                for name in data:
                    binary, more = (lookup(each, m, name, "concrete", "test") for each in (notation, several))
                    yield f"`{several}`, m = {m}, {name}", binary, more


def _summary(scores: Sequence[Score]) -> str:
    """Return the mean of differences, and how many are above zero, in words."""
    values = [score.value for score in scores]
    positive = f"above 0 in {sum(value > 0 for value in values)} of {len(values)}"
    return f"{format_difference(fmean(values))} nats on average, {positive}"


def _minus(one: Score | None, other: Score | None) -> Score | None:
    """Subtract independent scores; on the same data the error is smaller than this."""
    if one is None or other is None:
        return None
    return Score(one.value - other.value, math.hypot(one.error, other.error))


def _both(point: TemperaturePoint) -> str:
    return f"λ = {format_number(point.temperature)} with {point.discrete:.2f} (relaxed {point.relaxed:.2f})"


def _difference(score: Score) -> str:
    return f"{format_difference(score.value)} ± {score.error:.2f}"


def _lookups(results: Sequence[CellResult]) -> tuple[Lookup, Lookup]:
    """Return functions that look up our scores and the paper's."""
    ours, paper = dict[tuple[str, int, str, str, str], Score](), dict[tuple[str, int, str, str, str], Score]()
    for result in results:
        recipe = result.cell.recipe
        for split, value in result.cell.paper.items():
            key = recipe.notation, recipe.samples, recipe.data, result.cell.heading, split
            paper[key] = Score(value, 0.0)
            score = result.score(f"{split}_nll")
            if score is not None:
                ours[key] = score
    return lambda *key: ours.get(key), lambda *key: paper.get(key)
