"""`concretely compare`: the likelihoods of several runs beside each other, as their records have them."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..spelling import did_you_mean
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
        refuse(f"unknown split {split!r}{did_you_mean(split, SPLITS)}")
    show(compared([_read(run, split) for run in runs], split))


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
