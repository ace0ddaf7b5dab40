"""Curves: the bound against training steps, and the objectives against the temperature."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from ..experiment.claim import GAP, TemperaturePoint, large_gap_start
from ..spelling import format_number
from ..training.train_state import Row as TrainingRow
from ..training.train_state import renamed
from .style import DARK, INK, PALE, STRONG

LARGEST = 1e30
"""Numbers of nats above this are not drawn."""

Row = Mapping[str, Any]
"""The metrics at a step: `step`, and `objective`, `discrete` and `valid`, each of which is a number or None."""


class Words(NamedTuple):
    """The labels of the curves of an objective."""

    training: str
    discrete: str
    validation: str
    unit: str


WORDS = {
    "bound": Words("training bound", "discrete bound", "validation, − NLL", "nats per data point"),
    "objective": Words("training objective", "discrete objective", "validation, − score", "objective per data point"),
    "cost": Words("training, − cost", "discrete graph, − cost", "validation, − cost", "− cost per data point"),
}
"""The labels by objective: the bound of a model, the cost of a program, or one of which more is not known."""


def draw_curve(history: Sequence[Row | TrainingRow], *, objective: str = "bound") -> Figure:
    """Draw the training bound and, if it differs, the bound of the discrete graph, and shade the gap between them.

    Circles show minus the NLL of the validation set, so that higher is better. If the `objective` is the "cost" of a
    program, all curves show minus the cost. The first tenth of the rows does not extend the vertical axis, since early
    values lie so far below the others that they would flatten the rest.
    """
    words = WORDS[objective]
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    rows = [renamed(row if isinstance(row, Mapping) else vars(row)) for row in history]
    heights = _heights(rows)
    if not heights:
        figure.text(0.5, 0.5, "Nothing has been recorded yet.", ha="center", va="center", color=INK)
        return figure
    axes = figure.add_subplot()
    _draw_bounds(axes, rows, words)
    if points := _known(rows, "valid"):
        nlls = [-nll for nll in points.values()]
        axes.plot(list(points), nlls, "o", color=DARK, markerfacecolor="white", label=words.validation, zorder=4)
    low, high = min(_heights(rows[len(rows) // 10 :]) or heights), max(heights)
    room = 0.05 * (high - low) or 1.0
    axes.set(xlim=(0, 1.02 * max(1, *(row["step"] for row in rows))), ylim=(low - room, high + room))
    _label(axes, "step", words.unit)
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(axis="y", color=PALE, linewidth=0.4, alpha=0.6)
    figure.legend(loc="outside upper right", ncols=2, frameon=False, fontsize=8, labelcolor=INK)
    return figure


def temperature_curve(points: Sequence[TemperaturePoint], *, note: str = "") -> Figure:
    """Draw minus the relaxed and discrete bounds against the temperature, and shade where the gap is large.

    In the shaded range the units of the relaxed graph take values between the states. See [maddison2017concrete],
    figure 4.
    """
    if not points:
        raise ValueError("points must hold at least one temperature, got none")
    points = sorted(points)
    temperatures = [point.temperature for point in points]
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for name, color, marker, face in (("discrete", DARK, "o", DARK), ("relaxed", STRONG, "s", "white")):
        heights, label = [getattr(point, name) for point in points], f"{name} graph"
        axes.plot(temperatures, heights, color=color, marker=marker, markerfacecolor=face, label=label)
    axes.set_xscale("log")
    axes.set_xlim(temperatures[0] / 1.1, temperatures[-1] * 1.1)
    if (start := large_gap_start(points)) is not None:
        label = f"gap above {GAP:g} nats"
        axes.axvspan(start, temperatures[-1] * 1.1, color=PALE, alpha=0.4, linewidth=0, label=label)
    axes.set_xticks(temperatures, [format_number(temperature) for temperature in temperatures])
    axes.minorticks_off()
    _label(axes, "temperature λ", "training objective in nats, lower is better")
    axes.set_title(note, fontsize=8, color=INK, loc="left", parse_math=False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8, labelcolor=INK)
    return figure


def _label(axes: Axes, x: str, y: str) -> None:
    """Label the x and y axes, and hide the top and right borders."""
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)
    axes.tick_params(labelsize=8, labelcolor=INK, color=INK)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_bounds(axes: Axes, rows: Sequence[Row], words: Words) -> None:
    """Draw the training bound and, if it differs, the discrete bound, and shade the gap between them."""
    objective, discrete = _known(rows, "objective"), _known(rows, "discrete")
    lines = [(words.training, objective, STRONG)]
    if any(objective.get(step) != height for step, height in discrete.items()):
        lines.append((words.discrete, discrete, DARK))
        if steps := [step for step in discrete if step in objective]:
            trained, rounded = ([heights[step] for step in steps] for heights in (objective, discrete))
            late = slice(-math.ceil(len(steps) / 10), None)  # single rows are noisy
            gap = fmean(trained[late]) - fmean(rounded[late])
            label = f"integrality gap, {gap:.3g} in the last tenth".replace("-", "−")
            axes.fill_between(steps, trained, rounded, color=PALE, alpha=0.5, linewidth=0, label=label, zorder=2)
    for label, points, color in lines:
        marker = "." if len(points) == 1 else ""  # a line needs two ends
        axes.plot(list(points), list(points.values()), color=color, linewidth=1.6, marker=marker, label=label, zorder=3)


def _known(rows: Sequence[Row], name: str) -> dict[int, float]:
    """Return the values of a metric by step, except those that are not finite or too large to be drawn."""
    values = ((row["step"], row.get(name)) for row in rows)
    return {step: float(value) for step, value in values if value is not None and abs(value) < LARGEST}


def _heights(rows: Sequence[Row]) -> list[float]:
    """Return the heights of all points that are drawn."""
    objectives = [height for name in ("objective", "discrete") for height in _known(rows, name).values()]
    return objectives + [-nll for nll in _known(rows, "valid").values()]
