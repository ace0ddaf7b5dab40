"""Images of a trained model, as tensors: samples, reconstructions and completions.

Images are pixel probabilities, the means of p(x | z), since they are easier to read than bits drawn from p(x | z).
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Generator, Tensor, nn

from ..distribution import Bernoulli
from ..evaluation.points import require_positive
from ..graph.mode import Discrete
from ..graph.program import eval_mode, required_names, signature
from ..graph.run import run
from ..graph.trace import Trace
from ..model import Model
from ..training.own_recipe import OwnRecipe, RunRecipe
from ..training.paper import inputs_of, paper_recipe
from ..training.rng import Purpose, generator_of
from .subject import inputs_for, observed_bits, points_of, scored_split

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
    shape: tuple[int, ...] = ()
    """The shape of an image of one's own: height and width, maybe with channels first or last. Empty if unknown."""


def sample_picture(
    recipe: RunRecipe,
    model: nn.Module,
    data: Any,
    *,
    rows: int,
    columns: int | None = None,
    generator: Generator,
) -> Picture:
    """Return samples of p(x) or, for a model of p(x | context), completions of contexts from the test set."""
    if not isinstance(model, Model):
        raise ValueError("a model must have a generative program p to draw samples, got a program")
    if isinstance(recipe, OwnRecipe):
        _, *inputs = signature(model.p).parameters.values()
        if needed := required_names(inputs):
            must = "p must run without inputs to draw samples"
            raise ValueError(f"{must}, but needs {', '.join(needed)}: use concretely.run")
        columns = 12 if columns is None else columns
        made = sample_pixels(model, rows * columns, generator=generator)
        return Picture(made.flatten(1).unflatten(0, (rows, columns)), shape=tuple(made.shape[1:]))
    own = paper_recipe(recipe)
    if own.architecture.context is None:
        columns = 12 if columns is None else columns
        return Picture(sample_pixels(model, rows * columns, generator=generator).unflatten(0, (rows, columns)))
    context, x = inputs_of(own, data.test.spread(rows).to(generator.device))
    made = sample_pixels(model, 8 if columns is None else columns, context, generator=generator)
    return Picture(made.transpose(0, 1), x, context)


def report_pictures(recipe: RunRecipe, model: nn.Module, data: Any) -> dict[str, Picture]:
    """Return the pictures of a report by name: samples and reconstructions, or completions.

    A model of one's own has pictures only if its data are bits.
    """
    generator = generator_of(recipe.seed, Purpose.PICTURE, device=next(model.parameters()).device)
    if isinstance(recipe, OwnRecipe):
        return _own_pictures(recipe, model, data, generator)
    own = paper_recipe(recipe)
    if own.architecture.context is not None:
        return {"completions": sample_picture(recipe, model, data, rows=POINTS, generator=generator)}
    samples = sample_picture(recipe, model, data, rows=8, generator=generator)
    (x,) = inputs_of(own, data.test.spread(POINTS).to(generator.device))
    assert isinstance(model, Model)
    reconstructed = reconstruct_pixels(model, x, generator=generator)
    return {"samples": samples, "reconstructions": Picture(reconstructed.unsqueeze(0), x)}


def _own_pictures(recipe: OwnRecipe, model: nn.Module, data: Any, generator: Generator) -> dict[str, Picture]:
    """Return samples and reconstructions if a model describes images of bits, else nothing."""
    split = scored_split(data)
    if not isinstance(model, Model) or observed_bits(recipe, model, data, split) is None:
        return {}
    pictures = dict[str, Picture]()
    with suppress(TypeError, ValueError, RuntimeError):  # p may need inputs, or end with something else than bits
        pictures["samples"] = sample_picture(recipe, model, data, rows=8, generator=generator)
    index = torch.linspace(0, points_of(data, split) - 1, POINTS).round().long()
    (x,) = inputs_for(recipe, model, data, split, index)
    with suppress(TypeError, ValueError, RuntimeError):
        made = reconstruct_pixels(model, x, generator=generator)
        shape = tuple(x.shape[1:]) if made[0].numel() == x[0].numel() else ()
        pictures["reconstructions"] = Picture(made.flatten(1).unsqueeze(0), x.flatten(1), shape=shape)
    return pictures


def sample_pixels(
    model: Model, samples: int, *context: Shaped[Tensor, "points given"], generator: Generator | None = None
) -> Float[Tensor, "samples *points width"]:
    """Return the pixel probabilities p(x | z) of images with latents z drawn from p.

    For a model of p(x | context), pass the `context`: `samples` images are drawn for each of its data points.

    >>> import concretely as c
    >>> sample_pixels(c.density("2H-9V"), 6).shape
    torch.Size([6, 9])
    """
    require_positive("samples", samples)
    with eval_mode(model), torch.no_grad():
        return _probabilities(run(model.p, *context, mode=Discrete(), samples=samples, generator=generator))


def reconstruct_pixels(
    model: Model, x: Shaped[Tensor, "points width"], *, generator: Generator | None = None
) -> Float[Tensor, "points width"]:
    """Return the pixel probabilities p(x | z) with latents z drawn from q(z | x), for each data point x."""
    if model.q is None:
        raise ValueError("a model must have q to reconstruct data, got none: draw completions instead")
    if not len(x):
        raise ValueError(f"x must have at least one data point, got shape {tuple(x.shape)}")
    with eval_mode(model), torch.no_grad():
        return _probabilities(model.trace(x, mode=Discrete(), generator=generator)[0])


def _probabilities(trace: Trace) -> Tensor:
    """Return the probabilities of the bits at the last node of a trace."""
    *_, name = trace
    law, outcome = trace[name].distribution, trace[name]
    if not isinstance(law, Bernoulli):
        raise ValueError(f"p must end with bits to be shown as an image, got {type(law).__name__} at node {name!r}")
    return outcome.in_trace(law.probs.expand(outcome.seen.shape))
