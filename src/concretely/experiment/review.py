"""A review of the records of all experiments: how close each cell is to the paper, and which claims hold."""

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from .claim import TemperaturePoint, Verdict, judge_claims, temperature_points
from .history import CellHistory, read_history
from .paper import SPLITS, Cell, CellResult, Experiment, experiment_names, load_experiment

REASONS = "reasons.toml"
"""Optional file beside the folder of the records: by the title of a cell, why it is worse than in the paper."""
NEAR = 1.0
"""A test NLL counts as near the paper's if it is worse by at most so many nats."""


class Standing(NamedTuple):
    """How many cells are near the paper's."""

    cells: int
    """Cells with a test NLL of ours and of the paper."""
    near: int
    """Those that are near the paper's or better."""
    better: int
    """Those that are better by more than `NEAR`."""
    repeated: int
    """Those that were trained more than once."""
    near_at_first: int
    """Those that were near with their first record."""


class GroupSummary(NamedTuple):
    """The cells of an experiment with the same estimator."""

    experiment: str
    estimator: str
    near: int
    cells: int
    test: float
    """The median difference in test NLL."""
    train: float


class Review(NamedTuple):
    """What the records say about all experiments."""

    experiments: list[tuple[Experiment, list[CellResult]]]
    standing: Standing
    summary: list[GroupSummary]
    deviations: list[tuple[CellResult, str]]
    """Cells that are worse than in the paper, and why."""
    verdicts: list[Verdict]
    paper_budget: list[CellResult]
    """Cells that were trained once with as many steps as in the paper: all records, the selected one last."""
    budgets: list[CellResult]
    """Other cells that were trained more than once, in the same order."""
    points: list[TemperaturePoint]

    @property
    def known(self) -> int:
        """The number of cells with a record."""
        return sum(result.record is not None for _, results in self.experiments for result in results)

    @property
    def total(self) -> int:
        """The number of all cells."""
        return sum(len(results) for _, results in self.experiments)


def review_records(records: Path) -> Review:
    """Review the records in a folder."""
    experiments, trained = list[tuple[Experiment, list[CellResult]]](), list[tuple[Cell, CellHistory]]()
    for each in map(load_experiment, experiment_names()):
        known = read_history(each, records)
        best = {title: found.best for title, found in known.items()}
        experiments.append((each, [CellResult(cell, best.get(cell.title)) for cell in each.cells]))
        trained += [(cell, known[cell.title]) for cell in each.cells if cell.title in known]
    every = [result for _, results in experiments for result in results]
    warm = [result for each, results in experiments if each.figure == "temperature" for result in results]
    reasons = _reasons(records, every)
    worse = [result for result in every if (result.difference("test") or 0.0) > NEAR]
    return Review(
        experiments,
        _standing(trained),
        list(_summary(experiments)),
        [(result, reasons.get(result.cell.title, "unknown yet")) for result in worse],
        judge_claims(every, warm),
        _budgets(trained, paper=True),
        _budgets(trained, paper=False),
        temperature_points(warm, "train"),
    )


def _standing(trained: Sequence[tuple[Cell, CellHistory]]) -> Standing:
    now = _differences(CellResult(cell, found.best) for cell, found in trained)
    first = _differences(CellResult(cell, found.history[0]) for cell, found in trained)
    return Standing(
        cells=len(now),
        near=sum(difference <= NEAR for difference in now),
        better=sum(difference < -NEAR for difference in now),
        repeated=sum(len(found.history) > 1 for cell, found in trained if "test" in cell.paper),
        near_at_first=sum(difference <= NEAR for difference in first),
    )


def _differences(results: Iterable[CellResult], split: str = "test") -> list[float]:
    """Return our NLL minus the paper's for all cells where both are known."""
    return [difference for result in results if (difference := result.difference(split)) is not None]


def _summary(experiments: Iterable[tuple[Experiment, Sequence[CellResult]]]) -> Iterable[GroupSummary]:
    """Yield the summary of every experiment and estimator."""
    for each, results in experiments:
        for estimator in dict.fromkeys(result.cell.heading for result in results):
            own = [result for result in results if result.cell.heading == estimator]
            test, train = (_differences(own, split) for split in SPLITS)
            if test:
                near = sum(difference <= NEAR for difference in test)
                yield GroupSummary(each.name, estimator, near, len(test), median(test), median(train))


def _budgets(trained: Iterable[tuple[Cell, CellHistory]], *, paper: bool) -> list[CellResult]:
    """Return all records of cells that were trained more than once: those with the paper's budget, or all others.

    A run has the paper's budget if it took at least as many steps, with the same batch.
    """
    results = list[CellResult]()
    for cell, (best, history) in trained:
        own = [CellResult(cell, record) for record in (*(other for other in history if other != best), best)]
        steps, batch = cell.recipe.steps, cell.recipe.batch
        if len(history) > 1 and paper == any(r.recipe.steps >= steps and r.recipe.batch == batch for r in own):
            results += own
    return results


def _reasons(records: Path, results: Sequence[CellResult]) -> dict[str, str]:
    """Read the reasons for deviations, by the titles of cells."""
    path = records.parent / REASONS
    if not path.exists():
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"reasons must be TOML, got {path}: {error}") from None
    titles = {result.cell.title for result in results}
    for title, reason in found.items():
        if title not in titles or not isinstance(reason, str) or "\n" in reason:
            raise ValueError(f"reasons must be sentences by the titles of cells, got {title!r} in {path}")
    return found
