"""Lists of runs, and grid search: train and score every recipe, and select the best on the validation set."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..file import file_lock, read_bytes, writable_dir, write_text
from ..training.builder import require_separate
from ..training.own_method import own_model
from ..training.own_recipe import OwnRecipe, RunRecipe
from ..training.own_resolve import remove_runs, resolve_recipe
from ..training.recipe import FILE, OF_DATA, Member, section_settings
from ..training.train_state import TrainState
from .grid import expand_grid, list_names, sweep_names
from .halving import ScoreRung, plan_rungs
from .place import Place, opened
from .record import finite_or_none, read_checked, score_key, validation_nll, write_record
from .scheduler import (
    DIVERGED,
    Monitor,
    current_record,
    has_diverged,
    is_settled,
    last_run,
    load_data,
    require_trainable,
)
from .scoring import Precision, require_scorable
from .subject import data_name, program_of, scored_split
from .work import Score, ScoreSplits, Work

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
    stopped: Sequence[Member] = ()
    """The members that halving has stopped before their last step. They rank after those trained to the end."""
    saved: str = ""
    """A sentence about the steps that halving has saved, if there was any."""

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
    on: str | Place = "here",
    checkpoint_seconds: float = 60.0,
    max_bytes: int | None = None,
    overwrite: bool = False,
    monitor: Monitor = Monitor(),  # noqa: B008 (frozen)
) -> list[ScoredMember]:
    """Train recipes as one program where possible, each in a subfolder, and score them on the test set.

    Where data have no test set, they are scored on the validation set. Another call continues where the last one
    stopped, or with `overwrite` starts again. Raise KeyboardInterrupt if the monitor stops it. With `on="share"`, calls
    in several processes share the work.

    >>> from tempfile import mkdtemp
    >>> recipes = [resolve_recipe(notation="2H-64V", steps=2, seed=seed) for seed in range(2)]
    >>> [member.folder.name for member, _ in train_list(recipes, Path(mkdtemp()), samples=1)]
    ['seed=0', 'seed=1']
    """
    folder = Path(folder)
    if (folder / FILE).exists() and not overwrite:
        raise ValueError(f"{str(folder)!r} holds a run already: resume it, or choose another folder")
    how: dict[str, Any] = {"device": device, "checkpoint_seconds": checkpoint_seconds, "max_bytes": max_bytes}
    members, how["overwrite"] = _members(recipes, folder, list_names(recipes)), overwrite
    return _train(members, folder, on, ScoreSplits({"test": Precision(samples)}), monitor=monitor, **how)


def sweep_recipes(**given: Any) -> list[RunRecipe]:
    """Return the recipes of a grid. Learning rates and weight decays that are not given take the paper's values.

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
    on: str | Place = "here",
    halving: int | None = None,
    checkpoint_seconds: float = 60.0,
    max_bytes: int | None = None,
    monitor: Monitor = Monitor(),  # noqa: B008 (frozen)
) -> Sweep:
    """Train recipes, rank them by the likelihood of the validation set, and write `sweep.json` and `best.toml`.

    Another call continues where the last one stopped. Raise KeyboardInterrupt if the monitor stops it. With
    `on="share"`, calls in several processes share the work; with `on="ray"`, tasks of Ray do it, on GPUs if the cluster
    has any. `Share` and `Ray` have options. `halving=3` stops all but the best third of the members on the validation
    set early, several times.

    >>> from tempfile import mkdtemp
    >>> recipes = sweep_recipes(notation="2H-64V", steps=2, lr="1e-3,1e-2", weight_decay=0)
    >>> result = sweep(recipes, Path(mkdtemp()), samples=1)
    >>> len(result.ranked), result.best == result.ranked[0].member
    (2, True)
    """
    for name in OF_DATA:
        values = dict.fromkeys(recipe.settings.get(name, "") for recipe in recipes)
        if len(values) > 1:
            raise ValueError(f"{name} must have one value, as one member is selected, got {','.join(values)!r}")
    if getattr(recipes[0], "train_on", "train") != "train":
        raise ValueError("train_on must be 'train', as members are selected on the validation set, got 'whole'")
    folder = Path(folder)
    how: dict[str, Any] = {"device": device, "checkpoint_seconds": checkpoint_seconds, "max_bytes": max_bytes}
    members = _members(recipes, folder, sweep_names(recipes))
    score = ScoreSplits({"valid": Precision(samples)})
    scored = _train(members, folder, on, score, monitor=monitor, halving=halving, **how)
    stopped = [] if halving is None else [member for member in members if not is_settled(member)]
    ranked = sorted(scored, key=lambda entry: _rank(entry, stopped))
    result = Sweep(ranked, folder, stopped, "" if halving is None else _saved(scored, stopped))
    _write(result, samples)
    return result


def _members(recipes: Sequence[RunRecipe], out: Path, names: Sequence[str]) -> list[Member]:
    """Return members in subfolders with some names."""
    return [Member(recipe, out / name) for recipe, name in zip(recipes, names, strict=True)]


def _train(
    members: Sequence[Member],
    out: Path,
    on: str | Place,
    score: ScoreSplits,
    *,
    device: torch.device | str,
    monitor: Monitor,
    max_bytes: int | None,
    halving: int | None = None,
    overwrite: bool = False,
    **how: Any,
) -> list[ScoredMember]:
    """Train and score members, all of them or, with `halving`, the best of them to the end."""
    first = members[0].recipe
    rungs = [] if halving is None else plan_rungs(len(members), steps=first.steps, factor=halving)
    require_trainable(members, overwrite=overwrite)
    data = load_data(members, monitor, max_bytes=max_bytes)
    if "test" in score.wanted and any(scored_split(data(member.recipe)) != "test" for member in members):
        score = ScoreSplits({"valid": score.wanted["test"]})
    # a dry run, so that bad input raises before anything is written: of one of the paper's models, or of each builder
    tried = members if isinstance(first, OwnRecipe) else members[:1]
    for recipe in {(program_of(recipe), data_name(recipe)): recipe for recipe, _ in tried}.values():
        state = TrainState.of(recipe, data(recipe), device=device)
        state.dry_run()
        if isinstance(recipe, OwnRecipe) and len(members) > 1:
            require_separate([state.model, own_model(recipe)])
        for split, precision in score.wanted.items():
            require_scorable(recipe, state.model, data(recipe), split=split, samples=precision.samples)
    writable_dir(out)
    if overwrite:
        remove_runs(out, [member.folder for member in members])
    sources = dict.fromkeys(data(member.recipe).source for member in members)
    monitor.note("\n".join([f"{len(members)} members in {out}", *sources]))
    how |= {"device": torch.device(device), "monitor": monitor, "max_bytes": max_bytes}

    def work(members: Sequence[Member], score: Score, until: int | None = None) -> Work:
        return Work(out, [[member] for member in members], data, score, until=until, **how)

    with opened(on, out, monitor) as train:
        alive = members
        for step, kept in rungs:
            rung = ScoreRung(step, next(iter(score.wanted.values())).samples)
            if not train(work(alive, rung, until=step)):
                raise KeyboardInterrupt
            before, alive = alive, rung.best(alive, kept)
            monitor.note(f"{len(alive)} of {len(before)} members go on after step {step:,}")
        if not train(work(alive, score)):
            raise KeyboardInterrupt
    return [ScoredMember(member, None if has_diverged(member) else current_record(member)) for member in members]


def _rank(scored: ScoredMember, stopped: Sequence[Member]) -> tuple[bool, bool, float]:
    """Return a sort key: by validation, with members that halving has stopped after the others, diverged ones last."""
    value = validation_nll(scored.record)
    return not math.isfinite(value), scored.member in stopped, value


def _saved(scored: Sequence[ScoredMember], stopped: Sequence[Member]) -> str:
    """Return a sentence about the steps that members did not take because they were stopped."""
    steps = sum(member.recipe.steps for member, _ in scored)
    runs = [(member, last_run(member.folder)) for member in stopped]
    saved = sum(member.recipe.steps - run.step for member, run in runs if run is not None)
    share = f"{saved:,} of {steps:,} steps, {saved / steps:.0%}"
    return f"halving has stopped {len(stopped)} of {len(scored)} members early, which saved {share}"


def _write(result: Sweep, samples: int) -> None:
    """Write the ranking and the recipe of the best member, unless they are written already."""
    best, path = result.best, result.folder / SWEEP
    entries = [
        _summary(*entry) | ({"stopped": True} if entry.member in result.stopped else {}) for entry in result.ranked
    ]
    content = {"score_samples": samples, "best": None if best is None else best.folder.name, "members": entries}
    content |= {"halving": result.saved} if result.saved else {}
    with file_lock(result.folder / f".{SWEEP}.lock"):  # several processes may end at the same time
        if not _holds(path, content):
            write_record(path, content)
        if best is None:
            (result.folder / BEST).unlink(missing_ok=True)
        elif not _holds_text(result.folder / BEST, best.recipe.toml()):
            write_text(result.folder / BEST, best.recipe.toml())


def _holds(path: Path, content: Mapping[str, Any]) -> bool:
    """Return whether a file holds a record."""
    try:
        return bool(read_checked(path, remedy="") == json.loads(json.dumps(finite_or_none(content))))
    except (ValueError, OSError):
        return False


def _holds_text(path: Path, text: str) -> bool:
    try:
        return read_bytes(path, most=len(text.encode())) == text.encode()
    except (ValueError, OSError):
        return False


def _summary(member: Member, record: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the entry of a member in `sweep.json`."""
    entry: dict[str, Any] = {"folder": member.folder.name, "recipe": member.recipe.settings}
    if record is None:
        why = read_bytes(member.folder / DIVERGED, most=MOST).decode(errors="replace").strip()
        return {**entry, "diverged": why}
    metric = record["metrics"][score_key(record["metrics"], "valid")]
    scores = {key: metric[key] for key in ("standard_error", "samples")}
    return {**entry, "nll": metric["value"], **scores, "step": record["step"], "seconds": record["seconds"]}
