"""`concretely compare`: the likelihoods of several runs beside each other, as their records have them."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..spelling import nearest
from .restore import LEFT
from .terminal import refuse, refusing, show

if TYPE_CHECKING:
    from rich.table import Table

SPLITS = ("test", "valid", "train")
EXAMPLE = f"Example: concretely compare {LEFT}"


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Folders of runs, as concretely train leaves them.")
    ],
    split: Annotated[str, typer.Option(help="test, valid or train.")] = "test",
) -> None:
    """Print the negative log-likelihoods of runs in nats, and that of independent pixels to measure them by."""
    if split not in SPLITS:
        refuse(f"unknown split {split!r}{nearest(split, SPLITS)}")
    records = [_read(run, split) for run in runs]
    show(compared(records, split))
    if len(runs) > 1:
        typer.echo(summary(records, split))


def compared(records: Sequence[Mapping[str, Any]], split: str, names: Sequence[str] = ()) -> "Table":
    """The likelihoods of a part of the data, as records have them, maybe with a name for each."""
    from rich.table import Table

    from ..report.record import measured, surveys

    def nll(metric: dict[str, Any]) -> str:
        return measured(metric["value"], metric["standard_error"])

    heads = ("model", "data", "trained by", "m", f"{split} NLL", "samples", "time", *(["member"] if names else []))
    table = Table(*heads, box=None, header_style="bold")
    told = set()
    for record in records:
        recipe, baseline = record["recipe"], record["metrics"].get(f"{split}_factorised_nll")
        if baseline is not None and (key := (recipe["data"], baseline["value"])) not in told:
            table.add_row("independent pixels", recipe["data"], "", "", nll(baseline))
            told.add(key)
    for index, record in enumerate(records):
        recipe, scored = record["recipe"], record["metrics"][f"{split}_nll"]
        table.add_row(
            recipe["notation"],
            recipe["data"],
            recipe["estimator"],
            str(recipe["samples"]),
            nll(scored),
            f"{scored['samples']:,}" + (f" for {scored['thorough']:,} points" if surveys(scored) else ""),
            f"{record['seconds']:.0f} s",
            *([names[index]] if names else []),
        )
    return table


def summary(records: Sequence[Mapping[str, Any]], split: str) -> str:
    """Say in a sentence which run is best, and by how much.

    >>> def record(estimator, value):
    ...     metrics = {"test_nll": {"value": value, "standard_error": 0.2}, "test_factorised_nll": {"value": 27.0}}
    ...     return {"recipe": {"notation": "2H-64V", "estimator": estimator, "samples": 5}, "metrics": metrics}
    >>> summary([record("vimco", 22.5), record("concrete", 22.0)], "test")
    'best: 2H-64V, concrete, m = 5, test NLL 22.00 ± 0.20; next +0.50, independent pixels +5.00'
    """
    from ..report.record import measured

    def nll(record: Mapping[str, Any]) -> float:
        return float(record["metrics"][f"{split}_nll"]["value"])

    best, second, *_ = sorted(records, key=nll)
    recipe, scored = best["recipe"], best["metrics"][f"{split}_nll"]
    named = f"best: {recipe['notation']}, {recipe['estimator']}, m = {recipe['samples']}"
    sentence = f"{named}, {split} NLL {measured(scored['value'], scored['standard_error'])}"
    pixels = best["metrics"].get(f"{split}_factorised_nll")
    baseline = "" if pixels is None else f", independent pixels {pixels['value'] - nll(best):+.2f}"
    return f"{sentence}; next {nll(second) - nll(best):+.2f}{baseline}"


def _read(run: Path, split: str) -> dict[str, Any]:
    """The record of a run that has been scored."""
    from ..report.record import FILE, read

    path = run / FILE
    if not path.is_file():
        refuse(f"run must be the folder of a run that has been scored, got {str(run)!r}, which has no {FILE}")
    with refusing():
        record = read(path)
    if f"{split}_nll" not in record["metrics"]:
        way = f"concretely evaluate {shlex.quote(str(run))} --split {split}"
        refuse(f"{str(run)!r} has not been scored on {split!r}; do so with: {way}")
    return record
