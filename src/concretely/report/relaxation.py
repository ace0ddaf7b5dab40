"""Figures of Concrete densities: on the simplex of three categories, and for a binary variable."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Circle, Polygon

from ..evaluation.illustration import BinaryDensity, SimplexDensity, binary_density, simplex_density
from ..spelling import format_number
from .style import DARK, INK, PALE, SHADES, STRONG

VERTICES = ((0.0, 0.0), (1.0, 0.0), (0.5, math.sqrt(3) / 2))
"""The coordinates of the vertices of the simplex in the figure."""


def simplex(alpha: Sequence[float], temperatures: Sequence[float]) -> Figure:
    """Draw the Concrete density of a variable with three categories on a triangle, one panel for each temperature.

    The categories have probabilities proportional to `alpha`. Brightness is proportional to the density, with a
    separate scale for each panel. At temperature zero there is no density: each vertex has a white circle whose area is
    the probability of its category. See [maddison2017concrete], figure 2.
    """
    return _page(temperatures, lambda axes, value: _draw_simplex(axes, simplex_density(alpha, value)), height=2.5)


def binary(alpha: float, temperatures: Sequence[float]) -> Figure:
    """Draw the density of noisy log-odds, the sigmoid that maps them, and the density of its output.

    `alpha` is the odds of one. Values that round to one are dark and those that round to zero are pale; their shares
    are the same at every temperature. Each density has its own scale. See [maddison2017concrete], figure 3.
    """
    return _page(temperatures, lambda axes, value: _draw_binary(axes, binary_density(alpha, value)), height=2.9)


def _page(temperatures: Sequence[float], draw: Callable[[Axes, float], None], *, height: float) -> Figure:
    """Draw panels in rows of four, each with its temperature below."""
    if not temperatures:
        raise ValueError("temperatures must hold at least one number, got none")
    columns = min(len(temperatures), 4)
    rows = math.ceil(len(temperatures) / columns)
    # space between rows, so that a caption does not look like a title of the panel below
    figure = Figure(figsize=(2.4 * columns, height * rows), layout=ConstrainedLayoutEngine(hspace=0.08))
    for place, temperature in enumerate(temperatures, start=1):
        axes = figure.add_subplot(rows, columns, place, frame_on=False, xticks=[], yticks=[])
        axes.set_xlabel(f"λ = {format_number(temperature)}", fontsize=11)
        draw(axes, temperature)
    return figure


def _draw_simplex(axes: Axes, example: SimplexDensity) -> None:
    """Draw the density on a triangle, which is dark where the density is zero."""
    radii = [0.0, 0.0, 0.0]
    if example.density is None:
        radii = [0.17 * math.sqrt(mass) for mass in example.masses]
        axes.add_patch(Polygon(VERTICES, facecolor=DARK))
        for vertex, radius in zip(VERTICES, radii, strict=True):
            axes.add_patch(Circle(vertex, radius, facecolor="white", edgecolor=DARK, linewidth=0.8))
    else:
        x, y = (example.tiles.numpy() @ np.array(VERTICES)).reshape(-1, 2).T
        triangles, density = np.arange(len(x)).reshape(-1, 3), example.density.numpy()
        shades = axes.tripcolor(x, y, triangles=triangles, facecolors=density, cmap=SHADES, vmin=0, vmax=example.top)
        shades.set_rasterized(True)  # as vectors the tiles would take megabytes
        axes.add_patch(Polygon(VERTICES, fill=False, edgecolor=DARK, linewidth=0.8))
    for (x, y), name in zip(VERTICES, ("(1, 0, 0)", "(0, 1, 0)", "(0, 0, 1)"), strict=True):
        lift = math.copysign(max(radii) + 0.07, y - 0.1)
        axes.text(x, y + lift, name, ha="center", va="center", fontsize=7, color=INK)
    axes.set(xlim=(-0.2, 1.2), ylim=(-0.27, 1.12), aspect="equal")


def _draw_binary(axes: Axes, example: BinaryDensity) -> None:
    """Draw the sigmoid, the density of its input below it, and the density of its output to its right."""
    box = axes.inset_axes((0.1, 0.48, 0.62, 0.52))
    below = axes.inset_axes((0.1, 0.18, 0.62, 0.26), sharex=box)
    side_plot = axes.inset_axes((0.76, 0.48, 0.24, 0.52), sharey=box)

    noisy, law = example.noisy.numpy(), example.noisy_density.numpy()
    for side, color in ((noisy < 0, PALE), (noisy > 0, STRONG)):
        below.fill_between(noisy[side], law[side], color=color, linewidth=0)
    box.plot(noisy, example.squashed.numpy(), color=DARK, linewidth=1.6)

    if example.density is None:
        side_plot.barh([0, 1], [1 - example.mass, example.mass], height=0.06, color=[PALE, STRONG])
        side_plot.set_xlim(0, 1)
    else:
        value, density = example.value.numpy(), example.density.numpy()
        for side, color in ((value <= 0.5, PALE), (value >= 0.5, STRONG)):
            side_plot.fill_betweenx(value[side], density[side], color=color, linewidth=0)
        side_plot.set_xlim(0, 1.05 * example.top)

    for plot in (box, below):
        plot.axvline(0, color=INK, linewidth=0.6, linestyle=":")
    for plot in (box, side_plot):
        plot.axhline(0.5, color=INK, linewidth=0.6, linestyle=":")
    box.set(xlim=(noisy[0], noisy[-1]), ylim=(-0.05, 1.05), yticks=[0, 0.5, 1], yticklabels=["0", "1/2", "1"])
    box.tick_params(labelsize=7, bottom=False, labelbottom=False)
    below.set(ylim=(0, None), xticks=[0], yticks=[])
    axes.xaxis.label.set_x(0.41)  # below the curve
    below.set_xlabel("log α + L", fontsize=8, labelpad=1)
    below.tick_params(labelsize=7)
    below.spines[["left", "top", "right"]].set_visible(False)
    side_plot.set_xticks([])
    side_plot.tick_params(left=False, labelleft=False)
    side_plot.spines[["bottom", "top", "right"]].set_visible(False)
