"""Ours beside the paper's: a table of the cells of an experiment."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rich import box
from rich.table import Table

from ..experiment.paper import SPLITS, Cell
from ..training.recipe import Recipe, resolve
from .figure import written
from .finding import Score, signed

MISSING = "–"

WORDS = ("model", "data", "estimator", "optimizer", "experiment")
"""The columns that hold no numbers."""

NAMES = {"samples": "m", "temperature": "λ"}
"""The paper's names of keys of a recipe."""

OBJECTIVES = {
    "test_nll": "test discrete",
    "test_relaxed": "test relaxed",
    "train_nll": "train discrete",
    "train_relaxed": "train relaxed",
}
"""What is shown of a record where the paper has no numbers: what the discrete graph comes to, and the relaxed one."""


class Line(NamedTuple):
    """A cell, and what has become of it here."""

    cell: Cell
    record: Mapping[str, Any] | None = None
    """What its run has left, if it has been scored."""
    state: str = MISSING
    """What to show in place of numbers if it has not."""

    def score(self, name: str) -> Score | None:
        """A metric of the record, if it is known; one that is not finite is null there."""
        metric = (self.record or {}).get("metrics", {}).get(name) or {}
        value, error = metric.get("value"), metric.get("standard_error")
        return None if value is None or error is None else Score(value, error)

    def difference(self, part: str) -> float | None:
        """By how many nats ours is above the paper's."""
        ours, paper = self.score(f"{part}_nll"), self.cell.paper.get(part)
        return None if ours is None or paper is None else ours.value - paper

    def ours(self, name: str) -> str:
        """A metric of the record as it is shown."""
        score = self.score(name)
        return self.state if score is None else f"{score.value:.2f} ± {score.error:.2f}"

    def compared(self, part: str) -> tuple[str, str, str]:
        """Ours, the paper's, and the difference between the two."""
        paper, difference = self.cell.paper.get(part), self.difference(part)
        return (
            self.ours(f"{part}_nll"),
            MISSING if paper is None else f"{paper:g}" if round(paper, 1) != paper else f"{paper:.1f}",
            MISSING if difference is None else signed(difference),
        )

    @property
    def recipe(self) -> Recipe:
        """How the cell was made, or is to be."""
        return self.cell.recipe if self.record is None else resolve(**self.record["recipe"])

    @property
    def cost(self) -> tuple[str, str]:
        """The steps of training, after which of them the model was taken, if not at the end, and the seconds."""
        if self.record is None:
            return MISSING, MISSING
        taken, steps = self.record["step"], self.recipe.steps
        of = "" if taken == steps else f" of {steps:,}"
        return f"{taken:,}{of}", f"{self.record['seconds']:,.1f}"


class Grid(NamedTuple):
    """A table before it is drawn."""

    head: list[str]
    rows: list[list[str]]

    @property
    def numeric(self) -> list[bool]:
        """Whether columns hold numbers, which stand below each other by their last digits."""
        return [name not in WORDS for name in self.head]


def grid(lines: Sequence[Line]) -> Grid:
    """A row for every cell: our numbers and their standard errors, the paper's, the difference, and the cost.

    What is the same for all cells has no column of its own. Where the paper tells no numbers, our objectives are shown.

    >>> from ..experiment.paper import load_experiment
    >>> grid([Line(cell) for cell in load_experiment("table-1").cells]).head
    ['model', 'data', 'estimator', 'm', 'test', 'paper', 'diff', 'train', 'paper', 'diff', 'steps', 'seconds']
    """
    keys = [key for key in ("data", "estimator", "samples", "temperature") if _differs(key, lines)]
    parts = [part for part in SPLITS if any(part in line.cell.paper for line in lines)]
    others = [] if parts else [name for name in OBJECTIVES if any(line.score(name) for line in lines)]
    return Grid(
        [
            "model",
            *(NAMES.get(key, key) for key in keys),
            *(header for part in parts for header in (part, "paper", "diff")),
            *(OBJECTIVES[name] for name in others),
            "steps",
            "seconds",
        ],
        [
            [
                line.cell.recipe.notation,
                *(_setting(line.cell.recipe.settings.get(key)) for key in keys),
                *(entry for part in parts for entry in line.compared(part)),
                *(line.ours(name) for name in others),
                *line.cost,
            ]
            for line in lines
        ],
    )


def table(lines: Sequence[Line], *, title: str, caption: str) -> Table:
    """The same for a terminal."""
    shown = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.title_justify = shown.caption_justify = "left"
    found = grid(lines)
    for name, numeric in zip(found.head, found.numeric, strict=True):
        justify: Literal["left", "right"] = "right" if numeric else "left"
        shown.add_column(name, justify=justify, no_wrap=name == "model", overflow="fold" if numeric else "ellipsis")
    models = [row[0] for row in found.rows]
    for row, following in zip(found.rows, [*models[1:], None], strict=True):
        shown.add_row(*row, end_section=row[0] != following)
    return shown


def _differs(key: str, lines: Sequence[Line]) -> bool:
    """Whether cells are told apart by a key; the paper's temperatures follow from the arity and the estimator."""
    known = [line.cell.recipe for line in lines]
    alike = {(recipe.notation, recipe.estimator) for recipe in known}
    found = {(recipe.notation, recipe.estimator, recipe.settings.get(key)) for recipe in known}
    if key == "temperature":
        return len(found) > len(alike)
    return len({recipe.settings.get(key) for recipe in known}) > 1


def _setting(value: Any) -> str:
    return written(value) if isinstance(value, float) else MISSING if value is None else str(value)
