"""Grids: recipes from keys with several values, and names for them."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from ..training.recipe import DIFFERENT, Recipe

LARGEST_RANGE = 10_000
"""The most seeds in a range."""


def expand_grid(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every combination of the listed values. A list is text with commas, a range of seeds, or a Python list.

    >>> expand_grid({"lr": "1e-3,1e-4", "weight_decay": 0})
    [{'lr': '1e-3', 'weight_decay': 0}, {'lr': '1e-4', 'weight_decay': 0}]
    >>> [choice["seed"] for choice in expand_grid({"seed": "0..2,7"})]
    ['0', '1', '2', '7']
    """
    lists = {name: _values(name, given[name]) for name in DIFFERENT if name in given}
    for name, values in lists.items():
        if not values:
            raise ValueError(f"{name} must have at least one value, got none")
    return [{**given, **dict(zip(lists, values, strict=True))} for values in product(*lists.values())]


def differing_keys(recipes: Sequence[Recipe]) -> list[str]:
    """Return the keys in which recipes differ, among those that may have several values."""
    return [name for name in DIFFERENT if len({recipe.settings.get(name) for recipe in recipes}) > 1]


def recipe_names(recipes: Sequence[Recipe], keys: Sequence[str]) -> list[str]:
    """Return names made of some keys of the recipes, with all digits only if the short names are not unique."""
    short = [_name(recipe, keys, digits=False) for recipe in recipes]
    return short if len(set(short)) == len(recipes) else [_name(each, keys, digits=True) for each in recipes]


def grid_title(recipes: Sequence[Recipe]) -> str:
    """Return a name for recipes that differ only in keys with several values."""
    first = recipes[0]
    if "data" in differing_keys(recipes):
        return f"{first.notation}-{first.estimator}-m{first.samples}"
    return first.title.rpartition("-seed")[0]


def format_setting(value: Any) -> str:
    """Format the value of a key in few characters."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _name(recipe: Recipe, keys: Sequence[str], *, digits: bool) -> str:
    values = ((name, recipe.settings.get(name)) for name in keys)
    text = ",".join(
        f"{name}={str(value) if digits else format_setting(value)}" for name, value in values if value is not None
    )
    return text.replace(":", "x").replace("/", "_")


def _values(name: str, value: Any) -> list[Any]:
    if isinstance(value, str) and name == "data" and Path(value).exists():
        return [value]  # a path, which may contain commas
    if isinstance(value, str):
        return [entry for part in value.split(",") for entry in _range(name, part.strip())]
    return value if isinstance(value, list) else [value]


def _range(name: str, text: str) -> list[str]:
    """Return the numbers of a range of seeds such as 0..7, or the text itself if it is not a range."""
    first, dots, last = text.partition("..")
    if not dots or name != "seed":
        return [text]
    if not (first.isdecimal() and last.isdecimal()):
        raise ValueError(f"seed must be a number, or a range such as 0..7, got {text!r}")
    if not int(first) <= int(last) < int(first) + LARGEST_RANGE:
        raise ValueError(f"a range of seeds must be ascending, with at most {LARGEST_RANGE:,} seeds, got {text!r}")
    return [str(number) for number in range(int(first), int(last) + 1)]
