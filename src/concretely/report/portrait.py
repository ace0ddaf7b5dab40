"""Drawings of nodes: a small one in full, a large one as a box around its state."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from .anatomy import GROUND, Node, format_shape
from .layout import Point
from .style import DARK, INK, PALE, PIXELS

LOOK: dict[str, Any] = {"facecolor": "white", "edgecolor": DARK, "linewidth": 0.8, "zorder": 2}
"""The default look of boxes and circles."""

PITCH, RADIUS, PLUS, CELL, LEVEL = 1.0, 0.2, 0.11, 0.28, 0.6
"""Sizes of small nodes in inches: distance of logits, radii of leaves and sums, side of a state, distance of levels."""

GRID = 1.0
"""The size of the state of a large node, in inches."""


class Box:
    """A node as a box with its name, state and shape: blue, or grey if it is observed."""

    def __init__(self, node: Node) -> None:
        rows, columns = node.table.shape
        side = min(CELL, GRID / max(rows, columns))
        self.node, self.table_size = node, (columns * side, rows * side)
        self.size: Point = (GRID + 0.24, rows * side + 0.58)

    def draw(self, axes: Axes, middle: Point) -> None:
        """Draw the node centred at a point."""
        node, (x, y), (width, height) = self.node, middle, self.table_size
        color = GROUND if node.observed else PALE
        box(axes, middle, self.size, rounding=0 if node.discrete else 0.14, facecolor=color)
        extent = (x - width / 2, x + width / 2, y - height / 2, y + height / 2)
        axes.imshow(node.table.numpy(), cmap="gray", extent=extent, zorder=3, **PIXELS)
        box(axes, middle, self.table_size, facecolor="none", zorder=4)
        text(axes, (x, y + height / 2 + 0.15), legible(node.name), size=9)
        text(axes, (x, y - height / 2 - 0.15), format_shape(node.shape), size=8, color=INK)


class Full:
    """A node drawn in full: for every unit its logits, noise, sums, operations and state, with the name above."""

    def __init__(self, node: Node, *, framed: bool) -> None:
        self.node, self.framed = node, framed
        widths = [0.066 * len(operation.text) + 0.24 for operation in node.operations]
        if len(widths) == 1:  # wide enough for vertical arrows
            widths = [max(widths[0], (node.n - 1) * PITCH + 0.5)]
        self.widths = widths
        self.state_width = CELL * node.brightness.shape[1]
        self.unit_width = max(node.n * PITCH, _row(widths), self.state_width) + 0.2
        steps = [node.n > 0, bool(node.noise), bool(node.operations), True]
        # the heights of leaves, sums, operations and state
        self.levels = [RADIUS + 0.1 + LEVEL * (sum(steps[: place + 1]) - 1) for place in range(4)]
        self.margin = 0.07 if node.observed else 0.0  # of the background around a state
        width = max(node.units * self.unit_width, 0.1 * len(legible(node.name)))
        self.size: Point = (width + 0.1, self.levels[-1] + CELL / 2 + 0.34)

    def draw(self, axes: Axes, middle: Point) -> None:
        """Draw the node centred at a point."""
        (x, y), (_, height) = middle, self.size
        leaf, total, step, state = (y - height / 2 + level for level in self.levels)
        if self.framed:
            box(axes, middle, self.size, rounding=0.1, edgecolor=PALE, zorder=1)
        for unit in range(self.node.units):
            centre = x + (unit - (self.node.units - 1) / 2) * self.unit_width
            sources = self._draw_leaves(axes, unit, (centre, leaf), total=total)
            self._draw_operations(axes, sources, (centre, step), state=state)
            self._draw_state(axes, unit, (centre, state))
        text(axes, (x, state + CELL / 2 + 0.18), legible(self.node.name), size=10)

    def _draw_leaves(self, axes: Axes, unit: int, middle: Point, *, total: float) -> list[Point]:
        """Draw the logits and, if there is noise, the noise and the sums; return the points where arrows start."""
        node, (centre, leaf), sources = self.node, middle, []
        for entry in range(node.n):
            x, index = centre + (entry - (node.n - 1) / 2) * PITCH, node.subscript(unit, entry)
            if node.noise:
                circle(axes, (x, total), PLUS, label="+", size=9)
                for side, letter, color in ((x - 0.23, "log α", "white"), (x + 0.23, node.noise, PALE)):
                    circle(axes, (side, leaf), RADIUS, label=letter + index, facecolor=color)
                    arrow(axes, _shortened((side, leaf), (x, total), by=(RADIUS, PLUS)))
            else:
                circle(axes, (x, leaf), RADIUS, label=f"log α{index}")
            sources.append((x, total + PLUS if node.noise else leaf + RADIUS))
        return sources

    def _draw_operations(self, axes: Axes, sources: Sequence[Point], middle: Point, *, state: float) -> None:
        """Draw the operations in a row, and all arrows from the sources to the state."""
        node, (centre, step), widths = self.node, middle, self.widths
        half, floor = self.state_width / 2, state - CELL / 2 - self.margin
        left = centre - _row(widths) / 2
        for place, (operation, width) in enumerate(zip(node.operations, widths, strict=True)):
            x = left + width / 2
            color = PALE if operation.stochastic else "white"
            box(axes, (x, step), (width, 0.32), rounding=0 if operation.discrete else 0.16, facecolor=color)
            text(axes, (x, step), operation.text, size=8)
            room = min(PITCH, (width - 0.3) / max(node.n - 1, 1))
            for entry, source in enumerate(sources):
                door = x + (entry - (node.n - 1) / 2) * room
                arrow(axes, Path([source, (door, step - 0.16)]), dashed=operation.gradient_only)
            gate = centre + (place - (len(widths) - 1) / 2) * min(half, 0.24)
            arrow(axes, Path([(x, step + 0.16), (gate, floor)]), dashed=operation.gradient_only)
            left += width + 0.2
        if not node.operations:
            for x, y in sources:
                arrow(axes, Path([(x, y), (min(max(x, centre - half), centre + half), floor)]))

    def _draw_state(self, axes: Axes, unit: int, middle: Point) -> None:
        """Draw a state as squares or, if it is relaxed, circles, on a grey background if it is observed."""
        node, (centre, y), width, margin = self.node, middle, self.state_width, 2 * self.margin
        if node.observed:
            box(axes, middle, (width + margin, CELL + margin), facecolor=GROUND)
        for entry, shade in enumerate(node.brightness[unit].tolist()):
            color = "none" if math.isnan(shade) else str(shade)
            cell = centre - width / 2 + CELL * (entry + 0.5), y
            if node.discrete:
                box(axes, cell, (CELL, CELL), facecolor=color, zorder=3)
            else:
                circle(axes, cell, CELL / 2, facecolor=color, zorder=3)


def _row(widths: Sequence[float]) -> float:
    """Return the width of boxes in a row."""
    return sum(widths) + 0.2 * (len(widths) - 1)


def _shortened(start: Point, end: Point, *, by: Point) -> Path:
    """Return the line between two points, shortened at its ends."""
    length = math.dist(start, end)
    ways = (by[0] / length, 1 - by[1] / length)
    return Path([(start[0] + way * (end[0] - start[0]), start[1] + way * (end[1] - start[1])) for way in ways])


def arrow(axes: Axes, path: Path, *, dashed: bool = False) -> None:
    """Draw an arrow along a path."""
    style = "--" if dashed else "-"
    stroke = FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=7, linestyle=style)
    stroke.set(facecolor=INK, edgecolor=INK, linewidth=0.8, zorder=2)
    axes.add_patch(stroke)


def box(axes: Axes, middle: Point, size: Point, *, rounding: float = 0.0, **look: Any) -> None:
    """Draw a rectangle, optionally with rounded corners and another look."""
    (x, y), (width, height) = middle, size
    style = f"round,pad=0,rounding_size={rounding}" if rounding else "square,pad=0"
    stroke = FancyBboxPatch((x - width / 2, y - height / 2), width, height, boxstyle=style)
    axes.add_patch(stroke).set(**LOOK | look)


def circle(axes: Axes, middle: Point, radius: float, *, label: str = "", size: float = 7, **look: Any) -> None:
    """Draw a circle with a label."""
    axes.add_patch(Circle(middle, radius, **LOOK | look))
    text(axes, middle, label, size=size)


def text(axes: Axes, middle: Point, letters: str, *, size: float, color: str = "black") -> None:
    """Draw literal text, centred at a point."""
    axes.text(*middle, letters, ha="center", va="center", fontsize=size, color=color, parse_math=False, zorder=4)


def legible(name: str) -> str:
    """Escape characters that the font lacks, and shorten a long name."""
    font = get_font(findfont(FontProperties()))
    known = (letter.isprintable() and font.get_char_index(ord(letter)) > 0 for letter in name)
    letters = "".join(letter if is_known else ascii(letter)[1:-1] for letter, is_known in zip(name, known, strict=True))
    return letters if len(letters) <= 14 else f"{letters[:13]}…"
