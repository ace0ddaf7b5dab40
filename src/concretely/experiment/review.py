"""A review compares our records of all experiments with the paper: how close each cell is, and which claims hold.

A cell is one model of a table or figure of the paper.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from ..file import parse_toml, read_bytes
from .claim import TemperaturePoint, Verdict, judge_claims, temperature_points
from .history import CellHistory, read_history
from .paper import SPLITS, Cell, CellResult, Experiment, experiment_names, load_experiment

REASONS = "reasons.toml"
"""An optional file beside the folder of records. It maps titles of cells to why they are worse than in the paper."""
MOST = 2**20
"""The maximum number of bytes of that file."""
NEAR = 1.0
"""The largest difference in nats by which a test NLL may be worse than the paper's to count as near."""


class Standing(NamedTuple):
    """Counts of cells, by how near their test NLL is to the paper's."""

    cells: int
    """The number of cells with a test NLL both in our records and in the paper."""
    near: int
    """The number of these that are near the paper's NLL or better."""
    better: int
    """The number of these that are better by more than `NEAR`."""
    repeated: int
    """The number of cells that were trained more than once."""
    near_at_first: int
    """The number of cells that were near with their first record."""


class GroupSummary(NamedTuple):
    """A summary of the cells of an experiment with the same estimator."""

    experiment: str
    estimator: str
    near: int
    cells: int
    test: float
    """The median of our test NLL minus the paper's."""
    train: float
    """The median of our training NLL minus the paper's."""


class Review(NamedTuple):
    """A comparison of our records of all experiments with the paper."""

    experiments: list[tuple[Experiment, list[CellResult]]]
    standing: Standing
    summary: list[GroupSummary]
    deviations: list[tuple[CellResult, str]]
    """Cells that are worse than in the paper, and why."""
    verdicts: list[Verdict]
    paper_budget: list[CellResult]
    """All records of the cells trained more than once, at least once with as many steps as in the paper.

    The selected record of a cell comes last.
    """
    budgets: list[CellResult]
    """All records of the other cells that were trained more than once, in the same order."""
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
    for experiment in map(load_experiment, experiment_names()):
        known = read_history(experiment, records)
        best = {title: history.best for title, history in known.items()}
        experiments.append((experiment, [CellResult(cell, best.get(cell.title)) for cell in experiment.cells]))
        trained += [(cell, known[cell.title]) for cell in experiment.cells if cell.title in known]
    every = [result for _, results in experiments for result in results]
    warm = [result for kind, results in experiments if kind.figure == "temperature" for result in results]
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
    now = _differences(CellResult(cell, history.best) for cell, history in trained)
    first = _differences(CellResult(cell, history.history[0]) for cell, history in trained)
    return Standing(
        cells=len(now),
        near=sum(difference <= NEAR for difference in now),
        better=sum(difference < -NEAR for difference in now),
        repeated=sum(len(history.history) > 1 for cell, history in trained if "test" in cell.paper),
        near_at_first=sum(difference <= NEAR for difference in first),
    )


def _differences(results: Iterable[CellResult], split: str = "test") -> list[float]:
    """Return our NLL minus the paper's for all cells where both are known."""
    return [difference for result in results if (difference := result.difference(split)) is not None]


def _summary(experiments: Iterable[tuple[Experiment, Sequence[CellResult]]]) -> Iterable[GroupSummary]:
    """Yield the summary of every experiment and estimator."""
    for experiment, results in experiments:
        for estimator in dict.fromkeys(result.cell.heading for result in results):
            own = [result for result in results if result.cell.heading == estimator]
            test, train = (_differences(own, split) for split in SPLITS)
            if test:
                near = sum(difference <= NEAR for difference in test)
                yield GroupSummary(experiment.name, estimator, near, len(test), median(test), median(train))


def _budgets(trained: Iterable[tuple[Cell, CellHistory]], *, paper: bool) -> list[CellResult]:
    """Return all records of cells that were trained more than once, and with `paper` at least once with its budget.

    Without `paper`, return the records of the other cells. A run has the paper's budget if it took at least as many
    steps, with the same batch size.
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
        reasons = parse_toml(read_bytes(path, most=MOST))
    except ValueError as error:
        raise ValueError(f"reasons must be TOML, got {path}: {error}") from None
    titles = {result.cell.title for result in results}
    for title, reason in reasons.items():
        if title not in titles or not isinstance(reason, str) or "\n" in reason:
            raise ValueError(f"reasons must be sentences by the titles of cells, got {title!r} in {path}")
    return reasons
