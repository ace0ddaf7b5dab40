"""Images of a trained model, as tensors: samples, reconstructions and completions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data import Dataset
from ..evaluation.pixel import reconstruct_pixels, sample_pixels
from ..model import Model
from ..training.paper import inputs_of
from ..training.recipe import Recipe
from ..training.rng import Purpose, generator_of

POINTS = 12
"""The number of data points in the pictures of a report."""


@dataclass(frozen=True)
class Picture:
    """Images of a model, given as pixel probabilities, and the data that they depend on."""

    model: Tensor
    """Pixel probabilities of shape (rows, columns, width); for reconstructions (1, points, width)."""
    data: Tensor | None = None
    """The data points: one for each row of completions or column of reconstructions. None for samples."""
    context: Tensor | None = None
    """The context of each row of completions, else None."""


def sample_picture(
    recipe: Recipe, model: Model, data: Dataset, *, rows: int, columns: int | None = None, generator: torch.Generator
) -> Picture:
    """Return samples of p(x) or, for a model of p(x | context), completions of contexts from the test set."""
    if recipe.architecture.context is None:
        columns = 12 if columns is None else columns
        return Picture(sample_pixels(model, rows * columns, generator=generator).unflatten(0, (rows, columns)))
    context, x = inputs_of(recipe, data.test.spread(rows).to(generator.device))
    made = sample_pixels(model, 8 if columns is None else columns, context, generator=generator)
    return Picture(made.transpose(0, 1), x, context)


def report_pictures(recipe: Recipe, model: Model, data: Dataset) -> dict[str, Picture]:
    """Return the pictures of a report by name: samples and reconstructions, or completions."""
    generator = generator_of(recipe.seed, Purpose.PICTURE, device=next(model.parameters()).device)
    if recipe.architecture.context is not None:
        return {"completions": sample_picture(recipe, model, data, rows=POINTS, generator=generator)}
    samples = sample_picture(recipe, model, data, rows=8, generator=generator)
    (x,) = inputs_of(recipe, data.test.spread(POINTS).to(generator.device))
    reconstructed = reconstruct_pixels(model, x, generator=generator)
    return {"samples": samples, "reconstructions": Picture(reconstructed.unsqueeze(0), x)}
