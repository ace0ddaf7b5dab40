"""Flags with several values: the recipes that they mean, and what each is called."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from ..training.member import DIFFERENT
from ..training.recipe import Recipe

MOST = 10_000
"""The most seeds of a range."""


def choices(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of the values in lists, which are texts with commas, ranges such as 0..7, or lists of TOML.

    >>> choices({"lr": "1e-3,1e-4", "weight_decay": 0})
    [{'lr': '1e-3', 'weight_decay': 0}, {'lr': '1e-4', 'weight_decay': 0}]
    >>> [choice["seed"] for choice in choices({"seed": "0..2,7"})]
    ['0', '1', '2', '7']
    """
    lists = {name: _entries(name, given[name]) for name in DIFFERENT if name in given}
    for name, values in lists.items():
        if not values:
            raise ValueError(f"{name} must have at least one value, got none")
    return [{**given, **dict(zip(lists, values, strict=True))} for values in product(*lists.values())]


def differing(recipes: Sequence[Recipe]) -> list[str]:
    """The keys in which recipes differ, of those that may have several values."""
    return [name for name in DIFFERENT if len({recipe.settings.get(name) for recipe in recipes}) > 1]


def named(recipes: Sequence[Recipe], keys: Sequence[str]) -> list[str]:
    """Names for recipes, made of some of their keys; numbers have all their digits where fewer would not do."""
    brief_names = [_named(recipe, keys, brief) for recipe in recipes]
    return brief_names if len(set(brief_names)) == len(recipes) else [_named(each, keys, str) for each in recipes]


def _named(recipe: Recipe, keys: Sequence[str], shown: Callable[[Any], str]) -> str:
    values = ((name, recipe.settings.get(name)) for name in keys)
    text = ",".join(f"{name}={shown(value)}" for name, value in values if value is not None)
    return text.replace(":", "x").replace("/", "_")


def title(recipes: Sequence[Recipe]) -> str:
    """A name for recipes that have the same but for what may have several values."""
    first = recipes[0]
    if "data" in differing(recipes):
        return f"{first.notation}-{first.estimator}-m{first.samples}"
    return first.title.rpartition("-seed")[0]


def brief(value: Any) -> str:
    """A value in few characters."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _entries(name: str, value: Any) -> list[Any]:
    if isinstance(value, str) and name == "data" and Path(value).exists():
        return [value]  # whose name may have commas
    if isinstance(value, str):
        return [entry for part in value.split(",") for entry in _range(name, part.strip())]
    return value if isinstance(value, list) else [value]


def _range(name: str, text: str) -> list[str]:
    """The whole numbers of a range, or the text itself if it is none."""
    first, dots, last = text.partition("..")
    if not dots or name != "seed":
        return [text]
    if not (first.isdecimal() and last.isdecimal()):
        raise ValueError(f"seed must be a number, or a range such as 0..7, got {text!r}")
    if not int(first) <= int(last) < int(first) + MOST:
        raise ValueError(f"a range of seeds must rise, and have at most {MOST:,} of them, got {text!r}")
    return [str(number) for number in range(int(first), int(last) + 1)]
