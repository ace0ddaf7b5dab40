"""Candidates for the cells of a table: the best on the validation set fills a cell."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..training.member import Member
from .grid import differing_keys, recipe_names
from .paper import Experiment
from .record import validation_nll
from .state import current_record, has_diverged

NAME_KEYS = ("lr", "weight_decay")
"""The keys of a recipe in the folder names of candidates."""
Candidates = Mapping[str, Sequence[Member]]
"""Members by the title of the cell that they may fill."""


def list_candidates(variants: Sequence[Experiment], folder: Path) -> Candidates:
    """Return the members for every cell of an experiment, one for each different recipe of its variants."""
    found = dict[str, list[Member]]()
    for cells in zip(*(variant.cells for variant in variants), strict=True):
        title, recipes = cells[0].title, list(dict.fromkeys(cell.recipe for cell in cells))
        if len(recipes) == 1:
            found[title] = [Member(recipes[0], folder / title)]
            continue
        if recipes[0].train_on != "train":
            key = differing_keys(recipes)[0]
            why = "as it has no validation set to select on: choose other cells by data, rows or estimator"
            raise ValueError(f"{key} must have one value for {title}, {why}")
        names = recipe_names(recipes, NAME_KEYS)  # the same keys for every grid, so that grids share runs
        found[title] = [Member(recipe, folder / f"{title},{name}") for recipe, name in zip(recipes, names, strict=True)]
    return found


def best_candidate(members: Sequence[Member]) -> Member:
    """Return the member with the lowest validation NLL; members without one come last."""
    return min(members, key=_validation_nll)


def describe_selections(candidates: Candidates) -> Iterator[str]:
    """Yield a sentence about every cell that had several candidates, unless all of them diverged."""
    for title, members in candidates.items():
        best = best_candidate(members)
        if len(members) > 1 and _validation_nll(best) < math.inf:
            yield f"{best.folder.name} is the best of {len(members)} for {title} on the validation set"


def _validation_nll(member: Member) -> float:
    return math.inf if has_diverged(member) else validation_nll(current_record(member))
