"""Ours beside the paper's: a table of the cells of an experiment."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.table import Table

from ..recipe import PARTS, Cell
from .figure import written
from .record import measured

MISSING = "–"

NAMES = {"samples": "m", "temperature": "λ"}
"""The paper's names of keys of a recipe."""

OBJECTIVES = ("test_nll", "test_relaxed", "train_nll", "train_relaxed")
"""What is shown of a record where the paper has no numbers: what the discrete graph comes to, and the relaxed one."""


class Line(NamedTuple):
    """A cell, and what has become of it here."""

    cell: Cell
    record: Mapping[str, Any] | None = None
    """What its run has left, if it has been scored."""
    state: str = MISSING
    """What to show in place of numbers if it has not."""


def table(lines: Sequence[Line], *, title: str, caption: str) -> Table:
    """A line for every cell: our numbers and their standard errors, the paper's, the difference, and the cost.

    What is the same for all cells has no column of its own. Where the paper tells no numbers, our objectives are shown.

    >>> from ..recipe import experiment
    >>> shown = table([Line(cell) for cell in experiment("table-1").cells], title="", caption="")
    >>> [column.header for column in shown.columns]
    ['model', 'data', 'estimator', 'm', 'test', 'paper', 'diff', 'train', 'paper', 'diff', 'steps', 'seconds']
    """
    shown = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.title_justify = shown.caption_justify = "left"
    keys = [key for key in ("data", "estimator", "samples", "temperature") if _differs(key, lines)]
    parts = [part for part in PARTS if any(part in line.cell.paper for line in lines)]
    measured = {name for line in lines for name in (line.record or {}).get("metrics", {})}
    others = [] if parts else [name for name in OBJECTIVES if name in measured]
    shown.add_column("model", no_wrap=True)
    for key in keys:
        shown.add_column(NAMES.get(key, key), justify="left" if key in ("data", "estimator") else "right")
    for part in parts:
        for header in (part, "paper", "diff"):
            shown.add_column(header, justify="right", overflow="fold")
    for header in (*(name.replace("_", " ") for name in others), "steps", "seconds"):
        shown.add_column(header, justify="right", overflow="fold")
    for index, line in enumerate(lines):
        recipe = line.cell.recipe
        settings = [_setting(recipe.settings.get(key)) for key in keys]
        numbers = [entry for part in parts for entry in _compared(line, part)]
        ends = index + 1 == len(lines) or lines[index + 1].cell.recipe.notation != recipe.notation
        shown.add_row(
            recipe.notation,
            *settings,
            *numbers,
            *(_measured(line, name) for name in others),
            *_cost(line),
            end_section=ends,
        )
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


def _compared(line: Line, part: str) -> tuple[str, str, str]:
    """Ours, the paper's, and the difference between the two."""
    paper, ours = line.cell.paper.get(part), _metric(line, f"{part}_nll")
    difference = None if paper is None or ours is None else ours["value"] - paper
    return (
        _measured(line, f"{part}_nll"),
        MISSING if paper is None else f"{paper:g}" if round(paper, 1) != paper else f"{paper:.1f}",
        MISSING if difference is None else f"{difference:+.2f}".replace("-", "−"),
    )


def _measured(line: Line, name: str) -> str:
    metric = _metric(line, name)
    if metric is None:
        return line.state
    return measured(metric["value"], metric["standard_error"])


def _metric(line: Line, name: str) -> Mapping[str, Any] | None:
    """A number that is known; one that is not finite is null in a record."""
    metric: Mapping[str, Any] | None = (line.record or {}).get("metrics", {}).get(name)
    return None if metric is None or metric["value"] is None else metric


def _cost(line: Line) -> tuple[str, str]:
    if line.record is None:
        return MISSING, MISSING
    return f"{line.record['step']:,}", f"{line.record['seconds']:,.1f}"
