"""Figures of Concrete densities: on the simplex of three categories, and for a binary variable."""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Circle, Polygon
from torch import Tensor

from ..distribution import BinaryConcrete, Concrete, Logistic
from ..functional.arithmetic import Temperature
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
    if len(alpha) != 3:
        raise ValueError(f"alpha must be three positive numbers, got {len(alpha)}")
    logits = torch.tensor(alpha, dtype=torch.float64).log()
    return _page(
        temperatures, lambda axes, value: _draw_simplex(axes, Concrete(logits=logits, temperature=value)), height=2.5
    )


def binary(alpha: float, temperatures: Sequence[float]) -> Figure:
    """Draw the density of noisy log-odds, the sigmoid that maps them, and the density of its output.

    `alpha` is the odds of one. Values that round to one are dark and those that round to zero are pale; their shares
    are the same at every temperature. Each density has its own scale. See [maddison2017concrete], figure 3.
    """
    logits = torch.tensor(alpha, dtype=torch.float64).log()
    return _page(
        temperatures,
        lambda axes, value: _draw_binary(axes, BinaryConcrete(logits=logits, temperature=value)),
        height=2.9,
    )


def tiles(side: int) -> Float[Tensor, "tiles 3 3"]:
    """Return the corners of equal triangles that tile the simplex, `side` of them along a side.

    >>> tiles(200).shape
    torch.Size([40000, 3, 3])
    """
    corner = torch.eye(3, dtype=torch.float64)
    upright = _lattice(side - 1)[:, None] + corner
    inverted = _lattice(side - 2)[:, None] + 1 - corner
    return torch.cat([upright, inverted]) / side


def ceiling(density: Float[Tensor, "points"], temperature: Temperature, *, n: int) -> float:
    """Return the density at the top of the scale: the maximum or, if the density is unbounded, the 95th percentile."""
    bounded = temperature >= n - 1  # at lower temperatures the density is unbounded at the vertices
    height = float(density.max() if bounded else density.quantile(0.95))
    return height or 1.0  # all mass may lie between the points


def _lattice(total: int) -> Float[Tensor, "points 3"]:
    """Return all triples of nonnegative integers with a given sum."""
    points = [(i, j, total - i - j) for i in range(total + 1) for j in range(total + 1 - i)]
    return torch.tensor(points, dtype=torch.float64).view(-1, 3)


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


def _draw_simplex(axes: Axes, relaxed: Concrete) -> None:
    """Draw the density on a triangle, which is dark where the density is zero."""
    radii = [0.0, 0.0, 0.0]
    if relaxed.temperature == 0:
        radii = [0.17 * math.sqrt(mass) for mass in relaxed.discretize().probs.tolist()]
        axes.add_patch(Polygon(VERTICES, facecolor=DARK))
        for vertex, radius in zip(VERTICES, radii, strict=True):
            axes.add_patch(Circle(vertex, radius, facecolor="white", edgecolor=DARK, linewidth=0.8))
    else:
        tile = tiles(200)  # two dots wide
        density = relaxed.log_prob(tile.mean(1)).exp()
        x, y = (tile @ torch.tensor(VERTICES, dtype=torch.float64)).view(-1, 2).T.numpy()
        triangles, top = torch.arange(len(x)).view(-1, 3).numpy(), ceiling(density, relaxed.temperature, n=3)
        shades = axes.tripcolor(x, y, triangles=triangles, facecolors=density.numpy(), cmap=SHADES, vmin=0, vmax=top)
        shades.set_rasterized(True)  # as vectors the tiles would take megabytes
        axes.add_patch(Polygon(VERTICES, fill=False, edgecolor=DARK, linewidth=0.8))
    for (x, y), name in zip(VERTICES, ("(1, 0, 0)", "(0, 1, 0)", "(0, 0, 1)"), strict=True):
        lift = math.copysign(max(radii) + 0.07, y - 0.1)
        axes.text(x, y + lift, name, ha="center", va="center", fontsize=7, color=INK)
    axes.set(xlim=(-0.2, 1.2), ylim=(-0.27, 1.12), aspect="equal")


def _draw_binary(axes: Axes, relaxed: BinaryConcrete) -> None:
    """Draw the sigmoid, the density of its input below it, and the density of its output to its right."""
    box = axes.inset_axes((0.1, 0.48, 0.62, 0.52))
    below = axes.inset_axes((0.1, 0.18, 0.62, 0.26), sharex=box)
    beside = axes.inset_axes((0.76, 0.48, 0.24, 0.52), sharey=box)

    reach = 6 + abs(float(relaxed.logits))
    half = reach * torch.linspace(1e-9, 1, 200, dtype=torch.float64)  # both sides end next to the step at 0
    noisy = torch.cat([-half.flip(0), half])
    law = Logistic(logits=relaxed.logits, temperature=1.0).log_prob(noisy).exp()
    for side, color in ((noisy < 0, PALE), (noisy > 0, STRONG)):
        below.fill_between(noisy[side].numpy(), law[side].numpy(), color=color, linewidth=0)
    box.plot(noisy.numpy(), relaxed.push(noisy - relaxed.logits).numpy(), color=DARK, linewidth=1.6)

    if relaxed.temperature == 0:
        mass = float(relaxed.discretize().probs)
        beside.barh([0, 1], [1 - mass, mass], height=0.06, color=[PALE, STRONG])
        beside.set_xlim(0, 1)
    else:
        value = torch.linspace(0, 1, 401, dtype=torch.float64)[1:-1]
        density = relaxed.log_prob(value).exp()
        for side, color in ((value <= 0.5, PALE), (value >= 0.5, STRONG)):
            beside.fill_betweenx(value[side].numpy(), density[side].numpy(), color=color, linewidth=0)
        beside.set_xlim(0, 1.05 * ceiling(density, relaxed.temperature, n=2))

    for plot in (box, below):
        plot.axvline(0, color=INK, linewidth=0.6, linestyle=":")
    for plot in (box, beside):
        plot.axhline(0.5, color=INK, linewidth=0.6, linestyle=":")
    box.set(xlim=(-reach, reach), ylim=(-0.05, 1.05), yticks=[0, 0.5, 1], yticklabels=["0", "1/2", "1"])
    box.tick_params(labelsize=7, bottom=False, labelbottom=False)
    below.set(ylim=(0, None), xticks=[0], yticks=[])
    axes.xaxis.label.set_x(0.41)  # below the curve
    below.set_xlabel("log α + L", fontsize=8, labelpad=1)
    below.tick_params(labelsize=7)
    below.spines[["left", "top", "right"]].set_visible(False)
    beside.set_xticks([])
    beside.tick_params(left=False, labelleft=False)
    beside.spines[["bottom", "top", "right"]].set_visible(False)
