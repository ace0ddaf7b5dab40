"""Names of the default folders of runs and grids, which tell apart those with other settings."""

import re
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path

from ..spelling import format_setting
from ..training.folder import load_recipe
from ..training.own_recipe import OwnRecipe, RunRecipe, changed_settings, flat
from ..training.recipe import FILE
from .grid import grid_title, list_names, sweep_names

HERE = "."
"""The name of a single run in its folder."""
STEPS = ",steps="
"""In the name of a folder, says that its runs have so many steps and no more."""


def train_folder(recipes: Sequence[RunRecipe], root: Path) -> Path:
    """Return the default folder of a run, or of a list of runs, inside of another one."""
    if len(recipes) == 1:
        return _folder(root / recipes[0].title, {HERE: recipes[0]})
    return _folder(root / grid_title(recipes), dict(zip(list_names(recipes), recipes, strict=True)))


def sweep_folder(recipes: Sequence[RunRecipe], root: Path) -> Path:
    """Return the default folder of a sweep inside of another one."""
    return _folder(root / grid_title(recipes), dict(zip(sweep_names(recipes), recipes, strict=True)))


def _folder(folder: Path, members: Mapping[str, RunRecipe]) -> Path:
    """Return the folder whose runs have the settings of members by their names in it, or else one without runs.

    If a folder has runs with other settings, those are added to its name. As these runs may since have gone on to more
    steps, the folders that were named in this way are searched first.
    """
    for place in (folder, *sorted(folder.parent.glob(f"{escape(folder.name)},*/"))):
        if _difference(place, members) == "":
            return place
    while text := _difference(folder, members):
        folder = folder.with_name(re.sub(r"[^\w.,=+~-]", "_", f"{folder.name},{text}"))
    return folder


def _difference(folder: Path, members: Mapping[str, RunRecipe]) -> str | None:
    """Return the settings in which members differ from the runs in a folder, or None if it has no runs."""
    (name, first), text = next(iter(members.items())), None
    for path in sorted(folder.glob(FILE if name == HERE else f"*/{FILE}")):
        try:
            was = load_recipe(path.parent)
        except ValueError:  # training says what is wrong with it
            continue
        beside = HERE if name == HERE else path.parent.name
        recipe = members.get(beside, first)
        named = set() if beside in members else {*_keys(beside), *_keys(name)}
        changed = _changed(recipe, was, may_go_on=STEPS not in folder.name)
        if changed := [key for key in changed if key not in named]:
            now = flat(recipe)
            return ",".join(f"{key}={format_setting(now.get(key, 'none'))}" for key in changed).replace(":", "x")
        text = ""
    return text


def _keys(name: str) -> list[str]:
    """Return the keys whose values the name of a member has."""
    return [part.partition("=")[0] for part in name.split(",")]


def _changed(recipe: RunRecipe, was: RunRecipe, *, may_go_on: bool) -> list[str]:
    """Return the names of the settings, and of the arguments of a builder, that make a recipe another run.

    More steps do not if the run `may_go_on`.
    """
    goes_on = {
        "arguments": True,  # each is a setting of its own
        "steps": may_go_on and recipe.lr_schedule == "constant" and recipe.steps > was.steps,
        "data": isinstance(recipe, OwnRecipe) and not _is_other_file(Path(str(was.data)), Path(str(recipe.data))),
    }
    return [name for name in changed_settings(flat(recipe), flat(was)) if not goes_on.get(name, False)]


def _is_other_file(before: Path, now: Path) -> bool:
    return before.exists() and before.resolve() != now.resolve()
