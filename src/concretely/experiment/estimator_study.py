"""Studies of gradient estimators on the model of a run, or on a model before training."""

from collections.abc import Mapping, Sequence
from typing import Any

from .. import evaluation
from ..data import Dataset
from ..evaluation import GradientStudy
from ..model import Model
from ..training.engine import inputs_of
from ..training.folder import Run
from ..training.method import at_step, estimator_of
from ..training.recipe import Recipe, resolve
from ..training.rng import Order, Purpose, generator_of

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
        kept = {name: getattr(run.recipe, name) for name in ("notation", "data", "binarize", "seed")}
        kept |= {name: at_step(getattr(run.recipe, name), run.step) for name in TEMPERATURES}
        given = kept | {name: value for name, value in given.items() if value is not None}
    others = {key: value for key, value in given.items() if key not in TEMPERATURES}
    for name in names:
        default = resolve(estimator=name, **others)
        own = {key: given.get(key) for key in TEMPERATURES if getattr(default, key) is not None}
        recipes[name] = resolve(estimator=name, **others, **own)
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
    options["estimators"] = {name: estimator_of(each, model, inputs) for name, each in recipes.items()}
    options["generator"] = generator_of(recipe.seed, Purpose.NOISE, step, device=device)
    return evaluation.gradient_study(model, *inputs, samples=recipe.samples, **options)
