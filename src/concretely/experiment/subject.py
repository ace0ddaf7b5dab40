"""Functions that differ between runs of the paper's models and of a user's own: inputs, estimators, and names."""

from collections.abc import Hashable
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..data.arrays import Arrays
from ..data.dataset import Bits
from ..estimator import NVIL, Estimator
from ..model import Model
from ..training.method import estimator_at_step
from ..training.own import arranged
from ..training.own_loss import draws_relaxed
from ..training.own_method import at_step_of, estimator_from_text
from ..training.own_recipe import OwnRecipe, RunRecipe
from ..training.own_resolve import own_program_key
from ..training.paper import inputs_of, paper_recipe
from ..training.recipe import data_key, program_key


def program_of(recipe: RunRecipe) -> Hashable:
    """Return a key that is equal for recipes whose runs can be trained together."""
    return own_program_key(recipe) if isinstance(recipe, OwnRecipe) else program_key(paper_recipe(recipe))


def data_name(recipe: RunRecipe) -> Hashable:
    """Return a key that is equal for recipes with the same data."""
    return recipe.data if isinstance(recipe, OwnRecipe) else data_key(paper_recipe(recipe))


def scored_split(data: Any) -> str:
    """Return the split on which a trained model is scored: `test` or, for a file without one, `valid`."""
    return "test" if not isinstance(data, Arrays) or "test" in data.splits else "valid"


def points_of(data: Any, split: str) -> int:
    """Return the number of data points of a split."""
    return data.size(split) if isinstance(data, Arrays) else len(data.split(split))


def inputs_for(
    recipe: RunRecipe, model: nn.Module, data: Any, split: str, index: Tensor | slice = slice(None)
) -> tuple[Any, ...]:
    """Return the inputs of a model for some data points of a split, on its device."""
    device, part = next(model.parameters()).device, data.split(split)
    if not isinstance(recipe, OwnRecipe):
        return inputs_of(paper_recipe(recipe), part[index].to(device))
    if recipe.inputs is not None:
        must = f"the inputs of this run were made by a function, {recipe.inputs!r}, which only Python can call"
        raise ValueError(f"{must}: score it there, as in c.evaluate(c.load(folder), *inputs)")
    batch: Any = part[index].float() if isinstance(part, Bits) else tree_map_only(Tensor, lambda t: t[index], part)
    batch = tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)
    return arranged(model, batch, None, file=data.name)(batch)


def relaxed_estimator(recipe: RunRecipe, step: int) -> Estimator:
    """Return the estimator of a recipe at the temperatures of a step; raise unless it trains a relaxed graph."""
    if not relaxes(recipe):
        raise ValueError(f"estimator must be one that trains a relaxed graph, got {recipe.estimator!r}")
    if not isinstance(recipe, OwnRecipe):
        return estimator_at_step(paper_recipe(recipe), step)
    estimator: Any = estimator_from_text(recipe.estimator, recipe.temperature, recipe.prior_temperature)
    made: Estimator = estimator if recipe.temperature is None else at_step_of(estimator, recipe.temperature, step)
    return made


def relaxes(recipe: RunRecipe) -> bool:
    """Return whether a run trained the relaxed graph."""
    if not isinstance(recipe, OwnRecipe):
        return paper_recipe(recipe).method.relaxes
    estimator: Any = estimator_from_text(recipe.estimator)
    return estimator is not NVIL and draws_relaxed(estimator)


def has_context(recipe: RunRecipe, model: nn.Module) -> bool:
    """Return whether a model predicts data given a context, and has no inference network."""
    if not isinstance(recipe, OwnRecipe):
        return paper_recipe(recipe).architecture.context is not None
    return not isinstance(model, Model) or model.q is None


def observed_bits(recipe: RunRecipe, model: nn.Module | None, data: Any, split: str) -> Tensor | None:
    """Return the data of a split that a model describes, if they are bits, else None."""
    if not isinstance(recipe, OwnRecipe):
        observed = paper_recipe(recipe).architecture.observed.units
        bits: Tensor = data.split(split)[:][:, -observed:]
        return bits
    if not isinstance(model, Model) or model.q is None:
        return None
    inputs = inputs_for(recipe, model, data, split)
    is_bits = len(inputs) == 1 and isinstance(inputs[0], Tensor) and bool(((inputs[0] == 0) | (inputs[0] == 1)).all())
    return inputs[0].flatten(1).cpu() if is_bits else None
