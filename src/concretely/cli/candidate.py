"""Candidates for the cells of a table: runs of which the best on the validation set fills a cell."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..experiment.paper import Experiment
from ..training.member import Member
from .list import differing, named
from .member import DIVERGED, known, validation
from .terminal import refuse

GRID = ("lr", "weight_decay")
"""The keys of a recipe in which candidates differ."""
Candidates = dict[str, list[Member]]
"""Runs by the title of the cell that they may fill."""


def candidates_for(tried: Sequence[Experiment], folder: Path) -> Candidates:
    """The runs of an experiment that is tried in several ways, a folder for each."""
    found: Candidates = {}
    for cells in zip(*(each.cells for each in tried), strict=True):
        title, recipes = cells[0].title, list(dict.fromkeys(cell.recipe for cell in cells))
        if len(recipes) == 1:
            found[title] = [Member(recipes[0], folder / title)]
            continue
        if recipes[0].train_on != "train":
            key = differing(recipes)[0]
            why = "as nothing is held out to choose by: choose other cells by --data, --rows or --estimator"
            refuse(f"{key} must have one value for {title}, {why}")
        names = named(recipes, GRID)  # always by the same keys, so that a larger grid goes on with a smaller one
        found[title] = [Member(recipe, folder / f"{title},{name}") for recipe, name in zip(recipes, names, strict=True)]
    return found


def best(members: Sequence[Member]) -> Member:
    """That of several candidates which is taken; one that has diverged is, if all have."""
    return min(members, key=_validation)


def choices_made(candidates: Candidates) -> Iterator[str]:
    """A sentence about every cell that had several candidates, unless all have diverged."""
    for title, members in candidates.items():
        taken = best(members)
        if len(members) > 1 and _validation(taken) < math.inf:
            yield f"{taken.folder.name} is the best of {len(members)} for {title} on the validation set"


def _validation(member: Member) -> float:
    return math.inf if (member.folder / DIVERGED).exists() else validation(known(member))
