"""The result of a cell: our scores and the difference from the paper's."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..training.recipe import Recipe, resolve
from .paper import Cell


class Score(NamedTuple):
    """A number of nats and its standard error."""

    value: float
    error: float


class CellResult(NamedTuple):
    """A cell of an experiment and the record of its run."""

    cell: Cell
    record: Mapping[str, Any] | None = None
    """None if the cell has not been trained and scored."""
    diverged: bool = False

    def score(self, name: str) -> Score | None:
        """Return a metric of the record; None if it is missing or not finite."""
        metric = (self.record or {}).get("metrics", {}).get(name) or {}
        value, error = metric.get("value"), metric.get("standard_error")
        return None if value is None or error is None else Score(value, error)

    def difference(self, split: str) -> float | None:
        """Return our NLL minus the paper's, if both are known."""
        ours, paper = self.score(f"{split}_nll"), self.cell.paper.get(split)
        return None if ours is None or paper is None else ours.value - paper

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run, or of the cell if there is no run."""
        return self.cell.recipe if self.record is None else resolve(**self.record["recipe"])
