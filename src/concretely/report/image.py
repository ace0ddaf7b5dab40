"""Figures of images: data in black, and the pixel probabilities of a model in blue."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import torch
from jaxtyping import Float, Shaped
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from ..experiment.picture import Picture
from .style import DPI, INK, PALE, PIXELS

DATA, MODEL, BLANK = "Greys", "Blues", "#e4e4e4"
"""The colour maps of data and of the model, and the grey of missing pixels."""

TILE, GAP, MARGIN, NOTE = 120, 14, 24, 44
"""Sizes in dots: the approximate side of an image, the space between images, the margin, and the note below."""

COLORS = 3
"""The number of channels of an image in colour."""

BROAD = 12
"""The maximum number of reconstructions in a row."""

CAPTIONS = {
    "samples": "Samples: the probability of every pixel, given latents drawn from the prior.",
    "reconstructions": "Data and, below each, the probability of every pixel, given latents from its posterior q.",
    "completions": "The context, the data, and probabilities of the other pixels, each for other latents.",
}
"""The captions of pictures in a report."""


def draw_picture(picture: Picture) -> Figure:
    """Draw samples, or data with the reconstruction below each, or one row of context, data and completions for each.

    A context and its data are drawn as one image if together they form a square with the context as its upper rows.
    """
    context, x, made = picture.context, picture.data, picture.model
    if x is None:
        return _page([_tiles(row, MODEL) for row in _images(made, picture.shape)], "p(x = 1 | z) for z ∼ p(z)")
    if context is None:
        truths, images = (_images(part, picture.shape) for part in (x, made[0]))
        data_tiles, model_tiles = _tiles(truths, DATA), _tiles(images, MODEL)
        parts = [slice(first, first + BROAD) for first in range(0, len(x), BROAD)]
        rows = [half[part] for part in parts for half in (data_tiles, model_tiles)]
        return _page(rows, "data x, and below p(x = 1 | z) for z ∼ q(z | x)")
    above, below = context.shape[1], x.shape[1]
    square = math.isqrt(above + below)
    side = square if square**2 == above + below and above % square == 0 else None
    rows = list[list[Tile]]()
    for given, truth, images in zip(*(pixels(part, side) for part in (context, x, made)), strict=True):
        upper, lower = Strip(given, DATA), [Strip(truth, DATA), *(Strip(image, MODEL) for image in images)]
        rows.append([(upper,), *((strip,) if side is None else (upper, strip) for strip in lower)])
    return _page(rows, "given, data, and p(x = 1 | z) for z ∼ p(z | given)")


def pixels(bits: Shaped[Tensor, "*batch width"], side: int | None = None) -> Float[Tensor, "*batch height side"]:
    """Reshape bits or probabilities to images whose rows have a given length, by default the rounded square root.

    The last row is filled up with NaN if needed.

    >>> pixels(torch.ones(7)).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, nan, nan]]
    """
    width = bits.shape[-1]
    side = round(math.sqrt(width)) if side is None else side
    blank = torch.full((*bits.shape[:-1], -width % side), math.nan)
    filled = torch.cat([bits.detach().float().cpu(), blank], -1)
    return filled.view(*bits.shape[:-1], -1, side)


def _images(bits: Shaped[Tensor, "*batch width"], shape: tuple[int, ...]) -> Float[Tensor, "..."]:
    """Reshape bits or probabilities to images of a shape. Three channels are colours; others are side by side."""
    if len(shape) not in (2, 3) or (len(shape) == 2 and 1 in shape):
        return pixels(bits)
    images: Tensor = bits.detach().float().cpu().unflatten(-1, shape)
    if len(shape) == 2 or (shape[-1] == COLORS and shape[0] != COLORS):
        return images
    if shape[-1] == 1:
        return images.squeeze(-1)
    return images.movedim(-3, -1) if shape[0] == COLORS else images.movedim(-3, -2).flatten(-2)


class Strip(NamedTuple):
    """The pixels of an image, or of some of its rows, and their colour map, which is not used if they have colours."""

    pixels: Float[Tensor, "height side *colors"]
    shades: str


Tile = tuple[Strip, ...]
"""An image as strips from the top down."""


def _page(rows: Sequence[Sequence[Tile]], note: str) -> Figure:
    """Draw images in rows, and a note below."""
    tiles = [tile for row in rows for tile in row]
    height = max(sum(len(strip.pixels) for strip in tile) for tile in tiles)
    width = max(strip.pixels.shape[1] for tile in tiles for strip in tile)
    scale = max(1, round(TILE / max(height, width)))  # whole dots, so that all pixels look the same
    across, down = width * scale + GAP, height * scale + GAP
    breadth = max(across * max(map(len, rows)) - GAP, 13 * len(note)) + 2 * MARGIN  # the note must fit as well
    length = down * len(rows) - GAP + 2 * MARGIN + NOTE
    figure = Figure(figsize=(breadth / DPI, length / DPI))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, breadth), ylim=(length, 0), frame_on=False, xticks=[], yticks=[])
    for row, images in enumerate(rows):
        for column, tile in enumerate(images):
            left, top = MARGIN + column * across, MARGIN + row * down
            frame = (left, top), width * scale, height * scale  # with room for the largest image
            axes.add_patch(Rectangle(*frame, facecolor=BLANK, zorder=0))
            axes.add_patch(Rectangle(*frame, fill=False, edgecolor=PALE, linewidth=0.5, zorder=2))
            for strip, shades in tile:
                bottom, right = top + strip.shape[0] * scale, left + strip.shape[1] * scale
                colors = matplotlib.colormaps[shades].with_extremes(bad=BLANK)
                axes.imshow(strip.numpy(), cmap=colors, extent=(left, right, bottom, top), zorder=1, **PIXELS)
                top = bottom
    axes.set(xlim=(0, breadth), ylim=(length, 0))
    axes.text(MARGIN, length - MARGIN, note, fontsize=8, color=INK, parse_math=False, va="bottom")
    return figure


def _tiles(images: Float[Tensor, "images height side *colors"], shades: str) -> list[Tile]:
    return [(Strip(image, shades),) for image in images]
