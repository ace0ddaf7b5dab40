"""The paper's tables and figures, a TOML file each: what to train, and what the paper found.

A file has a `title`, its `place` in the paper, the samples by which models are scored, the part of the recipes that is
common to all under `recipe`, and what an estimator changes of it under `estimator`. A `row` is a model: its `name`, any
keys of a recipe and, in `nll`, the lines of the paper's table: m and its numbers. Those are read by the head of the
table in `columns`, which says of every number which `part` of the data it is of, and any keys of a recipe again. A row
without lines has a key with a list in their place.
"""

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..spelling import did_you_mean
from ..training.recipe import Recipe, resolve

FOLDER = Path(__file__).parent

ORDER = ("table-1", "logistic-normal", "structured-prediction", "temperature", "table-3")
"""What comes after what in the paper."""

RUNS = Path("out/reproduce")
"""Where runs are unless one says otherwise."""
PARTS = ("test", "train")
"""The parts of the data whose likelihood the paper tells."""

LOOKS = 50
"""How often the validation set is looked at at least, where a run is to stop early, however few its steps."""


@dataclass(frozen=True)
class Cell:
    """One model that the paper trained."""

    row: str
    """The name of its row."""
    heading: str
    """The estimator as the head of the table has it."""
    recipe: Recipe
    paper: Mapping[str, float]
    """The negative log-likelihoods that the paper found, by part of the data."""

    @property
    def title(self) -> str:
        """A name for the cell, by which all of an experiment are told apart."""
        return title_of(self.recipe)


def title_of(recipe: Recipe) -> str:
    """The title of the cell that a recipe makes."""
    temperature = recipe.settings.get("temperature")
    cooled = f"-t{temperature:g}" if isinstance(temperature, float) else ""
    return f"{recipe.title}{cooled}"


@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the paper.

    >>> table = experiment("table-1")
    >>> table.place, len(table.cells), table.cells[0].paper
    ('table 1', 48, {'test': 107.3, 'train': 107.5})
    """

    name: str
    title: str
    place: str
    """Where it is in the paper."""
    score_samples: int
    """The number of samples by which models are scored."""
    figure: str | None
    """The figure that is drawn of it, if it is one."""
    cells: tuple[Cell, ...]


def names() -> list[str]:
    """What there is, in the order of the paper."""
    found = {path.stem for path in FOLDER.glob("*.toml")}
    return [*(name for name in ORDER if name in found), *sorted(found.difference(ORDER))]


def experiment(name: str, only: Callable[[Cell], bool] = lambda _: True, **changes: Any) -> Experiment:
    """Read a table or a figure, or only some of its cells, with changes to their recipes.

    >>> experiment("tabel-3")
    Traceback (most recent call last):
    ValueError: unknown experiment 'tabel-3'; did you mean 'table-3'?
    """
    if name not in names():
        raise ValueError(f"unknown experiment {name!r}{did_you_mean(name, names())}")
    content = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    cells = tuple(cell for row in content["row"] for cell in _cells(row, content, only, changes))
    return Experiment(name, content["title"], content["place"], content["score_samples"], content.get("figure"), cells)


def _cells(
    row: Mapping[str, Any], content: Mapping[str, Any], only: Callable[[Cell], bool], changes: Mapping[str, Any]
) -> Iterator[Cell]:
    """The cells of a row, in the order of its lines and then of the head."""
    for line, paper in _lines(row, content):
        wished = {**content.get("recipe", {}), **line}
        heading = wished.get("estimator", "concrete")
        if wished.get("samples") == 1:
            wished["estimator"] = content.get("single", {}).get(heading, heading)
        own = content.get("estimator", {}).get(wished.get("estimator"), {})
        cell = Cell(row["name"], heading, _looking({**wished, **own}), paper)
        if only(cell):
            yield replace(cell, recipe=_looking({**wished, **own, **changes}))


def _looking(wished: dict[str, Any]) -> Recipe:
    """A recipe that looks at the validation set often enough, if it does."""
    recipe = resolve(**wished)
    often = max(1, recipe.steps // LOOKS)
    return replace(recipe, validate=often) if recipe.validate > often else recipe


def _lines(row: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """What every model of a row has of its own, and what the paper found of it."""
    wished = {name: value for name, value in row.items() if name not in ("name", "nll")}
    for samples, *numbers in row.get("nll", []):
        for column, paper in _columns(content["columns"], numbers):
            yield {**wished, "samples": samples, **column}, paper
    for name, values in wished.items():
        if isinstance(values, list):
            for value in values:
                yield {**wished, name: value}, {}


def _columns(head: Mapping[str, list[str]], numbers: list[float]) -> Iterator[tuple[dict[str, str], dict[str, float]]]:
    """The numbers of a line by what the head says of them, those of one model together."""
    found: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for *values, number in zip(*head.values(), numbers, strict=True):
        column = dict(zip(head, values, strict=True))
        part = column.pop("part")
        if not math.isnan(number):  # the paper has none
            found.setdefault(tuple(column.items()), {})[part] = number
    for key, paper in found.items():
        yield dict(key), paper
