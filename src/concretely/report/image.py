"""Pictures of what a model has learned: what it dreams up, how it sees data, how it goes on from a context.

What is data is black, and what the model makes is blue. Of the model its pixel probabilities are shown, the mean of
p(x | z), which read better than bits drawn from them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import torch
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Generator, Tensor

from ..distribution import Bernoulli
from ..graph import run
from ..mode import Discrete
from ..model import Model
from ..program import eval_mode
from ..trace import Trace
from .figure import DPI, INK, PALE

DATA, MODEL, BLANK = "Greys", "Blues", "#e4e4e4"
"""The shades of data and of the model, and the grey of places without a pixel."""

TILE, GAP, MARGIN, NOTE = 120, 14, 24, 44
"""In dots: about the side of an image, the room between two, around all of them, and for the line below."""

BROAD = 12
"""The most data points side by side."""

SAMPLES = "Samples: the probability of every pixel, given latents drawn from the prior."
RECONSTRUCTIONS = "Data and, below each, the probability of every pixel, given latents drawn from its posterior q."
COMPLETIONS = "What is given, the data, and probabilities of the pixels that are not given, each for other latents."
"""What to write below the three pictures."""


def samples(model: Model, *, rows: int = 8, columns: int = 12, generator: Generator | None = None) -> Figure:
    """The pixel probabilities of draws from a model that needs no context.

    >>> import concretely as c
    >>> len(samples(c.density("2H-9V"), rows=2, columns=3).axes[0].images)
    6
    """
    for name, number in (("rows", rows), ("columns", columns)):
        _require_positive(name, number)
    with eval_mode(model), torch.no_grad():
        trace = run(model.p, Discrete(), samples=rows * columns, generator=generator)
    tiles = [(Strip(image, MODEL),) for image in pixels(_probabilities(trace))]
    return _page([tiles[row * columns : (row + 1) * columns] for row in range(rows)], "p(x = 1 | z) for z ∼ p(z)")


def reconstructions(model: Model, x: Shaped[Tensor, "points width"], *, generator: Generator | None = None) -> Figure:
    """Data and, below each point, its pixel probabilities given latents drawn from q.

    >>> import concretely as c
    >>> len(reconstructions(c.density("2H-9V"), torch.zeros(4, 9)).axes[0].images)
    8
    """
    if model.q is None:
        raise ValueError("a model must have q to reconstruct data, got none: draw completions instead")
    _require_points(x)
    with eval_mode(model), torch.no_grad():
        trace, _ = model.trace(x, mode=Discrete(), generator=generator)
    seen = [(Strip(image, DATA),) for image in pixels(x)]
    made = [(Strip(image, MODEL),) for image in pixels(_probabilities(trace))]
    parts = [slice(first, first + BROAD) for first in range(0, len(x), BROAD)]
    return _page(
        [half[part] for part in parts for half in (seen, made)], "data x, and below p(x = 1 | z) for z ∼ q(z | x)"
    )


def completions(
    model: Model,
    context: Shaped[Tensor, "points given"],
    x: Shaped[Tensor, "points width"],
    *,
    samples: int = 8,
    generator: Generator | None = None,
) -> Figure:
    """A context, the data that it belongs to and, beside them, pixel probabilities given latents drawn for it.

    Context and x are shown as one image if together they are a square of which the context is the upper rows, and else
    each on its own.

    >>> import concretely as c
    >>> model = c.prediction("6V-2H-3V")
    >>> len(completions(model, torch.zeros(4, 6), torch.zeros(4, 3), samples=2).axes[0].images)
    28
    """
    _require_positive("samples", samples)
    _require_points(x)
    with eval_mode(model), torch.no_grad():
        trace = run(model.p, Discrete(), context, samples=samples, generator=generator)
    side = _common_side(context.shape[1], x.shape[1])
    images = (pixels(context, side), pixels(x, side), pixels(_probabilities(trace), side).transpose(0, 1))
    rows = list[list[Tile]]()
    for given, truth, made in zip(*images, strict=True):
        above, below = Strip(given, DATA), [Strip(truth, DATA), *(Strip(image, MODEL) for image in made)]
        rows.append([(above,), *((strip,) if side is None else (above, strip) for strip in below)])
    return _page(rows, "given, data, and p(x = 1 | z) for z ∼ p(z | given)")


def pixels(bits: Shaped[Tensor, "*batch width"], side: int | None = None) -> Float[Tensor, "*batch height side"]:
    """Bits or their probabilities as an image with sides of a given length or the root of their number.

    Where the root is no whole number the nearest one is taken, and the last row is filled up with NaN.

    >>> pixels(torch.ones(7)).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, nan, nan]]
    """
    width = bits.shape[-1]
    side = round(math.sqrt(width)) if side is None else side
    blank = torch.full((*bits.shape[:-1], -width % side), math.nan)
    filled = torch.cat([bits.detach().float().cpu(), blank], -1)
    return filled.view(*bits.shape[:-1], -1, side)


class Strip(NamedTuple):
    """An image or some of its rows, and its shades."""

    pixels: Float[Tensor, "height side"]
    shades: str


Tile = tuple[Strip, ...]
"""An image as strips from the top down."""


def _page(rows: Sequence[Sequence[Tile]], note: str) -> Figure:
    """Images in rows, and a line below."""
    sizes = [_size(tile) for row in rows for tile in row]
    height, width = (max(lengths) for lengths in zip(*sizes, strict=True))
    scale = max(1, round(TILE / max(height, width)))  # a pixel is a whole number of dots, so that all look the same
    across, down = width * scale + GAP, height * scale + GAP
    breadth = max(across * max(map(len, rows)) - GAP, 13 * len(note)) + 2 * MARGIN  # the line must fit as well
    length = down * len(rows) - GAP + 2 * MARGIN + NOTE
    figure = Figure(figsize=(breadth / DPI, length / DPI))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, breadth), ylim=(length, 0), frame_on=False, xticks=[], yticks=[])
    for row, tiles in enumerate(rows):
        for column, tile in enumerate(tiles):
            _draw(axes, tile, (MARGIN + column * across, MARGIN + row * down), shape=(height, width), scale=scale)
    axes.set(xlim=(0, breadth), ylim=(length, 0), aspect="auto")
    axes.text(MARGIN, length - MARGIN, note, fontsize=8, color=INK, parse_math=False, va="bottom")
    return figure


def _draw(axes: Axes, tile: Tile, corner: tuple[int, int], *, shape: tuple[int, int], scale: int) -> None:
    """An image in a frame that has room for the largest."""
    (left, top), (height, width) = corner, shape
    size = width * scale, height * scale
    axes.add_patch(Rectangle(corner, *size, facecolor=BLANK, zorder=0))
    axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor=PALE, linewidth=0.5, zorder=2))
    for strip, shades in tile:
        bottom, right = top + strip.shape[0] * scale, left + strip.shape[1] * scale
        axes.imshow(
            strip.numpy(),
            cmap=matplotlib.colormaps[shades].with_extremes(bad=BLANK),
            vmin=0,
            vmax=1,
            extent=(left, right, bottom, top),
            interpolation="nearest",
            zorder=1,
        )
        top = bottom


def _size(tile: Tile) -> tuple[int, int]:
    return sum(strip.pixels.shape[0] for strip in tile), max(strip.pixels.shape[1] for strip in tile)


def _probabilities(trace: Trace) -> Tensor:
    """The probabilities of the bits that a run ended with."""
    *_, name = trace
    law, value = trace[name].distribution, trace[name].value
    if not isinstance(law, Bernoulli):
        raise ValueError(f"p must end with bits to be shown as an image, got {type(law).__name__} at node {name!r}")
    return law.probs.expand(value.shape)


def _common_side(upper: int, lower: int) -> int | None:
    """The side of the square that two images make, one below the other, or None if they make none."""
    side = math.isqrt(upper + lower)
    return side if side**2 == upper + lower and upper % side == 0 else None


def _require_positive(name: str, number: int) -> None:
    if number < 1:
        raise ValueError(f"{name} must be a positive whole number, got {number}")


def _require_points(x: Tensor) -> None:
    if not len(x):
        raise ValueError(f"x must have at least one data point, got shape {tuple(x.shape)}")
