"""Studies of gradient estimators on the model of a run, or on a model before training."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from .. import evaluation
from ..data import Dataset
from ..evaluation import GradientStudy
from ..model import Model
from ..schedule import at_step
from ..spelling import did_you_mean
from ..training.folder import Run
from ..training.method import estimator_of
from ..training.own_method import estimator_from_text
from ..training.own_recipe import OwnRecipe
from ..training.paper import inputs_of, paper_recipe
from ..training.recipe import ESTIMATORS, Recipe, resolve
from ..training.rng import Order, Purpose, generator_of
from .subject import inputs_for, points_of

TEMPERATURES = ("temperature", "prior_temperature")


def estimator_recipes(names: Sequence[str], run: Run | None = None, **given: Any) -> dict[str, Recipe]:
    """Return a recipe for every estimator. Temperatures are set only for estimators that have them.

    Keys that are not given are taken from a run at its last step, if there is one, or from the defaults.

    >>> recipes = estimator_recipes(["concrete", "vimco"], notation="2H-64V", samples=2, temperature="1/2")
    >>> recipes["concrete"].temperature, recipes["vimco"].temperature
    (0.5, None)
    """
    recipes = {}
    if run is not None:
        own = paper_recipe(run.recipe)
        kept = {name: getattr(own, name) for name in ("notation", "data", "binarize", "seed")}
        kept |= {name: at_step(getattr(own, name), run.step) for name in TEMPERATURES}
        given = kept | {name: value for name, value in given.items() if value is not None}
    others = {key: value for key, value in given.items() if key not in TEMPERATURES}
    for name in names:
        default = resolve(estimator=name, **others)
        warm = {key: given.get(key) for key in TEMPERATURES if getattr(default, key) is not None}
        recipes[name] = resolve(estimator=name, **others, **warm)
    temperature = given.get("temperature")
    if isinstance(temperature, str) and all(recipe.temperature is None for recipe in recipes.values()):
        raise ValueError(f"temperature must be left out, as no estimator has one, got {temperature!r}")
    return recipes


def study_estimators(
    recipes: Mapping[str, Recipe], model: Model, data: Dataset, *, step: int = 0, points: int, **options: Any
) -> GradientStudy:
    """Study estimators on the data points of a training step with `gradient_study` and its options."""
    recipe, device, most = next(iter(recipes.values())), next(model.parameters()).device, len(data.train)
    if points > most:
        raise ValueError(f"points must be at most {most:,}, the size of the training set, got {points}")
    inputs = inputs_of(recipe, data.train[Order(points=most, batch=points, seed=recipe.seed).indices(step)].to(device))
    options["estimators"] = {name: estimator_of(recipe, model, inputs) for name, recipe in recipes.items()}
    options["generator"] = generator_of(recipe.seed, Purpose.NOISE, step, device=device)
    return evaluation.gradient_study(model, *inputs, samples=recipe.samples, **options)


def study_own(
    run: Run, model: nn.Module, data: Any, names: Sequence[str], *, points: int, samples: int, **given: Any
) -> GradientStudy:
    """Study estimators on the model of a user's own run. `given` has the temperature, the seed, and other options."""
    recipe, most = run.recipe, points_of(data, "train")
    assert isinstance(recipe, OwnRecipe)
    if points > most:
        raise ValueError(f"points must be at most {most:,}, the size of the training set, got {points}")
    for name in names:
        if name not in ESTIMATORS:
            raise ValueError(f"unknown estimator {name!r}{did_you_mean(name, ESTIMATORS)}")
    if "vimco" in names and not isinstance(model, Model):
        raise ValueError("vimco must be left out for a program, as it needs the log-weights of a model")
    seed, temperature = given.pop("seed", None), given.pop("temperature", None) or recipe.temperature
    seed = recipe.seed if seed is None else seed
    index = Order(points=most, batch=points, seed=seed).indices(run.step)
    inputs, made = inputs_for(recipe, model, data, "train", index), dict[str, Any]()
    for name in names:
        built = estimator_from_text(name, temperature if ESTIMATORS[name].has_temperature else None)
        made[name] = built(model, *inputs) if isinstance(built, type) else built
    device = next(model.parameters()).device
    how = {"generator": generator_of(seed, Purpose.NOISE, run.step, device=device), **given}
    return evaluation.gradient_study(model, *inputs, estimators=made, samples=samples, **how)
