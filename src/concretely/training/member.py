"""Members: runs that can be trained together, and the keys in which their recipes may differ.

This module does not import torch.
"""

from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from .recipe import Recipe

OF_DATA = ("data", "binarize", "train_on")
"""The keys of a recipe that choose the data."""
DIFFERENT = (*OF_DATA, "lr", "weight_decay", "temperature", "prior_temperature", "seed")
"""The keys in which the recipes of members may differ."""


class Member(NamedTuple):
    """One of the runs that are trained together."""

    recipe: Recipe
    folder: Path


def program_key(recipe: Recipe) -> tuple[object, ...]:
    """A key that recipes have in common if their runs can be trained together."""
    return tuple(getattr(recipe, field.name) for field in fields(recipe) if field.name not in DIFFERENT)


def data_key(recipe: Recipe) -> tuple[str | int, ...]:
    """A key that recipes with the same data have in common."""
    return recipe.width, *(getattr(recipe, name) for name in OF_DATA)
