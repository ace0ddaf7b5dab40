"""Studies of gradient estimators on the model of a run, or on a model before training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .. import evaluation
from ..data import Dataset
from ..evaluation import GradientStudy
from ..model import Model
from ..training.chance import Order, Purpose, generator_of
from ..training.method import at_step, estimator_of
from ..training.recipe import Recipe, resolve
from ..training.run import Run
from ..training.trainer import built, inputs_of

TEMPERATURES = ("temperature", "prior_temperature")


class Subject(NamedTuple):
    """A model and its data, the number of steps it has been trained for, and a recipe for every estimator."""

    recipes: Mapping[str, Recipe]
    model: Model
    data: Dataset
    step: int
    title: str


def estimator_recipes(names: Sequence[str], **given: Any) -> dict[str, Recipe]:
    """Return a recipe for every estimator, with those of the given temperatures that it has.

    >>> estimator_recipes(["concrete", "vimco"], notation="2H-64V", samples=2, temperature="1/2")["vimco"].temperature
    """
    recipes = {}
    others = {key: value for key, value in given.items() if key not in TEMPERATURES}
    for name in names:
        default = resolve(estimator=name, **others)
        own = {key: given.get(key) for key in TEMPERATURES if getattr(default, key) is not None}
        recipes[name] = resolve(estimator=name, **others, **own)
    temperature = given.get("temperature")
    if isinstance(temperature, str) and all(recipe.temperature is None for recipe in recipes.values()):
        raise ValueError(f"temperature must be left out, as no estimator has one, got {temperature!r}")
    return recipes


def untrained_subject(recipes: Mapping[str, Recipe], data: Dataset, *, device: torch.device | str = "cpu") -> Subject:
    """Return the model of recipes before training."""
    recipe = next(iter(recipes.values()))
    title = f"{recipe.notation}-{Path(recipe.data).stem}".replace(":", "x")
    return Subject(recipes, built(recipe, data).to(device), data, step=0, title=title)


def trained_subject(
    names: Sequence[str], run: Run, model: Model, data: Dataset, *, title: str, **given: Any
) -> Subject:
    """Return the model of a run; keys that are not given are those of the run at its last step."""
    kept = {name: getattr(run.recipe, name) for name in ("notation", "data", "binarize", "seed")}
    kept |= {name: at_step(getattr(run.recipe, name), run.step) for name in TEMPERATURES}
    given = kept | {name: value for name, value in given.items() if value is not None}
    return Subject(estimator_recipes(names, **given), model, data, run.step, title)


def study_estimators(subject: Subject, *, points: int, repeats: int, progress: bool = False) -> GradientStudy:
    """Study the estimators on the data points of the next training step."""
    recipes, model, data, step, _ = subject
    recipe, device, most = next(iter(recipes.values())), next(model.parameters()).device, len(data.train)
    if points > most:
        raise ValueError(f"points must be at most {most:,}, the size of the training set, got {points}")
    indices = Order(points=most, batch=points, seed=recipe.seed).indices(step)
    inputs = inputs_of(recipe, data.train[indices].to(device))
    return evaluation.gradient_study(
        model,
        *inputs,
        estimators={name: estimator_of(each, model, inputs) for name, each in recipes.items()},
        samples=recipe.samples,
        repeats=repeats,
        generator=generator_of(recipe.seed, Purpose.NOISE, step, device=device),
        progress=progress,
    )
