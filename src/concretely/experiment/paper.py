"""The tables and figures of the paper as experiments: the models to train, and the paper's numbers beside ours.

Each experiment is a TOML file in `table/`. It has a `title`, its `place` in the paper, the number of samples for
scoring, the keys that all recipes share under `recipe`, and overrides for an estimator under `estimator`. A `row` is a
model: its `name`, any keys of a recipe and, in `nll`, the lines of the paper's table: m, the number of samples, and the
NLLs. `columns` describes these NLLs: the `split` of the data, and any keys of a recipe. A row without `nll` instead has
a key with a list of values, one for each run.
"""

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..spelling import did_you_mean
from ..training.recipe import Recipe, resolve

FOLDER = Path(__file__).parent / "table"

ORDER = ("table-1", "logistic-normal", "structured-prediction", "temperature", "table-3")
"""The names of experiments in the order of the paper."""

RUNS = Path("out/reproduce")
"""The default folder of runs."""
SPLITS = ("test", "train")
"""The splits for which the paper reports likelihoods."""

VALIDATIONS = 50
"""The minimum number of validations in a run that validates, even if it has few steps."""


@dataclass(frozen=True)
class Cell:
    """One model that the paper trained."""

    row: str
    """The name of its row."""
    heading: str
    """The estimator that the paper's table names."""
    recipe: Recipe
    paper: Mapping[str, float]
    """The negative log-likelihoods in the paper, by split."""

    @property
    def title(self) -> str:
        """A name that is unique within an experiment."""
        return cell_title(self.recipe)


def cell_title(recipe: Recipe) -> str:
    """Return the title of the cell that a recipe belongs to."""
    temperature = recipe.settings.get("temperature")
    suffix = f"-t{temperature:g}" if isinstance(temperature, float) else ""
    return f"{recipe.title}{suffix}"


class Score(NamedTuple):
    """A number of nats and its standard error."""

    value: float
    error: float


class CellResult(NamedTuple):
    """A cell of an experiment, and the record of our run of it."""

    cell: Cell
    record: Mapping[str, Any] | None = None
    """The record, or None if the cell has not been trained and scored."""
    diverged: bool = False

    def score(self, name: str) -> Score | None:
        """Return a metric of the record, or None if it is missing or not finite."""
        metric = (self.record or {}).get("metrics", {}).get(name) or {}
        value, error = metric.get("value"), metric.get("standard_error")
        return None if value is None or error is None else Score(value, error)

    def difference(self, split: str) -> float | None:
        """Return our NLL minus the paper's, or None if one is unknown."""
        ours, paper = self.score(f"{split}_nll"), self.cell.paper.get(split)
        return None if ours is None or paper is None else ours.value - paper

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run, or of the cell if there is no run."""
        return self.cell.recipe if self.record is None else resolve(**self.record["recipe"])


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the paper.

    >>> table = load_experiment("table-1")
    >>> table.place, len(table.cells), table.cells[0].paper
    ('table 1', 48, {'test': 107.3, 'train': 107.5})
    """

    name: str
    title: str
    place: str
    """Where the experiment is in the paper."""
    score_samples: int
    """The number of samples for scoring a model."""
    figure: str | None
    """The kind of figure to draw from the results, or None for a table."""
    cells: tuple[Cell, ...]


def experiment_names() -> list[str]:
    """Return the names of all experiments, in the order of the paper."""
    names = {path.stem for path in FOLDER.glob("*.toml")}
    return [*(name for name in ORDER if name in names), *sorted(names.difference(ORDER))]


def load_experiment(name: str, only: Callable[[Cell], bool] = lambda _: True, **changes: Any) -> Experiment:
    """Read an experiment. `only` selects some of its cells, and `changes` replace keys of their recipes.

    >>> load_experiment("tabel-3")
    Traceback (most recent call last):
    ValueError: unknown experiment 'tabel-3'; did you mean 'table-3'?
    """
    if name not in experiment_names():
        raise ValueError(f"unknown experiment {name!r}{did_you_mean(name, experiment_names())}")
    content = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    cells = tuple(cell for row in content["row"] for cell in _cells(row, content, only, changes))
    return Experiment(name, content["title"], content["place"], content["score_samples"], content.get("figure"), cells)


def _cells(
    row: Mapping[str, Any], content: Mapping[str, Any], only: Callable[[Cell], bool], changes: Mapping[str, Any]
) -> Iterator[Cell]:
    """Yield the cells of a row, line by line and column by column."""
    for line, paper in _lines(row, content):
        given = {**content.get("recipe", {}), **line}
        heading = given.get("estimator", "concrete")
        if given.get("samples") == 1:
            given["estimator"] = content.get("single", {}).get(heading, heading)
        own = content.get("estimator", {}).get(given.get("estimator"), {})
        cell = Cell(row["name"], heading, _recipe({**given, **own}), paper)
        if only(cell):
            yield replace(cell, recipe=_recipe({**given, **own, **changes}))


def _recipe(given: dict[str, Any]) -> Recipe:
    """Resolve a recipe. If it validates, shorten the interval so that there are at least `VALIDATIONS` validations."""
    recipe = resolve(**given)
    interval = max(1, recipe.steps // VALIDATIONS)
    return replace(recipe, validate=interval) if recipe.validate > interval else recipe


def _lines(row: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """Yield the recipe keys of every model of a row, and the paper's NLLs of that model by split."""
    given = {name: value for name, value in row.items() if name not in ("name", "nll")}
    for samples, *numbers in row.get("nll", []):
        head: Mapping[str, list[str]] = content["columns"]
        lines: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
        for *values, number in zip(*head.values(), numbers, strict=True):
            column = dict(zip(head, values, strict=True))
            split = column.pop("split")
            if not math.isnan(number):  # not in the paper
                lines.setdefault(tuple(column.items()), {})[split] = number
        for key, paper in lines.items():
            yield {**given, "samples": samples, **dict(key)}, paper
    for name, values in given.items():
        for value in values if isinstance(values, list) else ():
            yield {**given, name: value}, {}
