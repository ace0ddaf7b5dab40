"""Arrows, boxes, circles and texts of diagrams."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from .style import DARK, INK

Point = tuple[float, float]
"""A position or a size in inches."""
LOOK: dict[str, Any] = {"facecolor": "white", "edgecolor": DARK, "linewidth": 0.8, "zorder": 2}
"""The look of boxes and circles, unless they ask for another."""


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
