"""Reproduce a table or figure of the paper: plan the runs for its cells, then train and score the missing ones."""

import math
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ..data import Dataset
from ..file import writable_dir
from ..spelling import did_you_mean
from ..training.folder import restored
from ..training.own_recipe import run_names
from ..training.recipe import OF_DATA, Member, Recipe, overridden, read, resolve
from ..training.section import WHEN, sections
from . import scheduler, scoring
from .grid import differing_keys, expand_grid
from .paper import RUNS, SPLITS, Cell, CellResult, Experiment, load_experiment
from .place import Place, opened
from .record import validation_nll
from .scheduler import DataOf, Monitor
from .scoring import Precision
from .work import Bundle, Work

GPU_PROGRAMS = 4
"""The default number of programs (groups of runs) that share a GPU. A single one leaves parts of it idle."""
SMOKE_STEPS, SMOKE_SAMPLES, SMOKE_POINTS = 20, 10, 128
"""The numbers of steps, samples and data points of a smoke test."""
VALIDATION_SAMPLES = 1_000
"""The maximum number of samples for comparing candidates on the validation set."""
NAME_KEYS = ("lr", "weight_decay")
"""The keys of a recipe in the folder names of candidates."""
CELL_KEYS = (*OF_DATA, "notation", "arity", "estimator", "samples", "temperature", "prior_temperature", "seed")
"""The keys of a recipe that define a cell. They must not be changed."""


@dataclass(frozen=True)
class Plan:
    """An experiment or some of its cells, the candidates for each cell, and the folder of their runs."""

    experiment: Experiment
    candidates: Mapping[str, Sequence[Member]]
    """The candidate runs by the title of their cell. The best on the validation set is used for the cell."""
    folder: Path
    smoke: bool = False

    @property
    def members(self) -> list[Member]:
        """All candidates of all cells."""
        return list(chain(*self.candidates.values()))


@dataclass(frozen=True)
class Reproduction:
    """The result of every cell, and whether all cells were trained and scored."""

    results: Sequence[CellResult]
    complete: bool
    selections: Sequence[str]
    """A sentence about the selection in every cell with several candidates, unless some are missing or all diverged."""


@dataclass(frozen=True)
class ScoreCell:
    """Scores the candidates for a cell on the validation set, and the best of them on the other splits."""

    samples: int
    full_points: int | None
    """The number of training points that are scored with all samples, by default all."""
    relaxed: bool
    """Whether to score the objective of the relaxed graph too."""

    def __call__(self, bundle: Bundle, data: DataOf, *, device: torch.device | str, monitor: Monitor) -> None:
        """Score the candidates as far as that is not done."""
        for member in bundle if len(bundle) > 1 else ():
            scheduler.score_member(member, data(member.recipe), self._valid, device=device, monitor=monitor)
        best = _best(bundle)
        bits = data(best.recipe)
        record = scheduler.score_member(best, bits, self._wanted(best), device=device, monitor=monitor)
        if record is not None and self.relaxed:
            _score_relaxed(best, record, bits, device=device, stop=monitor.stop)

    def is_done(self, bundle: Bundle) -> bool:
        """Return False, as only checkpoints tell whether records are current."""
        return False

    def is_scored(self, bundle: Bundle) -> bool:
        """Return whether the candidates and the best of them have their scores."""
        if len(bundle) > 1 and not all(scheduler.is_scored(member, self._valid) for member in bundle):
            return False
        best = _best(bundle)
        record = None if scheduler.has_diverged(best) else scheduler.current_record(best)
        return scheduler.is_scored(best, self._wanted(best)) and (
            record is None or not self.relaxed or not _missing_relaxed(record["metrics"])
        )

    @property
    def _valid(self) -> dict[str, Precision]:
        return {"valid": Precision(min(self.samples, VALIDATION_SAMPLES))}

    def _wanted(self, best: Member) -> dict[str, Precision]:
        """Return the scores of the best candidate."""
        others = {"test": Precision(self.samples), "train": Precision(self.samples, self.full_points)}
        return (self._valid if best.recipe.train_on == "train" else {}) | others


def plan_experiment(
    name: str,
    *,
    only: Mapping[str, Collection[str]] = MappingProxyType({}),
    recipe: str | Path | None = None,
    changes: Mapping[str, Any] = MappingProxyType({}),
    folder: str | Path | None = None,
    score_samples: int | None = None,
    smoke: bool = False,
) -> Plan:
    """Plan an experiment or some of its cells, selected by `rows`, `data`, `samples` and `estimator`.

    The keys of a TOML file `recipe`, and then `changes`, replace the keys of the recipes of all cells. Learning rates
    and weight decays may be lists; then every cell has several candidates. A `smoke` test takes few steps, samples and
    data points.

    >>> only = {"rows": ["4-ary"], "data": ["mnist"], "samples": ["1"]}
    >>> plan = plan_experiment("table-3", only=only, changes={"lr": "1e-3,1e-2"})
    >>> len(plan.experiment.cells), len(plan.members)
    (2, 4)
    """
    if smoke:
        changes = {"steps": SMOKE_STEPS, **changes}
    every = load_experiment(name).cells
    for key, entries in only.items():
        known = {answer for cell in every for answer in _answers(cell, key)}
        for entry in sorted(set(entries) - known):
            kind = "row" if key == "rows" else key
            raise ValueError(f"unknown {kind} {entry!r} in {name}{did_you_mean(entry, known)}")
    variants = [
        load_experiment(name, lambda cell: all(_answers(cell, key) & set(only[key]) for key in only), **change)
        for change in _variants(None if recipe is None else Path(recipe), changes)
    ]
    chosen, folder = variants[0], RUNS / name if folder is None else Path(folder)
    if not chosen.cells:
        got = " and ".join(f"{key} {','.join(entries)}" for key, entries in only.items())
        raise ValueError(f"{name} has no cell with {got}")
    if smoke:
        chosen, folder = replace(chosen, score_samples=min(SMOKE_SAMPLES, chosen.score_samples)), folder / "smoke"
    if score_samples is not None:
        chosen = replace(chosen, score_samples=score_samples)
    return Plan(chosen, _candidates(variants, folder), folder, smoke)


def reproduce(
    plan: Plan,
    *,
    device: torch.device | str = "cpu",
    on: str | Place = "here",
    programs: int | None = None,
    full_points: int | None = None,
    monitor: Monitor = Monitor(),  # noqa: B008 (frozen)
) -> Reproduction:
    """Train and score the members of a plan that are missing, and return the result of every cell.

    Of several candidates for a cell, the best on the validation set is scored. `programs` is the number of groups of
    runs that share the device, by default 4 on a GPU and 1 elsewhere. `full_points` is the number of training points
    that are scored with all samples. If the monitor stops the work, the result is incomplete; call again to continue.
    With `on="share"`, calls in several processes share the work; with `on="ray"`, tasks of Ray do it.
    """
    device = torch.device(device)
    scheduler.require_trainable(plan.members, longer=True)
    points = SMOKE_POINTS if plan.smoke else None
    data = scheduler.load_data(plan.members, monitor, points=points)
    writable_dir(plan.folder)
    score = ScoreCell(plan.experiment.score_samples, full_points, relaxed=plan.experiment.figure == "temperature")
    programs = programs or (GPU_PROGRAMS if device.type == "cuda" else 1)
    how: dict[str, Any] = {"device": device, "monitor": monitor, "programs": programs, "points": points}
    complete = False
    with suppress(KeyboardInterrupt), opened(on, plan.folder, monitor) as train:
        complete = train(Work(plan.folder, [*plan.candidates.values()], data, score, **how))
    selections = [
        f"{best.folder.name} is the best of {len(members)} for {title} on the validation set"
        for title, members in plan.candidates.items()
        if complete and len(members) > 1 and _validation_nll(best := _best(members)) < math.inf
    ]
    return Reproduction(_cell_results(plan), complete, selections)


def _cell_results(plan: Plan) -> list[CellResult]:
    """Return the result of every cell of a plan, as far as it is known."""
    results = []
    for cell in plan.experiment.cells:
        members = plan.candidates[cell.title]
        best, diverged = _best(members), all(map(scheduler.has_diverged, members))
        record = scheduler.current_record(best) if scheduler.is_settled(best) and not diverged else None
        results.append(CellResult(cell, record, diverged))
    return results


def train_command(recipe: Recipe, out: Path, **others: Any) -> str:
    """Return the command that trains a recipe in a folder. `others` are further flags; flags that are None are omitted.

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


def _variants(recipe: Path | None, changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every combination of changes to the recipes of cells; raise if they change a key that defines a cell."""
    given = {} if recipe is None else read(recipe)
    for part in (given, *(section.settings for section in sections(given.get(WHEN, {})))):
        if key := next((key for key in CELL_KEYS if key in part), None):
            raise ValueError(f"recipe must leave {key} to the cells, got {part[key]!r} in {str(recipe)!r}")
    return expand_grid(overridden(given, changes))


def _candidates(variants: Sequence[Experiment], folder: Path) -> dict[str, list[Member]]:
    """Return the members for every cell, one for each different recipe of its variants."""
    candidates = dict[str, list[Member]]()
    for cells in zip(*(variant.cells for variant in variants), strict=True):
        title, recipes = cells[0].title, list(dict.fromkeys(cell.recipe for cell in cells))
        names = [title]
        if len(recipes) > 1:
            if recipes[0].train_on != "train":
                key = differing_keys(recipes)[0]
                why = "as it has no validation set to select on: choose other cells by data, rows or estimator"
                raise ValueError(f"{key} must have one value for {title}, {why}")
            # the same keys for every grid, so that grids share runs
            names = [f"{title},{name}" for name in run_names(recipes, NAME_KEYS)]
        candidates[title] = [Member(recipe, folder / name) for recipe, name in zip(recipes, names, strict=True)]
    return candidates


def _best(members: Sequence[Member]) -> Member:
    """Return the member with the lowest validation NLL. A member without one counts as infinite."""
    return min(members, key=_validation_nll)


def _validation_nll(member: Member) -> float:
    return math.inf if scheduler.has_diverged(member) else validation_nll(scheduler.current_record(member))


def _answers(cell: Cell, key: str) -> set[str]:
    """Return the values by which a cell can be selected."""
    if key == "rows":
        return {cell.row, cell.recipe.notation}
    return {str(getattr(cell.recipe, key)), *([cell.heading] if key == "estimator" else [])}


def _score_relaxed(
    member: Member, record: Mapping[str, Any], data: Dataset, *, device: torch.device | str, stop: Callable[[], bool]
) -> None:
    """Add the objective of the relaxed graph to a record, estimated with as many samples as the NLL."""
    metrics, new = record["metrics"], dict[str, dict[str, Any]]()
    samples = {split: metrics[f"{split}_nll"]["samples"] for split in SPLITS}
    if missing := _missing_relaxed(metrics):
        run, model, _ = restored(member.folder, device=device)
        with scoring.abort_on_stop(stop, model):
            for split in missing:
                new[f"{split}_relaxed"] = scoring.relaxed_objective(
                    run.recipe, model, data, split=split, samples=samples[split], step=run.chosen
                )
        scoring.add_scores(member.folder, run, model, data=data, scores={}, others=new)


def _missing_relaxed(metrics: Mapping[str, Any]) -> list[str]:
    """Return the splits where the relaxed graph is not scored with as many samples as the discrete one."""
    return [
        split
        for split in SPLITS
        if metrics.get(f"{split}_relaxed", {}).get("samples") != metrics[f"{split}_nll"]["samples"]
    ]
