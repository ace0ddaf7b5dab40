"""The estimator that a recipe names."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from ..estimator import (
    NVIL,
    RLOO,
    VIMCO,
    Estimator,
    Exact,
    GumbelSoftmax,
    Pathwise,
    Reinforce,
    StraightThrough,
    StraightThroughGumbelSoftmax,
)
from ..model import Model
from ..schedule import at_step
from .recipe import ESTIMATORS, Recipe
from .rng import Purpose, generator_of

Temperatures = tuple[float | Tensor, float | Tensor]
"""The temperature at which q draws the latents, and that at which p scores them."""

CLASSES: dict[str, Callable[..., Estimator]] = {
    "concrete": Pathwise,
    "logistic-normal": partial(Pathwise, noise="normal"),
    "gumbel-softmax": GumbelSoftmax,
    "straight-through": StraightThrough,
    "straight-through-gumbel-softmax": StraightThroughGumbelSoftmax,
    "reinforce": Reinforce,
    "rloo": RLOO,
    "nvil": NVIL,
    "vimco": VIMCO,
    "exact": Exact,
}
"""The constructors of estimators by name. They take temperatures or nothing; NVIL takes a model and inputs."""


def estimator_of(recipe: Recipe, model: Model, inputs: tuple[Tensor, ...]) -> Estimator:
    """Return the estimator of a recipe before the first step. Only NVIL depends on the model and the inputs."""
    if recipe.method.has_temperature:
        return estimator_at_step(recipe, step=0)
    if recipe.estimator != "nvil":
        return CLASSES[recipe.estimator]()
    with torch.random.fork_rng():
        made = NVIL(model, *inputs)
    # as torch draws them, but not from the global generator, which threads share
    generator = generator_of(recipe.seed, Purpose.INITIAL, 1)
    for module in made.modules():
        if isinstance(module, nn.Linear):
            edge = module.in_features**-0.5
            for parameter in module.parameters():
                drawn = torch.empty_like(parameter, device="cpu").uniform_(-edge, edge, generator=generator)
                parameter.data.copy_(drawn)
    return made


def estimator_at_step(recipe: Recipe, step: int) -> Estimator:
    """Return the estimator of a recipe at the temperatures of a step. The estimator must have a temperature."""
    temperature = at_step(recipe.temperature, step)
    assert temperature is not None
    return at_temperature(recipe.estimator, temperature, at_step(recipe.prior_temperature, step))


def at_temperature(estimator: str, temperature: float | Tensor, prior_temperature: float | Tensor | None) -> Estimator:
    """Return the estimator of a name with the given temperatures."""
    given = (temperature, prior_temperature) if ESTIMATORS[estimator].has_prior_temperature else (temperature,)
    return CLASSES[estimator](*given)
