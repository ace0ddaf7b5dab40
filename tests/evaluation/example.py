"""Small models whose likelihood can be worked out, and data for them."""

import pytest
import torch
from torch import Generator, Tensor, nn

import concretely as c

NOTATIONS = {
    "one layer": lambda: c.density("3H-5V"),
    "one layer, non-linear": lambda: c.density("3H~5V"),
    "two layers": lambda: c.density("2H-3H-5V"),
    "four-ary": lambda: c.density("4H-5V", arity=4),
    "prediction": lambda: c.prediction("4V-3H-2H-5V"),
    "four-ary prediction": lambda: c.prediction("4V-4H~5V", arity=4),
}
models = pytest.mark.parametrize("build", NOTATIONS.values(), ids=NOTATIONS.keys())


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def spread(model: c.Model) -> c.Model:
    """A model whose parameters lie far from their start, so that latents matter and q is not the posterior of p."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.8)
    return model.double().eval()


def data_of(model: c.Model, points: int) -> tuple[Tensor, ...]:
    """Random bits for every input of a model of the paper."""
    x = torch.randint(2, (points, 5), dtype=torch.uint8)
    return (x,) if model.q else (torch.randint(2, (points, 4), dtype=torch.uint8), x)
