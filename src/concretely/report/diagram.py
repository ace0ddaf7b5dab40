"""Figures of runs of stochastic graphs.

As in the paper, deterministic operations are white and stochastic ones blue, and continuous operations are rounded and
discrete ones square. The brightness of an example state shows its value. A path that carries only a gradient is dashed.
Observed nodes have a grey background. See [maddison2017concrete], figure 1.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.transforms import Affine2D

from ..graph.trace import Trace
from ..spelling import format_number
from .anatomy import anatomy, is_small
from .layout import GAP, Flow, Layout, layout
from .portrait import Box, Full, arrow

PAGE = 10.8
"""The width of a figure in inches."""


class Sketch(NamedTuple):
    """The drawings of the nodes of a graph, and their layout."""

    portraits: Sequence[Box | Full]
    layout: Layout


Panel = tuple[str, Sequence[tuple[str, Sketch]]]
"""A caption, and the column of sketches above it, as pairs of a name (which may be empty) and a sketch."""


def picture(trace: Trace) -> Figure:
    """Draw a run. A small graph is drawn in full, from the bottom up; a large one with a box for every node.

    >>> import torch
    >>> from concretely import OneHotCategorical, mode, run
    >>> figure = picture(run(lambda draw: draw("D", OneHotCategorical(logits=torch.zeros(3))), mode=mode.Relaxed(0.5)))
    """
    return _page([("", [("", _sketch(trace, "up" if is_small(anatomy(trace)) else "right"))])])


def side_by_side(panels: Sequence[tuple[float, Mapping[str, Trace]]]) -> Figure:
    """Draw runs at several temperatures in panels, each with one or more named runs below each other.

    A single variable is drawn in full from the bottom up. Networks are drawn with a box for every node, p from left to
    right and q from right to left. See [maddison2017concrete], figure 1.
    """
    flows: dict[str, Flow] = {"": "up", "p": "right", "q": "left"}
    return _page(
        [
            (f"λ = {format_number(temperature)}", [(name, _sketch(trace, flows[name])) for name, trace in runs.items()])
            for temperature, runs in panels
        ]
    )


def _sketch(trace: Trace, flow: Flow) -> Sketch:
    """Lay out a graph: in full from the bottom up ("up"), or with a box for every node ("right" or "left")."""
    nodes = anatomy(trace)
    portraits = [Full(node, framed=len(nodes) > 1) if flow == "up" else Box(node) for node in nodes]
    sizes = {portrait.node.name: portrait.size for portrait in portraits}
    return Sketch(portraits, layout(trace.parents, sizes, flow=flow))


def _page(panels: Sequence[Panel]) -> Figure:
    """Draw panels in rows that fit the width of a figure."""
    if not panels:
        raise ValueError("temperatures must hold at least one number, got none")
    aside = 0.25 if any(name for _, column in panels for name, _ in column) else 0.0
    foot = 0.3 if any(caption for caption, _ in panels) else 0.0
    width = max(sketch.layout.width for _, column in panels for _, sketch in column) + 2 * aside + GAP
    height = max(sum(sketch.layout.height + GAP for _, sketch in column) for _, column in panels) + foot
    columns = min(len(panels), max(1, int(PAGE / width)))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(columns * width, rows * height))
    axes = figure.add_axes((0, 0, 1, 1), frame_on=False, xticks=[], yticks=[])
    for place, (caption, column) in enumerate(panels):
        left, top = place % columns * width, (rows - place // columns) * height - GAP / 2
        centre = left + width / 2
        for name, sketch in column:
            bottom = top - sketch.layout.height
            axes.text(left + GAP / 2, (top + bottom) / 2, name, va="center", fontsize=11, style="italic")
            edge = centre - sketch.layout.width / 2
            for path in sketch.layout.arrows:
                arrow(axes, path.transformed(Affine2D().translate(edge, bottom)))
            for portrait in sketch.portraits:
                x, y = sketch.layout.middles[portrait.node.name]
                portrait.draw(axes, (x + edge, y + bottom))
            top = bottom - GAP
        axes.text(centre, top + GAP - 0.14, caption, ha="center", va="top", fontsize=11)
    axes.set(xlim=(0, columns * width), ylim=(0, rows * height))
    return figure
