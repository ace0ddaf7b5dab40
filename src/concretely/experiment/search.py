"""Lists of runs, and grid search: train and score every recipe, and select the best on the validation set."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..file import read_bytes, writable_dir, write_text
from ..training.own_recipe import RunRecipe
from ..training.own_resolve import resolve_recipe
from ..training.recipe import FILE, OF_DATA, Member, section_settings
from ..training.train_state import TrainState
from .grid import differing_keys, expand_grid, keys_of, recipe_names
from .record import score_key, validation_nll, write_record
from .scheduler import DIVERGED, Monitor, load_data, require_trainable, score_member, train_members
from .scoring import Precision

PAPER_GRID = {"lr": "1e-4,3e-4,1e-3", "weight_decay": "0,1e-2,1e-1,1"}
"""The grid from which the paper selected hyperparameters [maddison2017concrete, appendix D.5]."""
SWEEP, BEST = "sweep.json", "best.toml"
MOST = 2**16
"""The maximum number of bytes of the file that a diverged run leaves."""


class ScoredMember(NamedTuple):
    """A member and its record, or None if it has diverged."""

    member: Member
    record: Mapping[str, Any] | None


@dataclass(frozen=True)
class Sweep:
    """The members of a grid search, with the best on the validation set first."""

    ranked: Sequence[ScoredMember]
    folder: Path

    @property
    def best(self) -> Member | None:
        """The selected member, or None if all have diverged."""
        member, record = self.ranked[0]
        return member if math.isfinite(validation_nll(record)) else None


def train_list(
    recipes: Sequence[RunRecipe],
    folder: str | Path,
    *,
    samples: int = 100,
    device: torch.device | str = "cpu",
    checkpoint_seconds: float = 60.0,
    max_bytes: int | None = None,
    monitor: Monitor = Monitor(),  # noqa: B008 (frozen)
) -> list[ScoredMember]:
    """Train recipes as one program where possible, each in a subfolder, and score them on the test set.

    Another call continues where the last one stopped. Raise KeyboardInterrupt if the monitor stops it.

    >>> from tempfile import mkdtemp
    >>> recipes = [resolve_recipe(notation="2H-64V", steps=2, seed=seed) for seed in range(2)]
    >>> [member.folder.name for member, _ in train_list(recipes, Path(mkdtemp()), samples=1)]
    ['seed=0', 'seed=1']
    """
    folder = Path(folder)
    if (folder / FILE).exists():
        raise ValueError(f"{str(folder)!r} holds a run already: resume it, or choose another folder")
    keys = differing_keys(recipes) or keys_of(recipes[0])
    how: dict[str, Any] = {"samples": samples, "device": device, "seconds": checkpoint_seconds, "monitor": monitor}
    how |= {"max_bytes": max_bytes}
    return _train(recipes, folder, keys=keys, split="test", **how)


def sweep_recipes(**given: Any) -> list[RunRecipe]:
    """Return the recipes of a grid. Learning rates and weight decays that are not given are those of the paper.

    A model of one's own has no weight decay, and learning rates only if no arguments of its builder are given.

    >>> len(sweep_recipes(notation="2H-64V", lr="1e-3,1e-2"))
    8
    """
    if given.get("model") is not None:
        defaults = {"lr": PAPER_GRID["lr"]} if not given.get("arguments") else {}
    else:
        said = section_settings(given)
        defaults = {key: values for key, values in PAPER_GRID.items() if key not in said}
    return [resolve_recipe(**choice) for choice in expand_grid({**defaults, **given})]


def sweep(
    recipes: Sequence[RunRecipe],
    folder: str | Path,
    *,
    samples: int = 100,
    device: torch.device | str = "cpu",
    checkpoint_seconds: float = 60.0,
    max_bytes: int | None = None,
    monitor: Monitor = Monitor(),  # noqa: B008 (frozen)
) -> Sweep:
    """Train recipes, rank them by the likelihood of the validation set, and write `sweep.json` and `best.toml`.

    Another call continues where the last one stopped. Raise KeyboardInterrupt if the monitor stops it.

    >>> from tempfile import mkdtemp
    >>> recipes = sweep_recipes(notation="2H-64V", steps=2, lr="1e-3,1e-2", weight_decay=0)
    >>> found = sweep(recipes, Path(mkdtemp()), samples=1)
    >>> len(found.ranked), found.best == found.ranked[0].member
    (2, True)
    """
    for name in OF_DATA:
        values = dict.fromkeys(recipe.settings.get(name, "") for recipe in recipes)
        if len(values) > 1:
            raise ValueError(f"{name} must have one value, as one member is selected, got {','.join(values)!r}")
    if getattr(recipes[0], "train_on", "train") != "train":
        raise ValueError("train_on must be 'train', as members are selected on the validation set, got 'whole'")
    folder = Path(folder)
    how: dict[str, Any] = {"samples": samples, "device": device, "seconds": checkpoint_seconds, "monitor": monitor}
    how |= {"max_bytes": max_bytes}
    keys = [name for name in keys_of(recipes[0]) if name not in OF_DATA]
    found = _train(recipes, folder, keys=keys, split="valid", **how)
    result = Sweep(sorted(found, key=lambda each: validation_nll(each.record)), folder)
    best, members = result.best, [_summary(*each) for each in result.ranked]
    chosen = None if best is None else best.folder.name
    write_record(folder / SWEEP, {"score_samples": samples, "best": chosen, "members": members})
    if best is None:
        (folder / BEST).unlink(missing_ok=True)
    else:
        write_text(folder / BEST, best.recipe.toml())
    return result


def _train(
    recipes: Sequence[RunRecipe],
    out: Path,
    *,
    keys: Sequence[str],
    split: str,
    samples: int,
    seconds: float,
    max_bytes: int | None,
    **how: Any,
) -> list[ScoredMember]:
    """Train members in subfolders that are named by keys of their recipes, and score them on a split."""
    names, monitor = recipe_names(recipes, keys), how["monitor"]
    members = [Member(recipe, out / name) for recipe, name in zip(recipes, names, strict=True)]
    require_trainable(members)
    data = load_data(members, monitor, max_bytes=max_bytes)
    # a dry run of one member, so that bad input raises before anything is written
    TrainState.of(recipes[0], data(recipes[0]), device=how["device"]).dry_run()
    writable_dir(out)
    sources = dict.fromkeys(data(recipe).source for recipe in recipes)
    monitor.note("\n".join([f"{len(members)} members in {out}", *sources]))
    if not train_members(members, data, checkpoint_seconds=seconds, **how):
        raise KeyboardInterrupt
    wanted = {split: Precision(samples)}
    return [ScoredMember(member, score_member(member, data(member.recipe), wanted, **how)) for member in members]


def _summary(member: Member, record: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the entry of a member in `sweep.json`."""
    entry: dict[str, Any] = {"folder": member.folder.name, "recipe": member.recipe.settings}
    if record is None:
        why = read_bytes(member.folder / DIVERGED, most=MOST).decode(errors="replace").strip()
        return {**entry, "diverged": why}
    metric = record["metrics"][score_key(record["metrics"], "valid")]
    scores = {key: metric[key] for key in ("standard_error", "samples")}
    return {**entry, "nll": metric["value"], **scores, "step": record["step"], "seconds": record["seconds"]}
