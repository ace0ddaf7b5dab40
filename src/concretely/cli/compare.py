"""`concretely compare`: the likelihoods of several runs, from their records."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from .option import EXAMPLE_RUN, folder_of
from .terminal import fail, report_errors, require_known, show, show_text

SPLITS = ("test", "valid", "train")
EXAMPLE = f"Example: concretely compare {EXAMPLE_RUN}"


def compare(
    runs: Annotated[list[Path], typer.Argument(**folder_of("run") | {"metavar": "RUN…"}, help="Folders of runs.")],
    split: Annotated[str, typer.Option(help="Split: test, valid or train.")] = "test",
) -> None:
    """Print the negative log-likelihoods of runs in nats, and that of a baseline of independent pixels."""
    from ..experiment.record import score_key
    from ..report.table import likelihood_summary, likelihood_table, loose_summary

    require_known("split", split, SPLITS)
    records = [_record(run, split) for run in runs]
    scores = {score_key(record["metrics"], split): run for run, record in zip(runs, records, strict=True)}
    if len(scores) > 1:
        cost, nll = (str(scores[f"{split}_{kind}"]) for kind in ("cost", "nll"))
        fail(f"runs must have scores of one kind, got the cost of a program in {cost!r} and an NLL in {nll!r}")
    keys = ("notation", "model", "arguments", "data", "estimator", "samples")
    titles = [[record["recipe"].get(key) for key in keys] for record in records]
    alike = any(titles.count(title) > 1 for title in titles)
    names = [run.resolve().name for run in runs]
    names = names if len(set(names)) == len(names) else list(map(str, runs))
    members = names if alike else ()
    show(likelihood_table(records, split, members))
    if len(runs) > 1:
        show_text(likelihood_summary(records, split, members))
    if sentence := loose_summary(records, split, names):
        show_text(sentence)


def _record(run: Path, split: str) -> dict[str, Any]:
    """Read the record of a run that has been scored on a split."""
    from ..experiment.record import FILE, read_record, score_key
    from ..training.recipe import FILE as RECIPE

    path, score = run / FILE, f"score it with: concretely evaluate {shlex.quote(str(run))}"
    if not path.is_file():
        which = f"which has no {FILE}{f': {score}' if (run / RECIPE).is_file() else ''}"
        if any(run.glob(f"*/{FILE}")):
            which = f"which holds runs: name them, as in {shlex.quote(str(run))}/*"
        fail(f"run must be the folder of a run that has been scored, got {str(run)!r}, {which}")
    with report_errors():
        record = read_record(path)
    if score_key(record["metrics"], split) not in record["metrics"]:
        has_valid = split == "test" and score_key(record["metrics"], "valid") in record["metrics"]
        instead = "compare the scores on 'valid' with --split valid, or " if has_valid else ""
        fail(f"{str(run)!r} has not been scored on {split!r}; {instead}{score} --split {split}")
    return record
