"""Flags with several values: the recipes that they mean, and what each is called."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from ..training.recipe import Recipe

LISTS = ("data", "lr", "weight_decay", "temperature", "prior_temperature", "seed")
"""The keys of a recipe that may have several values, so that all are trained as one program."""


def choices(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of the values in lists, which are texts with commas, ranges such as 0..7, or lists of TOML.

    >>> choices({"lr": "1e-3,1e-4", "weight_decay": 0})
    [{'lr': '1e-3', 'weight_decay': 0}, {'lr': '1e-4', 'weight_decay': 0}]
    >>> [choice["seed"] for choice in choices({"seed": "0..2,7"})]
    ['0', '1', '2', '7']
    """
    lists = {name: _entries(name, given[name]) for name in LISTS if name in given}
    for name, values in lists.items():
        if not values:
            raise ValueError(f"{name} must have at least one value, got none")
    return [{**given, **dict(zip(lists, values, strict=True))} for values in product(*lists.values())]


def differing(recipes: Sequence[Recipe]) -> list[str]:
    """The keys in which recipes differ, of those that may have several values."""
    return [name for name in LISTS if len({recipe.settings.get(name) for recipe in recipes}) > 1]


def named(recipe: Recipe, keys: Sequence[str]) -> str:
    """A name for a recipe among others, made of some of its keys."""
    values = ((name, recipe.settings.get(name)) for name in keys)
    text = ",".join(f"{name}={brief(value)}" for name, value in values if value is not None)
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
    if isinstance(value, str):
        return [entry for part in value.split(",") for entry in _range(name, part.strip())]
    return value if isinstance(value, list) else [value]


def _range(name: str, text: str) -> list[str]:
    """The whole numbers of a range, or the text itself if it is none."""
    first, dots, last = text.partition("..")
    if not dots or name != "seed":
        return [text]
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < int(first) + 10_000):
        raise ValueError(f"seed must be a number, or a range such as 0..7, got {text!r}")
    return [str(number) for number in range(int(first), int(last) + 1)]
