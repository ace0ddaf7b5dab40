"""How training went, as a figure."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from .figure import DARK, INK, PALE, STRONG

Row = Mapping[str, Any]
"""What is known at a step: `step` and, each of them a number or None, `bound`, `discrete` and `valid`."""


def curve(rows: Sequence[Row]) -> Figure:
    """The bound that is trained and, where it is another, that of the discrete graph, with the gap between them.

    Circles are the negative log-likelihood of the validation set, its sign changed so that up is better. The axis
    reaches no lower than all but the first tenth of the rows do: those lie so far below that they would flatten the
    rest.

    >>> (axes,) = curve([{"step": 1, "bound": -20.0, "discrete": None, "valid": None}]).axes
    >>> [line.get_label() for line in axes.lines]
    ['training bound']
    """
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    if not _heights(rows):
        figure.text(0.5, 0.5, "Nothing has been recorded yet.", ha="center", va="center", color=INK)
        return figure
    axes = figure.add_subplot()
    _draw_bounds(axes, rows)
    if points := _known(rows, "valid"):
        heights = [-nll for nll in points.values()]
        axes.plot(list(points), heights, "o", color=DARK, markerfacecolor="white", label="validation, − NLL", zorder=4)
    axes.set(xlim=(0, 1.02 * max(1, *(row["step"] for row in rows))), ylim=_limits(rows))
    axes.set_xlabel("step", fontsize=9, color=INK)
    axes.set_ylabel("nats per data point", fontsize=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.tick_params(labelsize=8, labelcolor=INK, color=INK)
    axes.grid(axis="y", color=PALE, linewidth=0.4, alpha=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper right", ncols=2, frameon=False, fontsize=8, labelcolor=INK)
    return figure


def _draw_bounds(axes: Axes, rows: Sequence[Row]) -> None:
    """One line or two, and what lies between them."""
    bound, discrete = _known(rows, "bound"), _known(rows, "discrete")
    lines = [("training bound", bound, STRONG)]
    if any(bound.get(step) != height for step, height in discrete.items()):
        lines.append(("discrete bound", discrete, DARK))
        _draw_gap(axes, {step: (bound[step], height) for step, height in discrete.items() if step in bound})
    for label, points, color in lines:
        marker = "." if len(points) == 1 else ""  # a line needs two ends
        axes.plot(list(points), list(points.values()), color=color, linewidth=1.6, marker=marker, label=label, zorder=3)


def _draw_gap(axes: Axes, bounds: Mapping[int, tuple[float, float]]) -> None:
    """What the trained bound has more than the discrete one."""
    if bounds:
        trained, discrete = zip(*bounds.values(), strict=True)
        late = slice(-math.ceil(len(bounds) / 10), None)  # single rows are noisy
        gap = fmean(trained[late]) - fmean(discrete[late])
        label = f"integrality gap, {gap:.3g} in the last tenth".replace("-", "−")
        axes.fill_between(list(bounds), trained, discrete, color=PALE, alpha=0.5, linewidth=0, label=label, zorder=2)


def _known(rows: Sequence[Row], name: str) -> dict[int, float]:
    """What was found at the steps at which it was, without what is not a number."""
    found = ((row["step"], row.get(name)) for row in rows)
    return {step: float(value) for step, value in found if value is not None and math.isfinite(value)}


def _limits(rows: Sequence[Row]) -> tuple[float, float]:
    """From below the later nine tenths of the rows to above all of them."""
    heights = _heights(rows)
    low, high = min(_heights(rows[len(rows) // 10 :]) or heights), max(heights)
    room = 0.05 * (high - low) or 1.0
    return low - room, high + room


def _heights(rows: Sequence[Row]) -> list[float]:
    """Where there is something to see."""
    bounds = [height for name in ("bound", "discrete") for height in _known(rows, name).values()]
    return bounds + [-nll for nll in _known(rows, "valid").values()]
