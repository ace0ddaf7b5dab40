"""The records behind the numbers that we print: of every cell of an experiment the best one, and all that were added.

An experiment has one JSON file, with `best` and `history` by the title of a cell.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..experiment.paper import SPLITS, Experiment, cell_title
from ..file import file_lock
from ..training.member import OF_DATA
from ..training.recipe import resolve
from ..training.run import restored
from .record import FILE, merged, read, require_whole, surveys, worth, write
from .run import ordered, settings_of

FEW = 128
"""A run that was scored on no more points than these was a smoke test."""
IDENTITY = ("recipe", "commit", "data", "step", "seconds")
"""What is the same in two records of one run, which may have been scored more than once."""

Record = Mapping[str, Any]


class Kept(NamedTuple):
    """What is known of a cell."""

    best: Record
    history: list[Record]
    """All records in the order in which they came, the best among them."""


def collected(experiment: Experiment, runs: Path, records: Path) -> tuple[int, list[str]]:
    """Add the finished and scored runs in a folder to what is known of an experiment, where they are new.

    How many had something new, and a sentence about each run that is not taken.
    """
    new, refused = 0, list[str]()
    paths = sorted(runs.glob(f"*/{FILE}"))
    if not paths:
        return new, refused
    records.mkdir(parents=True, exist_ok=True)
    with file_lock(
        records / f".{experiment.name}.lock"
    ):  # else one of two processes might lose what the other has found
        known = kept(experiment, records)
        for path in paths:
            try:
                if _is_candidate(path):
                    continue
                title, record = _belonging(path, experiment)
            except (ValueError, OSError) as error:
                refused.append(f"{path.parent} is left out: {error}")
                continue
            before = known[title].history if title in known else []
            history = _added(record, before)
            if history != before:
                known[title] = Kept(_best(history), history)
                new += 1
        if new:
            titles = [cell.title for cell in experiment.cells]
            cells = {title: known[title]._asdict() for title in sorted(known, key=titles.index)}
            write(_file(experiment, records), {"experiment": experiment.name, "cells": cells})
    return new, refused


def kept(experiment: Experiment, records: Path) -> dict[str, Kept]:
    """What is known of the cells of an experiment, by their titles."""
    path = _file(experiment, records)
    if not path.exists():
        return {}
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"].items()
        found = {title: Kept(cell["best"], [*cell["history"]]) for title, cell in cells}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"records must be those of an experiment, got a damaged file {path}: {error}") from None
    titles = {cell.title for cell in experiment.cells}
    if strange := [title for title in found if title not in titles]:
        raise ValueError(f"records must be of cells of {experiment.name}, got {strange[0]!r} in {path}")
    for title, (best, history) in found.items():
        for record in history:
            _require_whole(record, path)
        if not history or best != _best(history):
            raise ValueError(f"records must have the best of a cell's history, got another for {title} in {path}")
    return found


def _file(experiment: Experiment, records: Path) -> Path:
    return records / f"{experiment.name}.json"


def _added(record: Record, history: list[Record]) -> list[Record]:
    """A history with a record; where one of the same run is in it already, that has the metrics of both."""
    for place, other in enumerate(history):
        if all(record.get(part) == other.get(part) for part in IDENTITY):
            # of two scores that are known as well, that of before stays, so that nothing changes by the order of copies
            both = {**record, **other, "metrics": ordered(merged(record["metrics"], other["metrics"]))}
            return [*history[:place], both, *history[place + 1 :]]
    return [*history, record]


def _best(history: Sequence[Record]) -> Record:
    """The best on the validation set, of those that were looked at there by the most samples; of none, the last one.

    The test set never chooses: the best of several by their test likelihoods would look better than it is.
    """
    looks = [(*look, record) for record in reversed(history) if (look := _validation(record)) is not None]
    if not looks:
        return history[-1]
    most = max(known for known, _, _ in looks)
    return min((look for look in looks if look[0] == most), key=lambda look: look[1])[2]


def _validation(record: Record) -> tuple[tuple[int, int], float] | None:
    """How well the negative log-likelihood on the validation set is known, and what it is, if it is."""
    looks = (record["metrics"].get("valid_nll", {}), record.get("valid", {}))
    known = [(worth(look), look["value"]) for look in looks if look.get("value") is not None]
    return max(known) if known else None


def _is_candidate(path: Path) -> bool:
    """Whether a run was only compared with others on the validation set, which one of them has won."""
    metrics = read(path)["metrics"]
    return "valid_nll" in metrics and not any(f"{part}_nll" in metrics for part in SPLITS)


def _belonging(path: Path, experiment: Experiment) -> tuple[str, Record]:
    """The title of the cell that a record is of, and the record; a run that is none of the experiment's is refused."""
    record = _finished(path)
    _require_whole(record, path)
    # the steps and the rest of the budget are ours to choose, and are not in a title
    recipe = resolve(**record["recipe"])
    title = cell_title(recipe)
    cell = next((cell for cell in experiment.cells if cell.title == title), None)
    if cell is None:
        raise ValueError(f"{experiment.name} has no cell {title}")
    # the temperatures of the control were tuned again, and the paper does not tell to what
    tuned = () if recipe.estimator == "logistic-normal" else ("prior_temperature",)
    for name in (*OF_DATA, *tuned):
        ours, wished = getattr(recipe, name), getattr(cell.recipe, name)
        if ours != wished:
            raise ValueError(f"{name} must be {wished!r}, got {ours!r}")
    for part in cell.paper or SPLITS:
        _require_scored(record, part, samples=experiment.score_samples)
        if experiment.figure == "temperature":
            _require_both(record, part, samples=experiment.score_samples)
    return title, record


def _require_whole(record: Any, path: Path) -> None:
    """Refuse what is no record of a run by a recipe, or does not say of which step."""
    require_whole(record, path)
    if not isinstance(record.get("step"), int):
        raise ValueError(f"step of a record must be a whole number, got {record.get('step')!r} in {path}")
    if not isinstance(record.get("valid", {}), dict):
        raise ValueError(f"valid of a record must be a metric, got {record['valid']!r} in {path}")
    if not all(isinstance(entry, str | int | None) for entry in record["device"].values()):
        raise ValueError(f"device of a record must be told by words and numbers, got {record['device']!r} in {path}")
    resolve(**record["recipe"])


def _finished(path: Path) -> Record:
    """The record of a run and the best look of it at the validation set; a run that is not finished is refused.

    A record may have been brought here without its run.
    """
    record = read(path)
    if not any(path.parent.glob("checkpoint-*.json")):
        if record.get("finished", record.get("step") == record["recipe"].get("steps")) is not True:
            raise ValueError("it is not finished")
        return record
    run, _, _ = restored(path.parent)
    if not run.finished:
        raise ValueError("it is not finished")
    if record["recipe"] != settings_of(run.recipe) or record.get("step") != run.chosen:
        raise ValueError("it has not been scored since it was trained on")
    record |= {"seconds": run.seconds, "finished": True}  # it may have been scored before it was
    if run.best is None or not math.isfinite(run.best[1]):
        return record
    return {**record, "valid": {"value": run.best[1], "samples": run.recipe.validation_samples}}


def _require_scored(record: Record, part: str, *, samples: int) -> None:
    metric = record["metrics"].get(f"{part}_nll")
    if metric is None:
        raise ValueError(f"it is not scored on {part}")
    if metric.get("samples", 0) < samples:
        must = f"scored with {samples:,} sample{'s' * (samples > 1)}"
        raise ValueError(f"it must be {must} on {part}, got {metric.get('samples', 0):,}")
    if part != "train" and surveys(metric):  # by it models are compared
        raise ValueError(f"all of its points must be scored thoroughly on {part}, got {metric['thorough']:,} of them")
    if metric.get("points", 0) <= FEW:
        raise ValueError(f"it is a smoke test, scored on {metric.get('points', 0):,} points")
    if metric.get("value") is None or metric.get("standard_error") is None:
        raise ValueError(f"its likelihood on {part} is not finite")


def _require_both(record: Record, part: str, *, samples: int) -> None:
    """Refuse what has not both objectives by the same number of samples, which alone can be compared."""
    metric = record["metrics"].get(f"{part}_relaxed")
    if metric is None:
        raise ValueError(f"its relaxed graph is not scored on {part}")
    if metric.get("value") is None or metric.get("standard_error") is None:
        raise ValueError(f"the objective of its relaxed graph on {part} is not finite")
    for name, graph in (("nll", "discrete"), ("relaxed", "relaxed")):
        found = record["metrics"][f"{part}_{name}"].get("samples", 0)
        if found != samples:
            must = f"with {samples:,} sample{'s' * (samples > 1)} and no more"
            raise ValueError(f"its {graph} graph must be scored {must} on {part}, got {found:,}")
