"""The task of a user's own model from its recipe alone: the builder, the estimator and the schedules by their names."""

from typing import Any

import torch
from torch import nn

from .. import estimator as estimators
from ..data import WIDTHS, Dataset
from ..data.arrays import Arrays
from ..estimator import NVIL, Estimator
from ..model import Model
from ..objective import Objective, average, bound
from ..schedule import at_step
from .builder import as_model, built, built_by_name, is_builder
from .method import CLASSES
from .own import MakeEstimator, Options, own_task
from .own_loss import TEMPERATURE, at_temperatures
from .own_recipe import OBJECTS, OwnRecipe, describe
from .own_resolve import made_from_text, not_made, own_program_key, read_schedule, read_temperature
from .parallel import shapes_of
from .place import tensors_of
from .recipe import LR_SCHEDULES, OPTIMIZERS
from .source import as_source, load_splits
from .task import Task

OwnData = Dataset | Arrays
"""Data with splits: bits, or arrays of a file."""


def own_data(
    recipe: OwnRecipe, *, place: str | None = None, max_bytes: int | None = None, progress: bool = False
) -> OwnData:
    """Load the data that a recipe names: a data set of bits, or a file of arrays. `place` is where they are now."""
    if place is None and recipe.data == OBJECTS:
        raise ValueError("the data of this run were objects of Python without a name: pass a file of them as --data")
    return load_splits(recipe.data if place is None else place, max_bytes=max_bytes, progress=progress)


def is_named(recipe: OwnRecipe) -> bool:
    """Return whether the data of a recipe can be loaded again by their name."""
    return recipe.data in WIDTHS or recipe.data.endswith(".npz")


def own_model(recipe: OwnRecipe, model: Any = None) -> nn.Module:
    """Return the model of a recipe before training: a given one, or one of a given builder or of that of the recipe."""
    if model is not None:
        return built(model, recipe.arguments, seed=recipe.seed) if is_builder(model) else as_model(model)
    try:
        if not recipe.model:
            raise ValueError("it has no name by which it can be imported")
        return built_by_name(recipe.model, recipe.arguments, seed=recipe.seed)
    except (ValueError, TypeError, AttributeError) as error:
        todo = "name its builder as model or --model, such as file.py:build, or call load(folder, model=build)"
        raise ValueError(f"the model of this run cannot be built by its name: {error}; {todo}") from None


def own_task_of(recipe: OwnRecipe, data: OwnData, *, device: torch.device | str = "cpu") -> Task:
    """Return the task of a recipe, with a new model on a device."""
    for text, names in ((recipe.optimizer, OPTIMIZERS), (recipe.lr_schedule, LR_SCHEDULES), (recipe.inputs, ())):
        if text is not None and text not in names:
            raise ValueError(not_made(text))
    place = torch.device(device)
    model = built_by_name(recipe.model, recipe.arguments, seed=recipe.seed)
    if recipe.estimator == "vimco" and not isinstance(model, Model):
        raise ValueError("estimator must not be vimco for a program, as it needs the log-weights of a model")
    sources = [
        as_source(data.split(split), device=place, note=lambda sentence: None, name=data.name)
        for split in (("train", "valid") if recipe.validate else ("train",))
    ]
    shapes = tuple(shapes_of(tensors_of(model)).items())
    options = Options(
        estimator=estimator_from_text(recipe.estimator, recipe.temperature, recipe.prior_temperature),
        objective=objective_from_text(recipe.objective),
        temperature=_scheduled(recipe),
        beta=None if recipe.beta is None else read_schedule("beta", recipe.beta),
        optimizer=recipe.optimizer,
        schedule=recipe.lr_schedule,
        valid=sources[1] if recipe.validate else None,
    )
    return own_task(recipe, model, sources[0], options, key=(own_program_key(recipe), shapes), digest=data.digest)


def _scheduled(recipe: OwnRecipe) -> Any:
    """Return the schedules of the temperature, or None if it is one number or that of the estimator."""
    temperature = None if recipe.temperature is None else read_temperature(recipe.temperature)
    return None if isinstance(temperature, int | float) else temperature


def estimator_from_text(text: str, temperature: str | None = None, prior: str | None = None) -> MakeEstimator:
    """Return the estimator of a name of the command line, or of a text as Python writes one.

    >>> estimator_from_text("rloo"), estimator_from_text("VIMCO(mean='arithmetic')")
    (RLOO(), VIMCO(mean='arithmetic'))
    """
    if text in ("nvil", describe(NVIL)):
        return NVIL
    if text in CLASSES:
        at = None if prior is None else at_step(read_schedule("prior_temperature", prior), 0)
        made = CLASSES[text]() if at is None else CLASSES[text](prior_temperature=at)
    else:
        made = made_from_text(text, {name: getattr(estimators, name) for name in estimators.__all__})
    return made if temperature is None else at_step_of(made, temperature, 0)  # the KL stays that of the default


def objective_from_text(text: str | None) -> Objective | None:
    """Return the objective of a run of `fit` from its name in the recipe, or None if none was given.

    >>> objective_from_text("concretely.functional.bound:average") is average
    True
    """
    known = {describe(own): own for own in (average, bound)}
    if text is not None and text not in known:
        raise ValueError(not_made(text))
    return None if text is None else known[text]


def at_step_of(estimator: Estimator, temperature: str, step: int) -> Estimator:
    """Return an estimator at the temperature that a text has at a step.

    >>> at_step_of(estimators.GumbelSoftmax(), "{'h': 'Annealing(start=1.0, end=0.5, steps=100)'}", 100).temperature
    {'h': 0.5}
    """
    schedules = read_temperature(temperature)
    by_node = schedules if isinstance(schedules, dict) else {"": schedules}
    return at_temperatures(
        estimator,
        {f"{TEMPERATURE}/{node}" if node else TEMPERATURE: at_step(own, step) for node, own in by_node.items()},
    )
