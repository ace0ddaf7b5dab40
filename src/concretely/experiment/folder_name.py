"""Names of the default folders of runs and grids, which tell apart those with other settings."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..training.folder import load_recipe
from ..training.own_recipe import OwnRecipe, RunRecipe
from ..training.recipe import FILE
from .grid import flat, format_setting, grid_title, list_names, sweep_names

HERE = "."
"""The name of a single run in its folder."""


def train_folder(recipes: Sequence[RunRecipe], root: Path) -> Path:
    """Return the default folder of a run, or of a list of runs, inside of another one."""
    if len(recipes) == 1:
        return _folder(root / recipes[0].title, {HERE: recipes[0]})
    return _folder(root / grid_title(recipes), dict(zip(list_names(recipes), recipes, strict=True)))


def sweep_folder(recipes: Sequence[RunRecipe], root: Path) -> Path:
    """Return the default folder of a sweep inside of another one."""
    return _folder(root / grid_title(recipes), dict(zip(sweep_names(recipes), recipes, strict=True)))


def _folder(folder: Path, members: Mapping[str, RunRecipe]) -> Path:
    """Return a folder of members by their names in it. If it has runs with other settings, add those to its name."""
    name, first = next(iter(members.items()))
    for path in sorted(folder.glob(FILE if name == HERE else f"*/{FILE}")):
        try:
            was = load_recipe(path.parent)
        except ValueError:  # training says what is wrong with it
            continue
        beside = HERE if name == HERE else path.parent.name
        recipe = members.get(beside, first)
        named = set() if beside in members else {*_keys(beside), *_keys(name)}
        if changed := [key for key in _changed(recipe, was) if key not in named]:
            now = flat(recipe)
            text = ",".join(f"{key}={format_setting(now.get(key, 'none'))}" for key in changed).replace(":", "x")
            return folder.with_name(re.sub(r"[^\w.,=+~-]", "_", f"{folder.name},{text}"))
    return folder


def _keys(name: str) -> list[str]:
    """Return the keys whose values the name of a member has."""
    return [part.partition("=")[0] for part in name.split(",")]


def _changed(recipe: RunRecipe, was: RunRecipe) -> list[str]:
    """Return the names of the settings, and of the arguments of a builder, that make a recipe another run."""
    now, before = flat(recipe), flat(was)
    names = [name for name in {**now, **before} if name != "arguments" and now.get(name) != before.get(name)]
    return [name for name in names if not _goes_on(recipe, name, now.get(name), before.get(name))]


def _goes_on(recipe: RunRecipe, name: str, now: Any, before: Any) -> bool:
    """Return whether a run can go on with another value of a setting: with more steps, or with data that were moved."""
    if name == "steps":
        return bool(recipe.lr_schedule == "constant" and now > before)
    return name == "data" and isinstance(recipe, OwnRecipe) and not _is_other_file(Path(before), Path(now))


def _is_other_file(before: Path, now: Path) -> bool:
    return before.exists() and before.resolve() != now.resolve()
