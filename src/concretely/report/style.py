"""Colours, and how figures are rendered and saved."""

from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..file import atomic_write

SHADES = "Blues_r"
"""A sequential colour map in one hue, which stays ordered for colour-blind readers and in grey print."""

DARK, STRONG, PALE, INK = "#08306b", "#2171b5", "#9ecae1", "#404040"
"""Three blues of this map, and the grey of lines and labels."""

PIXELS: dict[str, Any] = {"vmin": 0, "vmax": 1, "interpolation": "nearest", "aspect": "auto"}
"""How values from 0 to 1 are drawn as pixels."""

DPI = 200
"""The resolution of every figure."""


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and SVG under a path without suffix, and return their paths. The bytes are reproducible."""
    files = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    with atomic_write(files[0]) as png, atomic_write(files[1]) as svg:
        png.write_bytes(render_figure(figure))
        svg.write_bytes(render_figure(figure, "svg"))
    return files


def render_figure(figure: Figure, kind: Literal["png", "svg"] = "png") -> bytes:
    """Render a figure as PNG or SVG, without dates or random identifiers."""
    file = BytesIO()
    FigureCanvasAgg(figure)
    with matplotlib.rc_context({"svg.hashsalt": "concretely"}):
        figure.savefig(file, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()
