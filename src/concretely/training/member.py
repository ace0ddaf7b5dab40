"""Members, runs that can be trained as one program: what each is, and in what they may differ.

No torch is needed to tell.
"""

from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from .recipe import Recipe

OF_DATA = ("data", "binarize", "train_on")
"""The keys of a recipe that say what it is trained on."""
DIFFERENT = (*OF_DATA, "lr", "weight_decay", "temperature", "prior_temperature", "seed")
"""The keys of a recipe in which members may differ."""

DataKey = tuple[str | int, ...]


class Member(NamedTuple):
    """A run of several."""

    recipe: Recipe
    folder: Path


def alike(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes can be those of members of one program."""
    return all(
        getattr(one, field.name) == getattr(other, field.name) for field in fields(one) if field.name not in DIFFERENT
    )


def data_key(recipe: Recipe) -> DataKey:
    """What is the same for recipes that share their data."""
    return recipe.width, *(getattr(recipe, name) for name in OF_DATA)
