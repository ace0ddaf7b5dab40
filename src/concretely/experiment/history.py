"""The history of an experiment: for each cell, the records of all its runs, and the record that the report uses.

A cell is one model of a table or figure of the paper. An experiment has one JSON file, with `best` and `history` for
each cell by its title.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..file import file_lock
from ..training.paper import paper_recipe
from ..training.recipe import OF_DATA, Recipe, resolve
from .paper import SPLITS, CellResult, Experiment, cell_title
from .plan import SMOKE_POINTS
from .record import (
    FILE,
    is_corrected,
    merge_metrics,
    precision,
    read_checked,
    read_record,
    require_record,
    write_record,
)
from .scheduler import is_current, last_run

IDENTITY = ("recipe", "commit", "data", "step", "seconds")
"""The keys by which two records are known to be of the same run, which may be scored more than once."""

Record = Mapping[str, Any]


class CellHistory(NamedTuple):
    """The records of a cell, and the best of them on the validation set."""

    best: Record
    history: list[Record]
    """All records in the order in which they were added, including the best."""


def collect_records(experiment: Experiment, runs: Path, records: Path) -> tuple[int, list[str]]:
    """Add the records of finished runs in a folder to the history of an experiment.

    Return the number of runs with something new, and a sentence about every run that was left out.
    """
    new, left_out = 0, list[str]()
    paths = sorted(runs.glob(f"*/{FILE}"))
    if not paths:
        return new, left_out
    records.mkdir(parents=True, exist_ok=True)
    with file_lock(records / f".{experiment.name}.lock"):  # or two processes could overwrite each other's records
        known = read_history(experiment, records)
        for path in paths:
            try:
                metrics = read_record(path)["metrics"]
                if "valid_nll" in metrics and not any(f"{split}_nll" in metrics for split in SPLITS):
                    continue  # another candidate was selected
                title, record = _cell_record(path, experiment)
            except (ValueError, OSError) as error:
                left_out.append(f"{path.parent} is left out: {error}")
                continue
            before = known[title].history if title in known else []
            history = _added(record, before)
            if history != before:
                known[title] = CellHistory(_best(history), history)
                new += 1
        if new:
            titles = [cell.title for cell in experiment.cells]
            cells = {title: known[title]._asdict() for title in sorted(known, key=titles.index)}
            write_record(records / f"{experiment.name}.json", {"experiment": experiment.name, "cells": cells})
    return new, left_out


def read_history(experiment: Experiment, records: Path) -> dict[str, CellHistory]:
    """Read and check the history of an experiment: the cells that have records, by title."""
    path = records / f"{experiment.name}.json"
    if not path.exists():
        return {}
    remedy = "restore it, or delete it and collect the runs again with concretely reproduce --report"
    content = read_checked(path, remedy=remedy)
    try:
        cells = content["cells"].items()
        histories = {title: CellHistory(cell["best"], [*cell["history"]]) for title, cell in cells}
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"records must be those of an experiment, got others in {str(path)!r}: {remedy}") from None
    titles = {cell.title for cell in experiment.cells}
    if unknown := [title for title in histories if title not in titles]:
        raise ValueError(f"records must be of cells of {experiment.name}, got {unknown[0]!r} in {path}")
    for title, (best, history) in histories.items():
        for record in history:
            if cell_title(_require_run_record(record, path)) != title:
                raise ValueError(f"records must stand under the title of their cell, got others for {title} in {path}")
        if not history or best != _best(history):
            raise ValueError(f"records must have the best of a cell's history, got another for {title} in {path}")
    return histories


def _added(record: Record, history: list[Record]) -> list[Record]:
    """Add a record to a history; if the history has one of the same run, merge their metrics."""
    for index, other in enumerate(history):
        if all(record.get(key) == other.get(key) for key in IDENTITY):
            # of two equally precise scores the older one stays, so that the order of copies changes nothing
            both = {**record, **other, "metrics": merge_metrics(record["metrics"], other["metrics"])}
            return [*history[:index], both, *history[index + 1 :]]
    return [*history, record]


def _best(history: Sequence[Record]) -> Record:
    """Return the record with the best validation NLL, among those with the most validation samples.

    Without validations, return the last record. The test set is never used to select, since that would be biased.
    """
    scores = []
    for record in reversed(history):
        metrics = (record["metrics"].get("valid_nll", {}), record.get("valid", {}))
        if known := [(precision(metric), metric["value"]) for metric in metrics if metric.get("value") is not None]:
            scores.append((*max(known), record))
    if not scores:
        return history[-1]
    most = max(samples for samples, _, _ in scores)
    return min((score for score in scores if score[0] == most), key=lambda score: score[1])[2]


def _cell_record(path: Path, experiment: Experiment) -> tuple[str, Record]:
    """Return the title of a run's cell and the record; raise an error if the run does not belong to the experiment."""
    record = _finished(path)
    recipe = _require_run_record(record, path)
    # titles leave out the steps and the rest of the budget, which may differ from the paper's
    title = cell_title(recipe)
    cell = next((cell for cell in experiment.cells if cell.title == title), None)
    if cell is None:
        raise ValueError(f"{experiment.name} has no cell {title}")
    # the paper tuned the prior temperature of logistic-normal again, and does not report it
    fixed = () if recipe.estimator == "logistic-normal" else ("prior_temperature",)
    for name in (*OF_DATA, *fixed):
        ours, expected = getattr(recipe, name), getattr(cell.recipe, name)
        if ours != expected:
            raise ValueError(f"{name} must be {expected!r}, got {ours!r}")
    for split in cell.paper or SPLITS:
        both = experiment.figure == "temperature"
        _require_scored(CellResult(cell, record), split, samples=experiment.score_samples, both=both)
    return title, record


def _require_run_record(record: Any, path: Path) -> Recipe:
    """Return the recipe of a record; raise an error unless it is valid and the record is that of a run."""
    require_record(record, path)
    if "step" not in record:
        raise ValueError(f"step of a record must be a whole number, got None in {str(path)!r}")
    try:
        return resolve(**record["recipe"])
    except ValueError as error:
        raise ValueError(f"recipe of the record {str(path)!r} must be valid, got another: {error}") from None


def _finished(path: Path) -> Record:
    """Return the record of a finished run, with its best validation; raise an error if the run is not finished.

    The record may have been copied without its run.
    """
    record = read_record(path)
    run = last_run(path.parent)
    at_end = record.get("step") == record["recipe"].get("steps")
    if (record.get("finished", at_end) if run is None else run.finished) is not True:
        raise ValueError("it is not finished")
    if run is None:
        return record
    if not is_current(record, run):
        raise ValueError("it has not been scored since its last training step")
    record |= {"seconds": run.seconds, "finished": True}  # it may have been scored before it was finished
    if run.best is None or not math.isfinite(run.best[1]):
        return record
    return {**record, "valid": {"value": run.best[1], "samples": paper_recipe(run.recipe).validation_samples}}


def _require_scored(result: CellResult, split: str, *, samples: int, both: bool) -> None:
    """Raise an error unless a split was scored with enough samples.

    With `both`, the relaxed graph must be scored too, and both graphs with the same samples, so that they can be
    compared.
    """
    metrics = {} if result.record is None else result.record["metrics"]
    metric, relaxed = (metrics.get(f"{split}_{name}") for name in ("nll", "relaxed"))
    number = f"{samples:,} sample{'s' * (samples > 1)}"
    if metric is None:
        raise ValueError(f"it is not scored on {split}")
    if metric.get("samples", 0) < samples:
        raise ValueError(f"it must be scored with {number} on {split}, got {metric.get('samples', 0):,}")
    if split != "train" and is_corrected(metric):  # models are compared by it
        raise ValueError(
            f"all points must be scored with all samples on {split}, got {metric['full_points']:,} of them"
        )
    if metric.get("points", 0) <= SMOKE_POINTS:
        raise ValueError(f"it is a smoke test, scored on {metric.get('points', 0):,} points")
    if result.score(f"{split}_nll") is None:
        raise ValueError(f"its likelihood on {split} is not finite")
    if not both:
        return
    if relaxed is None:
        raise ValueError(f"its relaxed graph is not scored on {split}")
    if result.score(f"{split}_relaxed") is None:
        raise ValueError(f"the objective of its relaxed graph on {split} is not finite")
    for graph, own in (("discrete", metric), ("relaxed", relaxed)):
        if (got := own.get("samples", 0)) != samples:
            raise ValueError(f"its {graph} graph must be scored with exactly {number} on {split}, got {got:,}")
