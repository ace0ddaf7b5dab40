"""The command line that repeats a run."""

import shlex
from pathlib import Path
from typing import Any

from ..training.recipe import Recipe, resolve


def train_command(recipe: Recipe, out: Path, **others: Any) -> str:
    """Return the command that trains a recipe in a folder, with further flags that are not part of the recipe.

    >>> train_command(resolve(notation="200H-784V", data="mnist", lr=1e-3), Path("out/run"), score_samples=100)
    'concretely train 200H-784V --data mnist --estimator concrete --samples 1 --steps 20000 --lr 0.001 --score-samples 100 --out out/run'
    """  # noqa: E501
    given = {name: recipe.settings[name] for name in ("data", "estimator", "samples", "steps")}
    defaults = resolve(notation=recipe.notation, **given).settings
    given |= {name: value for name, value in recipe.settings.items() if defaults.get(name) != value}
    flags = [(f"--{name.replace('_', '-')}", str(value)) for name, value in {**given, **others, "out": out}.items()]
    return shlex.join(["concretely", "train", recipe.notation, *(word for flag in flags for word in flag)])
