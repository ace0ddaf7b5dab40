"""A figure of a study of gradient estimators."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from ..evaluation.finding import Finding, GradientStudy
from .style import DARK, INK, PALE


def draw_study(study: GradientStudy) -> Figure:
    """Draw a row of dots for every estimator: bias, noise of one estimate, and time until the average has noise 1.

    Bias and noise are relative to the reference gradient, so that estimators of different objectives can be compared.
    Further to the left is better. Whiskers are two standard errors long.
    """
    findings = study.findings.values()
    drawn = Figure(figsize=(10, 1.3 + 0.3 * len(findings)), layout=ConstrainedLayoutEngine(wspace=0.06))
    panels = drawn.subplots(1, 3, sharey=True)
    titles = ("bias / gradient", "noise / gradient", "seconds × (noise / gradient)²")
    columns = zip(*map(_dots, findings), strict=True)
    for axes, title, dots in zip(panels, titles, columns, strict=True):
        _draw(axes, dots)
        axes.set_xlabel(title, fontsize=9, color=INK)
    names = [f"{name}, m = {finding.samples}" for name, finding in study.findings.items()]
    panels[0].set_yticks(range(len(names)), names, parse_math=False)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    looks = (("o", DARK, "no bias found"), ("<", DARK, "bias below this, if any"), ("o", "white", "biased"))
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=DARK, markerfacecolor=fill, markersize=6, label=label)
        for marker, fill, label in looks
    ]
    drawn.legend(handles=handles, loc="outside upper right", ncols=3, frameon=False, fontsize=8, labelcolor=INK)
    return drawn


class _Dot(NamedTuple):
    """A dot, its whiskers and its marker."""

    value: float
    low: float
    high: float
    marker: str
    fill: str


def _dots(finding: Finding) -> tuple[_Dot, _Dot, _Dot]:
    """Return the dots of the bias (or its upper limit, if not significant), of the noise, and of the time.

    It is the time until the noise of the average is as small as the gradient. Whiskers are two standard errors long.
    """
    fill, relative = "white" if finding.is_biased else DARK, finding.relative
    bias, noise = (
        _Dot(relative(value), relative(value - 2 * error), relative(value + 2 * error), "o", fill)
        for value, error in (finding.squared_bias, finding.variance)
    )
    if not finding.is_biased:
        bias = _Dot(finding.bias_limit, finding.bias_limit, finding.bias_limit, "<", fill)
    value, low, high = (finding.seconds * number**2 for number in noise[:3])
    return bias, noise, noise._replace(value=value, low=low, high=high)


def _draw(axes: Axes, dots: Sequence[_Dot]) -> None:
    """Draw one dot on its own line for each estimator, along a logarithmic axis of whole decades."""
    axes.set_xscale("log")
    shown = [dot.value for dot in dots if 0 < dot.value < math.inf] or [1.0]
    low, high = math.floor(math.log10(min(shown)) - 0.1), math.ceil(math.log10(max(shown)) + 0.1)
    axes.set_xlim(10.0**low, 10.0**high)
    for row, dot in enumerate(dots):
        axes.axhline(row, color=PALE, linewidth=0.6, zorder=0)
        if 0 < dot.value < math.inf:
            axes.plot([max(dot.low, 10.0**low), min(dot.high, 10.0**high)], [row, row], color=DARK, linewidth=1.4)
            axes.plot(dot.value, row, dot.marker, color=DARK, markerfacecolor=dot.fill, markersize=6)
        else:
            place, side = (1.0, "right") if dot.value else (0.0, "left")
            text = "?" if math.isnan(dot.value) else "∞" if dot.value else "0"
            across, back = axes.get_yaxis_transform(), {"facecolor": "white", "edgecolor": "none", "pad": 1}
            axes.text(place, row, text, transform=across, va="center", ha=side, color=DARK, bbox=back)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=8, labelcolor=INK, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "top", "right"]].set_visible(False)
