"""Timings as figures in the style of this library's reports: contenders as dots, cost against size, and curves."""

from collections.abc import Mapping, Sequence
from io import StringIO
from itertools import cycle
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from concretely.report.style import DARK, INK, PALE, STRONG

WIDTH = 4.6
"""The width in inches, at which a figure is readable on a narrow screen."""

LINES = [(color, style) for style in ("-", "--", ":") for color in (INK, DARK, "#cc5500", STRONG)]
"""The colours and styles of curves. One colour is not blue, since there are too many lines for shades of blue."""


def dots(rows: Sequence[Mapping[str, Any]], *, of: str, unit: str, limit: float | None = None) -> Figure:
    """Draw a number of every contender with its quartiles, sorted; ours are dark, and a limit is a line.

    >>> spread = {"median": 2.0, "quartiles": [1.5, 2.5]}
    >>> len(dots([{"name": "this", "ours": True, "us": spread}], of="us", unit="µs").axes[0].texts)
    2
    """
    ranked = sorted((row for row in rows if of in row), key=lambda row: row[of]["median"])
    figure = Figure(figsize=(WIDTH, 0.75 + 0.46 * len(ranked)), layout="constrained")
    axes = figure.add_subplot()
    left = min(row[of]["median"] for row in ranked) / 2
    for place, row in enumerate(ranked):
        median, (low, high) = row[of]["median"], row[of]["quartiles"]
        color = DARK if row["ours"] else STRONG
        axes.plot([left, median], [place, place], color=PALE, linewidth=1, zorder=1)
        axes.plot([low, high], [place, place], color=color, linewidth=3, zorder=2)
        axes.plot(median, place, "o", color=color, markersize=7 if row["ours"] else 5, zorder=3)
        weight = "bold" if row["ours"] else "normal"
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # so that no line runs through it
        name = {"fontsize": 8, "fontweight": weight, "color": INK, "va": "bottom", "bbox": behind}
        axes.text(0.0, place - 0.18, row["name"], transform=axes.get_yaxis_transform(), **name)
        style = {"fontsize": 8, "fontweight": weight, "color": INK, "va": "center"}
        axes.annotate(number(median), (max(median, high), place), (6, 0), textcoords="offset points", **style)
    numbers = [row[of]["median"] for row in ranked] + ([] if limit is None else [limit])
    axes.set_xscale("log")
    axes.set(xlim=(min(left, *numbers), max(numbers) * 2.2), ylim=(len(ranked) - 0.6, -0.65), yticks=[])
    if limit is not None:
        axes.axvline(limit, color=DARK, linewidth=1, linestyle="--", zorder=0)
        place = axes.get_xaxis_transform()
        axes.text(limit, 1.0, f"asked {limit:g}", transform=place, fontsize=8, color=DARK, ha="center", va="bottom")
    _tidy(axes, unit)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(numbers) < 30 * left else (1,)))
    axes.spines["left"].set_visible(False)
    return figure


def cost(result: Mapping[str, Any]) -> Figure:
    """Draw the cost of a step against one size. A dotted line is proportional to the size and ends in the last point.

    >>> spread = {"median": 2.0, "quartiles": [1.5, 2.5]}
    >>> points = [{"value": value, "us": spread, "us_per_model": spread} for value in (1, 10)]
    >>> len(cost({"against": "m", "points": points}).axes)
    1
    """
    points = result["points"]
    sizes = [point["value"] for point in points]
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axes = figure.add_subplot()
    for key, color, label in (("us", DARK, "a step"), ("us_per_model", STRONG, "a step of one model")):
        medians = [point[key]["median"] for point in points]
        low, high = zip(*(point[key]["quartiles"] for point in points), strict=True)
        axes.fill_between(sizes, low, high, color=color, alpha=0.2, linewidth=0)
        axes.plot(sizes, medians, "o-", color=color, linewidth=1.6, markersize=4, label=label, zorder=3)
    last = points[-1]["us"]["median"]
    axes.plot(sizes, [last * size / sizes[-1] for size in sizes], ":", color=INK, linewidth=1, label="in proportion")
    axes.set_xscale("log")
    axes.set_yscale("log")
    floor = min(point["us_per_model"]["quartiles"][0] for point in points)
    axes.set_ylim(bottom=floor / 1.5)
    axes.set_ylabel("µs", fontsize=9, color=INK)
    _tidy(axes, result["against"])
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.grid(axis="y", color=PALE, linewidth=0.4, alpha=0.6)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, place: number(value)))
    figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=8, labelcolor=INK)
    return figure


def curves(results: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the validation NLL of recipes against seconds of training. Each curve ends in a dot.

    >>> curve = [{"seconds": 1.0, "nll": 110.0}, {"seconds": 2.0, "nll": 95.0}]
    >>> len(curves([{"name": "paper", "valid": {"curve": curve}}]).axes[0].lines)
    2
    """
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for result, (color, style) in zip(results, cycle(LINES)):
        seconds, nll = zip(*((look["seconds"], look["nll"]) for look in result["valid"]["curve"]), strict=True)
        axes.plot(seconds, nll, style, color=color, linewidth=1.4, label=result["name"])
        axes.plot(seconds[-1], nll[-1], "o", color=color, markersize=4)
    axes.set_xscale("log")
    axes.set_ylabel("validation NLL, nats", fontsize=9, color=INK)
    _tidy(axes, "seconds of training")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.grid(axis="y", color=PALE, linewidth=0.4, alpha=0.6)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8, labelcolor=INK)
    return figure


def svg(figure: Figure) -> str:
    """Return a figure as an HTML element with reproducible bytes."""
    file = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "concretely"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]


def _tidy(axes: Axes, label: str) -> None:
    """Style the axes as in the reports, with plain numbers."""
    axes.set_xlabel(label, fontsize=9, color=INK)
    axes.tick_params(labelsize=8, labelcolor=INK, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, place: number(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def number(value: float) -> str:
    """Format a number to three digits.

    >>> number(1234.5), number(0.01234)
    ('1,234', '0.0123')
    """
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"
