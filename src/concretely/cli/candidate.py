"""Candidates for the cells of a table: runs of which the best on the validation set fills a cell."""

import math
from collections.abc import Sequence
from pathlib import Path

from ..recipe import Experiment
from ..training.member import Member
from .list import differing, named
from .member import DIVERGED, known, require_different, validation
from .terminal import refuse

Candidates = dict[str, list[Member]]
"""Runs by the title of the cell that they may fill."""


def candidates_for(tried: Sequence[Experiment], folder: Path) -> Candidates:
    """The runs of an experiment that is tried in several ways, a folder for each."""
    found: Candidates = {}
    for cells in zip(*(each.cells for each in tried), strict=True):
        title, recipes = cells[0].title, [cell.recipe for cell in cells]
        keys = differing(recipes)
        if not keys:
            found[title] = [Member(recipes[0], folder / title)]
            continue
        if recipes[0].train_on != "train":
            refuse(f"{keys[0]} must have one value for {title}, as nothing is held out to choose by: leave it out")
        folders = [folder / f"{title},{name}" for name in named(recipes, keys)]
        found[title] = [Member(*each) for each in zip(recipes, folders, strict=True)]
        require_different(found[title])
    return found


def best(members: Sequence[Member]) -> Member:
    """That of several candidates which is taken; one that has diverged is, if all have."""
    return min(members, key=_validation)


def _validation(member: Member) -> float:
    return math.inf if (member.folder / DIVERGED).exists() else validation(known(member))
