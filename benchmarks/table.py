"""Timings as a table for the terminal."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.table import Table

from .timing import Spread, Timing

SPACES = ("node", "unit")


def by_space(title: str, timings: Sequence[Timing[Any]]) -> Table:
    """Return a table of the contenders for a node, fastest first, with ratios to this library in the same space."""
    shown = blank(title, labels=("value",), references=("ours", "ours compiled"))
    shown.caption = "ratio: times as long as ours takes, in the same space"
    for space in SPACES:
        for cells in rows([timing for timing in timings if timing.contender.space == space]):
            shown.add_row(space, *cells)
        shown.add_section()
    return shown


def blank(title: str, *, labels: Iterable[str] = (), references: Iterable[str]) -> Table:
    """Return an empty table whose rows begin with their labels."""
    shown = Table(*labels, "contender", title=title)
    for heading in ("first call ms", "median ms", "quartiles ms", *(f"÷ {reference}" for reference in references)):
        shown.add_column(heading, justify="right")
    return shown


def rows(timings: Sequence[Timing[Any]]) -> Iterator[list[str]]:
    """Return the cells of contenders, fastest first, with ratios to each of ours."""
    references = [timing for timing in timings if timing.contender.ours]
    for timing in sorted(timings, key=lambda timing: Spread.of(timing.rounds).median):
        spread = Spread.of(timing.rounds * 1e3)
        yield [
            f"[bold]{timing.contender.name}[/bold]" if timing.contender.ours else timing.contender.name,
            f"{timing.first * 1e3:.1f}",
            f"{spread.median:.3f}",
            f"{spread.lower:.3f} – {spread.upper:.3f}",
            *(ratio(timing.over(reference)) for reference in references),
        ]


def ratio(spread: Spread) -> str:
    """Format a ratio with its quartiles.

    >>> ratio(Spread(2.0, 1.5, 2.25))
    '2.00 (1.50 – 2.25)'
    """
    return f"{spread.median:.2f} ({spread.lower:.2f} – {spread.upper:.2f})"
