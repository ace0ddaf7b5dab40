"""Claims of the paper, and whether our numbers support them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from statistics import fmean
from typing import NamedTuple

from ..notation import parse
from ..spelling import format_difference, format_number
from .paper import CellResult, Score

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
"""A result within this number of standard errors of zero counts as weak."""


Key = tuple[str, int, str, str, str]
"""The key of an NLL: notation, number m of samples, data set, estimator (as named in the paper's table) and split."""
Comparisons = Iterator[tuple[str, tuple[Key, ...]]]
"""Pairs of a label and two or four keys of NLLs. a − b, or (a − b) − (c − d), is positive if the claim is true."""


class Verdict(NamedTuple):
    """A claim of the paper, and whether our numbers support it."""

    name: str
    claim: str
    held: bool | None
    """Whether the claim holds, or None if too few numbers are known."""
    summary: str
    """A summary of our numbers in words."""
    partial: bool = False
    """Whether some of our numbers are missing."""
    weak: bool = False
    """Whether the result is within the standard error of the numbers."""

    @property
    def verdict(self) -> str:
        """Whether the claim holds, in words."""
        if self.held is None:
            return "unknown yet"
        return ("held" if self.held else "not held") + " weakly" * self.weak + " so far" * self.partial


class TemperaturePoint(NamedTuple):
    """Minus the bounds, in nats, of the relaxed and the discrete graph of a model trained at a temperature."""

    temperature: float
    relaxed: float
    discrete: float

    def __str__(self) -> str:
        return f"λ = {format_number(self.temperature)} with {self.discrete:.2f} (relaxed {self.relaxed:.2f})"

    @property
    def gap(self) -> float:
        """By how much the bound falls when relaxed states are replaced by discrete ones."""
        return self.discrete - self.relaxed


class Claim(NamedTuple):
    """A claim of the paper about its tables, and the comparisons of NLLs that test it."""

    name: str
    text: str
    compare: Callable[[], Comparisons]

    def judge(self, ours: Mapping[Key, Score], paper: Mapping[Key, Score]) -> Verdict:
        """Return the verdict: held if the mean of the comparisons is positive, unknown if fewer than half are known."""
        every = list(self.compare())
        known = [(score, label) for label, keys in every if (score := _compared(ours, keys)) is not None]
        missing = len(every) - len(known)
        if not known:
            return Verdict(self.name, self.text, None, f"None of {len(every)} comparisons can be made yet.")
        scores, labels = [score for score, _ in known], {label for _, label in known}
        same = [score for label, keys in every if label in labels and (score := _compared(paper, keys)) is not None]
        (low, where_low), (high, where_high) = min(known), max(known)
        sure = sum(score.value > SURE * score.error for score in scores)
        summary = f"{_summary(scores)} and by more than {SURE:g} standard errors in {sure}, "
        summary += f"from {_difference(low)} ({where_low}) to {_difference(high)} ({where_high})."
        summary += f" In the paper: {_summary(same)}." if same else ""
        summary += f" {missing} more comparisons cannot be made yet." if missing else ""
        mean, error = fmean(score.value for score in scores), fmean(score.error for score in scores)
        held = mean > 0 if 2 * len(known) >= len(every) else None
        return Verdict(self.name, self.text, held, summary, missing > 0, abs(mean) < SURE * error)


def judge_claims(results: Sequence[CellResult], warm: Sequence[CellResult]) -> list[Verdict]:
    """Return the verdicts on all claims. `results` are of all cells, `warm` of the temperature figure."""
    ours, paper = dict[Key, Score](), dict[Key, Score]()
    for result in results:
        recipe = result.cell.recipe
        for split, value in result.cell.paper.items():
            key = recipe.notation, recipe.samples, recipe.data, result.cell.heading, split
            paper[key] = Score(value, 0.0)
            if (score := result.score(f"{split}_nll")) is not None:
                ours[key] = score
    points, held_out = (temperature_points(warm, split) for split in ("train", "test"))
    return [*(claim.judge(ours, paper) for claim in CLAIMS), integrality(points, held_out, temperatures=len(warm))]


def temperature_points(results: Sequence[CellResult], split: str) -> list[TemperaturePoint]:
    """Return minus the bounds on a split for all temperatures where both are known, relaxed and discrete."""
    return [
        TemperaturePoint(result.recipe.settings["temperature"], relaxed.value, discrete.value)
        for result in results
        if (relaxed := result.score(f"{split}_relaxed")) and (discrete := result.score(f"{split}_nll"))
    ]


def large_gap_start(points: Sequence[TemperaturePoint]) -> float | None:
    """Return the temperature above which the gap stays larger than `GAP`, or None if there is none.

    The temperature is interpolated linearly.

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


def _estimators(
    ahead: str, behind: str, notations: Sequence[str], samples: Sequence[int] = SAMPLES, data: Sequence[str] = DATA
) -> Comparisons:
    """Compare two estimators. `ahead` is the one with the lower NLL if the claim is true."""
    for notation, m, name in product(notations, samples, data):
        label = f"`{notation}`, m = {m}, {name}"
        yield label, ((notation, m, name, behind, "test"), (notation, m, name, ahead, "test"))


def _arities(
    notations: Sequence[str], samples: Sequence[int], data: Sequence[str], *, binary_ahead: bool
) -> Comparisons:
    """Compare binary units with units of 4 and 8 states."""
    for notation, arity, m, name in product(notations, (4, 8), samples, data):
        several = str(parse(notation, arity=arity))
        binary, more = ((model, m, name, "concrete", "test") for model in (notation, several))
        yield f"`{several}`, m = {m}, {name}", (more, binary) if binary_ahead else (binary, more)


def _more_samples() -> Comparisons:
    """Compare a larger number m of samples with a smaller one."""
    models = [*product((*LINEAR, *NONLINEAR, *PREDICTION), ESTIMATORS)]
    models += [(str(parse(notation, arity=arity)), "concrete") for notation in ARITIES for arity in (2, 4, 8)]
    for (notation, estimator), (few, many) in product(models, [*pairwise(SAMPLES)]):
        keys = tuple((notation, m, "mnist", estimator, "test") for m in (few, many))
        yield f"`{notation}` by {estimator}, m = {many} after {few}", keys


def _overfitting() -> Comparisons:
    """Compare the test NLL minus the training NLL at m = 50 and m = 1, on Omniglot."""
    for notation, estimator in product((*LINEAR, *NONLINEAR), ESTIMATORS):
        keys = tuple((notation, m, "omniglot", estimator, split) for m in (50, 1) for split in ("test", "train"))
        yield f"`{notation}` by {estimator}", keys


CLAIMS = (
    Claim(
        "Linear models",
        "In density estimation with linear models, VIMCO reaches a lower test NLL than Concrete.",
        partial(_estimators, "vimco", "concrete", LINEAR),
    ),
    Claim(
        "Non-linear models",
        "In density estimation with non-linear models, Concrete reaches a lower test NLL than VIMCO.",
        partial(_estimators, "concrete", "vimco", NONLINEAR),
    ),
    Claim(
        "Structured prediction",
        "In structured prediction with m = 1 and m = 5, Concrete reaches a lower test NLL than VIMCO.",
        partial(_estimators, "concrete", "vimco", PREDICTION, (1, 5), ("mnist",)),
    ),
    Claim(
        "Structured prediction with many samples",
        "In structured prediction with m = 50, VIMCO reaches a lower test NLL than Concrete.",
        partial(_estimators, "vimco", "concrete", PREDICTION, (50,), ("mnist",)),
    ),
    Claim(
        "Arity in structured prediction",
        "In structured prediction, units with 4 and 8 states reach a lower test NLL than binary ones.",
        partial(_arities, PREDICTION[1:], (1,), ("mnist",), binary_ahead=False),
    ),
    Claim(
        "Arity in density estimation",
        "In density estimation, units with 4 and 8 states do not reach a lower test NLL than binary ones.",
        partial(_arities, ARITIES, SAMPLES, DATA, binary_ahead=True),
    ),
    Claim("More samples", "On MNIST, a larger m reaches a lower test NLL.", _more_samples),
    Claim(
        "Overfitting",
        "On Omniglot a larger m overfits: from m = 1 to m = 50 the test NLL rises relative to the training NLL.",
        _overfitting,
    ),
)


def integrality(
    points: Sequence[TemperaturePoint], held_out: Sequence[TemperaturePoint] = (), *, temperatures: int
) -> Verdict:
    """Judge whether above some temperature the discrete graph gets worse while the relaxed graph does not.

    The verdict is based on the training objective, and also reports the result on the test set. It is unknown if fewer
    than half of the `temperatures` have results.
    """
    name = "Integrality gap"
    claim = "Above some temperature the relaxed training objective is no worse, while that of the discrete graph is."
    if 2 * len(points) < temperatures or not points:
        return Verdict(name, claim, None, f"{len(points)} of {temperatures} temperatures are known yet.")
    best, lost, held = _lost(points)
    summary = f"On the training set the discrete graph is best at {best}."
    if lost:
        summary += f" It is worse by more than {WORSE:g} nat at {'; '.join(map(str, lost))}."
    start = large_gap_start(points)
    if start is not None:
        summary += f" From about λ = {start:.2g} on, the gap stays above {GAP:g} nats."
    if held_out:
        best, lost, too = _lost(held_out)
        summary += f" On the test set the claim {'holds too' if too else 'does not hold'}: "
        summary += f"the discrete graph is best at {best}"
        if lost:
            worst = max(lost, key=lambda point: point.relaxed)
            summary += f"; where it is worse, the relaxed graph is worst at {worst}"
        summary += "."
    return Verdict(name, claim, held, summary, len(points) < temperatures)


def _lost(points: Sequence[TemperaturePoint]) -> tuple[TemperaturePoint, list[TemperaturePoint], bool]:
    """Return where the discrete graph is best, the higher temperatures where it is worse, and whether the claim holds.

    It holds if there are such temperatures, and the relaxed graph is not worse at any of them.
    """
    best = min(points, key=lambda point: point.discrete)
    hotter = (point for point in sorted(points) if point.temperature > best.temperature)
    lost = [point for point in hotter if point.discrete > best.discrete + WORSE]
    return best, lost, bool(lost) and all(point.relaxed <= best.relaxed + WORSE for point in lost)


def _compared(scores: Mapping[Key, Score], keys: Sequence[Key]) -> Score | None:
    """Return the difference of scores, or None if one is missing.

    The error assumes independent scores; for scores on the same data it is too large.
    """
    known = [scores[key] for key in keys if key in scores]
    if len(known) < len(keys):
        return None
    value = sum(sign * score.value for sign, score in zip((1, -1, -1, 1), known, strict=False))
    return Score(value, math.hypot(*(score.error for score in known)))


def _summary(scores: Sequence[Score]) -> str:
    """Return the mean of differences, and how many of them are positive, in words."""
    values = [score.value for score in scores]
    positive = f"above 0 in {sum(value > 0 for value in values)} of {len(values)}"
    return f"{format_difference(fmean(values))} nats on average, {positive}"


def _difference(score: Score) -> str:
    return f"{format_difference(score.value)} ± {score.error:.2f}"
