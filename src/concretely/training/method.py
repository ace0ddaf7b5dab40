"""The estimator that a recipe names."""

from collections.abc import Callable

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
from ..schedule import Annealing
from .chance import Purpose, generator_of
from .recipe import Recipe, Temperature

Warmth = float | Tensor
"""A temperature as an estimator takes it."""

PLAIN: dict[str, Callable[[], Estimator]] = {
    "straight-through": StraightThrough,
    "reinforce": Reinforce,
    "rloo": RLOO,
    "vimco": VIMCO,
    "exact": Exact,
}
"""Those that need nothing to be made."""


def estimator_of(recipe: Recipe, model: Model, inputs: tuple[Tensor, ...]) -> Estimator:
    """The estimator of a recipe before the first step; some look at the model and at inputs of it."""
    if recipe.method.cools:
        return cooled(recipe, step=0)
    if recipe.estimator != "nvil":
        return PLAIN[recipe.estimator]()
    with torch.random.fork_rng():
        made = NVIL(model, *inputs)
    _initialise(made, generator_of(recipe.seed, Purpose.INITIAL, 1))
    return made


def _initialise(estimator: NVIL, generator: torch.Generator) -> None:
    """Draw the weights of the baselines as torch does, but not from its global generator, which threads share."""
    for module in estimator.modules():
        if isinstance(module, nn.Linear):
            edge = module.in_features**-0.5
            for parameter in module.parameters():
                drawn = torch.empty_like(parameter, device="cpu").uniform_(-edge, edge, generator=generator)
                parameter.data.copy_(drawn)


def cooled(recipe: Recipe, step: int) -> Estimator:
    """The estimator of a recipe at the temperatures of a step, for those that have any."""
    temperature = at_step(recipe.temperature, step)
    assert temperature is not None
    return tempered(recipe.estimator, temperature, at_step(recipe.prior_temperature, step))


def tempered(estimator: str, temperature: Warmth, prior_temperature: Warmth | None) -> Estimator:
    """An estimator at some temperatures."""
    match estimator:
        case "concrete":
            return Pathwise(temperature, prior_temperature)
        case "logistic-normal":
            return Pathwise(temperature, prior_temperature, noise="normal")
        case "gumbel-softmax":
            return GumbelSoftmax(temperature)
        case _:
            return StraightThroughGumbelSoftmax(temperature)


def anneals(recipe: Recipe) -> bool:
    """Whether a temperature falls."""
    return isinstance(recipe.temperature, Annealing) or isinstance(recipe.prior_temperature, Annealing)


def at_step(temperature: Temperature | None, step: int) -> float | None:
    """A temperature at a step, if there is one."""
    return temperature(step) if isinstance(temperature, Annealing) else temperature
