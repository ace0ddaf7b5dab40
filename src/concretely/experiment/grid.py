"""Grids of recipes: keys with several values, and names for the recipes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from ..training.own_recipe import OwnRecipe, RunRecipe, argument_key, flat, run_names
from ..training.own_resolve import DIFFERENT_OWN
from ..training.recipe import DIFFERENT, OF_DATA, Recipe

LARGEST_RANGE = 10_000
"""The maximum number of seeds in a range."""


def expand_grid(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every combination of the listed values. A list is text with commas, a range of seeds, or a Python list.

    >>> expand_grid({"lr": "1e-3,1e-4", "weight_decay": 0})
    [{'lr': '1e-3', 'weight_decay': 0}, {'lr': '1e-4', 'weight_decay': 0}]
    >>> [choice["seed"] for choice in expand_grid({"seed": "0..2,7"})]
    ['0', '1', '2', '7']
    """
    keys = DIFFERENT if given.get("model") is None else DIFFERENT_OWN
    lists = {name: _values(name, given[name]) for name in keys if name in given}
    arguments = {name: _values(name, value) for name, value in given.get("arguments", {}).items()}
    for name, values in (lists | arguments).items():
        if not values:
            raise ValueError(f"{name} must have at least one value, got none")
    choices = []
    for values in product(*lists.values(), *arguments.values()):
        choice = {**given, **dict(zip(lists, values, strict=False))}
        if arguments:
            choice["arguments"] = dict(zip(arguments, values[len(lists) :], strict=True))
        choices.append(choice)
    return choices


def differing_keys(recipes: Sequence[RunRecipe]) -> list[str]:
    """Return the keys in which recipes differ, among those that may have several values."""
    return [name for name in keys_of(recipes[0]) if len({str(flat(recipe).get(name)) for recipe in recipes}) > 1]


def keys_of(recipe: RunRecipe) -> tuple[str, ...]:
    """Return the keys of a recipe that may have several values, with the arguments of a builder."""
    return (*map(argument_key, recipe.arguments), *DIFFERENT_OWN) if isinstance(recipe, OwnRecipe) else DIFFERENT


def list_names(recipes: Sequence[RunRecipe]) -> list[str]:
    """Return the names of the members of a list, from the keys in which they differ."""
    return run_names(recipes, differing_keys(recipes) or keys_of(recipes[0]))


def sweep_names(recipes: Sequence[RunRecipe]) -> list[str]:
    """Return the names of the members of a sweep, from all keys that may have several values."""
    return run_names(recipes, [name for name in keys_of(recipes[0]) if name not in OF_DATA])


def grid_title(recipes: Sequence[RunRecipe]) -> str:
    """Return a common name for the recipes of a grid."""
    first = recipes[0]
    if isinstance(first, OwnRecipe):
        differing = differing_keys(recipes)
        kept = {name: value for name, value in first.arguments.items() if argument_key(name) not in differing}
        return replace(first, arguments=kept).title.rpartition("-seed")[0]
    assert isinstance(first, Recipe)
    if "data" in differing_keys(recipes):
        return f"{first.notation}-{first.estimator}-m{first.samples}"
    return first.title.rpartition("-seed")[0]


def _values(name: str, value: Any) -> list[Any]:
    """Return the list of values of a key. Seeds may be ranges such as 0..7."""
    if isinstance(value, list):
        return value
    if not isinstance(value, str) or (name == "data" and Path(value).exists()):  # a path may contain commas
        return [value]
    values = list[str]()
    for text in map(str.strip, value.split(",")):
        first, dots, last = text.partition("..")
        if not dots or name != "seed":
            values.append(text)
            continue
        if not (first.isdecimal() and last.isdecimal()):
            raise ValueError(f"seed must be a number, or a range such as 0..7, got {text!r}")
        if not int(first) <= int(last) < int(first) + LARGEST_RANGE:
            raise ValueError(f"a range of seeds must be ascending, with at most {LARGEST_RANGE:,} seeds, got {text!r}")
        values += map(str, range(int(first), int(last) + 1))
    return values
