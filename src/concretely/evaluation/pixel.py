"""Pixel probabilities of models of binary images: samples, reconstructions and completions.

Pixel probabilities are the means of p(x | z). As images they are easier to read than bits drawn from p(x | z).
"""

import torch
from jaxtyping import Float, Shaped
from torch import Generator, Tensor

from ..distribution import Bernoulli
from ..graph.mode import Discrete
from ..graph.program import eval_mode
from ..graph.run import run
from ..graph.trace import Trace
from ..model import Model
from .likelihood import require_positive


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
