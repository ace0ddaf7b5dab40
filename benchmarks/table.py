"""Timings as a table for people."""

from collections.abc import Sequence

from rich.table import Table

from .contender.base import Space
from .task import Task
from .timing import Spread, Timing

SPACES: tuple[Space, ...] = ("node", "unit")


def table(task: Task, timings: Sequence[Timing]) -> Table:
    """The contenders of a task, slowest last; ratios are against this library in the same space."""
    shown = Table(
        title=f"{task.name}, {task.kind} {task.shape}", caption="ratio: times as long as ours takes, in the same space"
    )
    shown.add_column("value")
    shown.add_column("contender")
    for heading in ("first call ms", "median ms", "quartiles ms", "÷ ours", "÷ ours compiled"):
        shown.add_column(heading, justify="right")
    for space in SPACES:
        rows = [timing for timing in timings if timing.contender.space == space]
        references = [row for row in rows if row.contender.ours]
        for row in sorted(rows, key=lambda row: Spread.of(row.rounds).median):
            spread = Spread.of(row.rounds * 1e3)
            shown.add_row(
                space,
                f"[bold]{row.contender.name}[/bold]" if row.contender.ours else row.contender.name,
                f"{row.first * 1e3:.1f}",
                f"{spread.median:.3f}",
                f"{spread.lower:.3f} – {spread.upper:.3f}",
                *(ratio(row.over(reference)) for reference in references),
            )
        shown.add_section()
    return shown


def ratio(spread: Spread) -> str:
    """A ratio with its quartiles.

    >>> ratio(Spread(2.0, 1.5, 2.25))
    '2.00 (1.50 – 2.25)'
    """
    return f"{spread.median:.2f} ({spread.lower:.2f} – {spread.upper:.2f})"
