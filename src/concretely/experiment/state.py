"""What the folders of members hold: how far each run is, its record, and whether it can go on."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..data import Bits, Dataset
from ..training.recipe import FILE, Member, Recipe, data_key
from ..training.run import Run, data_of, load_recipe, restored
from ..training.train_state import TrainState
from .record import FILE as RECORD
from .record import read_record, recipe_settings

DIVERGED = "diverged.txt"
"""The file that a diverged run leaves; the run is not tried again."""

DataOf = Callable[[Recipe], Dataset]
"""Returns the data set of a recipe."""


def last_run(folder: Path) -> Run | None:
    """Return the run at the last checkpoint in a folder, or None if there is no checkpoint."""
    return restored(folder)[0] if any(folder.glob("checkpoint-*.json")) else None


def has_diverged(member: Member) -> bool:
    """Return whether training has diverged."""
    return (member.folder / DIVERGED).exists()


def is_settled(member: Member) -> bool:
    """Return whether there is nothing left to train: the run is finished, or has diverged."""
    if has_diverged(member):
        return True
    run = last_run(member.folder)
    return run is not None and ((run.finished and run.recipe == member.recipe) or run.step >= member.recipe.steps)


def current_record(member: Member) -> dict[str, Any] | None:
    """Return the record of a member, or None if there is none of the model at its last checkpoint."""
    run, path = last_run(member.folder), member.folder / RECORD
    if run is None or not path.exists():
        return None
    found = read_record(path)
    return found if found["recipe"] == recipe_settings(run.recipe) and found.get("step") == run.chosen else None


def load_data(recipes: Sequence[Recipe], *, points: int | None = None, progress: bool = False) -> DataOf:
    """Load the data of recipes, each data set once, and return the function that looks them up.

    With `points`, splits have at most so many points, evenly spaced, since they may be sorted.
    """

    def few(bits: Bits) -> Bits:
        return bits if points is None else Bits(bits.packed[:: max(1, len(bits) // points)][:points], bits.width)

    found = {}
    for recipe in {data_key(recipe): recipe for recipe in recipes}.values():
        data = data_of(recipe, progress=progress)
        found[data_key(recipe)] = replace(data, train=few(data.train), valid=few(data.valid), test=few(data.test))
    return lambda recipe: found[data_key(recipe)]


def require_trainable(members: Sequence[Member], *, longer: bool = False) -> None:
    """Raise an error if two members share a folder, or if a folder holds a run that the recipe cannot go on with.

    With `longer`, a folder may hold a run with more steps than the recipe.
    """
    names = [member.folder.name for member in members]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"members must differ from each other, got {twice} twice")
    for recipe, folder in members:
        if not (folder / FILE).exists():
            continue
        was = load_recipe(folder)
        grows = recipe.lr_schedule == "constant"  # other schedules depend on the last step
        if was != (replace(recipe, steps=was.steps) if grows else recipe):
            changed = [name for name, value in recipe.settings.items() if was.settings.get(name) != value]
            raise ValueError(f"{str(folder)!r} holds a run with another {', '.join(changed)}: choose another folder")
        run = None if longer else last_run(folder)
        if run is not None and run.step > recipe.steps:
            raise ValueError(
                f"steps must be at least {run.step:,}, which the run in {str(folder)!r} has taken, "
                f"got {recipe.steps:,}: choose another folder"
            )


def check_step(recipe: Recipe, data: Dataset, *, device: torch.device | str) -> None:
    """Run one step without an update, so that bad input raises before anything is written."""
    TrainState(recipe, data, device=device).dry_run()
