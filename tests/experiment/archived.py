"""Records of runs that were never trained, to be added to an archive."""

from pathlib import Path
from typing import Any

from concretely.experiment.paper import Cell, load_experiment
from concretely.experiment.record import recipe_settings, write_record

TITLES = [cell.title for cell in load_experiment("table-1").cells]


def made(cell: Cell, test: float | None, train: float = 100.0, **others: Any) -> dict[str, Any]:
    """The record of a run of a cell."""
    scored = {"standard_error": 0.254, "samples": others.pop("samples", 50_000), "points": others.pop("points", 10_000)}
    metrics = {"test_nll": {"value": test, **scored}, "train_nll": {"value": train, **scored}}
    if "valid" in others:
        metrics["valid_nll"] = {"value": others.pop("valid"), **scored}
    if "relaxed" in others:
        relaxed = {"value": others.pop("relaxed"), **scored}
        metrics |= {"test_relaxed": relaxed, "train_relaxed": relaxed}
    return {
        "recipe": recipe_settings(cell.recipe),
        "commit": {"hash": "0123abc", "dirty": False},
        "versions": {"python": "3.11.7"},
        "device": {"cpu": "EPYC", "cores": 2, "gpu": "H200"},
        "seed": 0,
        "metrics": metrics,
        "seconds": 1234.56,
        "data": "0123456789abcdef",
        "step": cell.recipe.steps,
        **others,
    }


def leave(runs: Path, cell: Cell, test: float | None, **others: Any) -> None:
    write_record(runs / cell.title / "record.json", made(cell, test, **others))
