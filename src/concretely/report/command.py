"""The command line that repeats a run."""

import shlex
from pathlib import Path
from typing import Any

from ..training.recipe import Recipe, resolve


def train_command(recipe: Recipe, out: Path, **others: Any) -> str:
    """Return the command that trains a recipe in a folder; further flags that are None are left out.

    >>> train_command(resolve(notation="200H-784V", data="mnist", lr=1e-3), Path("out/run"), score_samples=100)
    'concretely train 200H-784V --data mnist --estimator concrete --samples 1 --steps 20000 --lr 0.001 --score-samples 100 --out out/run'
    """  # noqa: E501
    given = {name: recipe.settings[name] for name in ("data", "estimator", "samples", "steps")}
    defaults = resolve(notation=recipe.notation, **given).settings
    given |= {name: value for name, value in recipe.settings.items() if defaults.get(name) != value}
    words = ["concretely", "train", recipe.notation]
    for name, value in {**given, **others, "out": out}.items():
        words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)
