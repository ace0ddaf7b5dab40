"""`concretely reproduce`: the paper's tables and figures, with our numbers and the paper's."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..environment import PRECISIONS
from ..experiment.paper import RUNS, experiment_names, load_experiment
from . import figure
from .option import (
    Address,
    Device,
    FullPoints,
    MembersPerProgram,
    On,
    Precision,
    ProgramsPerGPU,
    Shared,
    folder_of,
    option,
    select_device,
    select_place,
)
from .terminal import (
    fail,
    monitor,
    refuse_ranks,
    remark,
    report_errors,
    require_known,
    require_positive,
    save,
    show,
    show_text,
    stop_requested,
)

if TYPE_CHECKING:
    from ..experiment.plan import Plan

EXAMPLE = "Example: concretely reproduce simplex"

FIGURES: dict[str, tuple[str, Callable[..., None]]] = {
    "graph": ("figure 1", figure.graph),
    "simplex": ("figure 2", figure.simplex),
    "binary": ("figure 3", figure.binary),
}
"""The figures that need no training: where they are in the paper, and the function that draws them."""


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Table or figure; omit it to list all.")] = None,
    *,
    rows: Annotated[str | None, option("Rows, by name or model.", "all")] = None,
    data: Annotated[str | None, option("Data sets.", "all")] = None,
    samples: Annotated[str | None, option("Numbers of samples m.", "all")] = None,
    estimator: Annotated[str | None, option("Estimators.", "all")] = None,
    steps: Annotated[str | None, option("Number of training steps.", "the paper's")] = None,
    lr: Annotated[str | None, option("Learning rate, or several to select from.", "the paper's")] = None,
    weight_decay: Annotated[str | None, option("Weight decay, or several to select from.", "the paper's")] = None,
    recipe: Annotated[
        Path | None, option("TOML file, or paper or fast; the three flags above override it.", "none")
    ] = None,
    score_samples: Annotated[int | None, option("Samples for scoring models.", "the paper's")] = None,
    full_points: FullPoints = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Only check that everything runs: 20 steps, 128 data points.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the training commands and exit.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the tables and figures.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Add finished runs to the records, and write the report of all records.")
    ] = False,
    records: Annotated[
        Path, typer.Option(**folder_of("records"), help="Folder of the records; the report is written next to it.")
    ] = Path("reproduction/records"),
    out: Annotated[
        Path, typer.Option(**folder_of("out"), help="Folder of the runs, with a subfolder for each table and figure.")
    ] = RUNS,
    programs: Annotated[int | None, option("Programs that share the device.", "4 on a GPU, 1 elsewhere")] = None,
    device_name: Device = None,
    precision: Precision = None,
    share: Shared = False,
    on: On = None,
    address: Address = None,
    programs_per_gpu: ProgramsPerGPU = None,
    members_per_program: MembersPerProgram = None,
) -> None:
    """Train the missing cells of a table or figure of the paper, and print our numbers and the paper's.

    rows, data, samples and estimator may be lists, separated by commas. lr and weight-decay may be lists too: then
    every cell is trained with all of them, and the best on the validation set is selected. full-points applies to the
    training set. Run the same command to go on after Ctrl-C.

    With --share, run the same command in several terminals or on several machines with one shared folder: each process
    takes cells that no other has, and all end when everything is done.
    """
    only = {"rows": rows, "data": data, "samples": samples, "estimator": estimator}
    changes = {"steps": steps, "lr": lr, "weight_decay": weight_decay}
    training: dict[str, Any] = {**only, **changes, "recipe": recipe, "score_samples": score_samples}
    training |= {"full_points": full_points, "smoke": smoke or None, "dry_run": dry_run or None}
    training |= {"programs": programs, "device": device_name, "precision": precision}
    sizes = {"programs_per_gpu": programs_per_gpu, "members_per_program": members_per_program}
    training |= {"share": share or None, "on": on, "address": address, **sizes}
    if report:
        _require_left_out("--report", name=name, list=listing or None, **training)
        _report(out, records)
    elif name is None or listing:
        for flag in (flag for flag, value in training.items() if value is not None and not listing):
            fail(f"name must be given with {flag.replace('_', '-')}, such as {experiment_names()[0]}, got none")
        _require_left_out("--list", **training)
        _list()
    elif name in FIGURES:
        _require_left_out(name, **training)
        FIGURES[name][1](out=out / name)
    else:
        refuse_ranks("reproduce")
        require_positive(programs=programs, score_samples=score_samples, full_points=full_points)
        if precision is not None:
            require_known("precision", precision, PRECISIONS)
        require_known("table or figure", name, [*experiment_names(), *FIGURES])
        if dry_run:
            _require_left_out("--dry-run", share=share or None, on=on, address=address, **sizes)
        if on is not None and programs is not None:
            fail(f"programs must be left out with --on ray, which has programs-per-gpu instead, got {programs}")
        place = select_place(share=share, on=on, address=address, device_name=device_name, **sizes)

        from ..experiment.plan import plan_experiment, train_command

        with report_errors():
            plan = plan_experiment(
                name,
                only={key: [entry.strip() for entry in text.split(",")] for key, text in only.items() if text},
                recipe=recipe,
                changes={key: text for key, text in changes.items() if text is not None},
                folder=out / name,
                score_samples=score_samples,
                smoke=smoke,
            )
        if dry_run:
            options = {"score_samples": plan.experiment.score_samples, "precision": precision}
            for member in plan.members:
                show_text(train_command(member.recipe, member.folder, **options))
        else:
            device = select_device(device_name if on is None else "cpu", precision)
            _reproduce(plan, device=device, on=place, programs=programs, full_points=full_points)


def _require_left_out(name: str, /, **given: Any) -> None:
    for flag, value in given.items():
        if value is not None:
            got = str(value) if isinstance(value, Path) else value
            fail(f"{flag.replace('_', '-')} must be left out for {name}, which needs no training, got {got!r}")


def _list() -> None:
    """Print all tables and figures."""
    from ..report.table import plain_table

    table = plain_table()
    for header in ("name", "in the paper", "cells", "title"):
        table.add_column(header, justify="right" if header == "cells" else "left")
    for experiment in map(load_experiment, experiment_names()):
        table.add_row(experiment.name, experiment.place, str(len(experiment.cells)), experiment.title)
    for name, (place, draw) in FIGURES.items():
        table.add_row(name, place, "–", (draw.__doc__ or "").removeprefix("Draw ").rstrip(".").capitalize())
    show(table)


def _reproduce(plan: "Plan", **how: Any) -> None:
    """Train and score the missing cells of an experiment, and print all cells."""
    from ..experiment.claim import temperature_points
    from ..experiment.plan import SMOKE_POINTS, reproduce
    from ..report.curve import temperature_curve
    from ..report.table import cell_table

    with report_errors(), stop_requested() as stop:
        reproduction = reproduce(plan, monitor=monitor(stop), **how)
    experiment = plan.experiment
    title = f"{experiment.title} ({experiment.place})"
    if plan.smoke:
        title = f"Smoke test of {experiment.name} on {SMOKE_POINTS} data points: these numbers mean nothing"
    samples = f"{experiment.score_samples:,} sample{'s' * (experiment.score_samples > 1)}"
    show(cell_table(reproduction.results, title=title, caption=f"NLL in nats from {samples} ± standard error"))
    for sentence in reproduction.selections:
        show_text(sentence)
    if experiment.figure == "temperature":
        points = temperature_points(reproduction.results, "train")
        if points:
            save(temperature_curve(points, note=title if plan.smoke else ""), plan.folder / "temperature")
        else:
            remark("nothing to draw yet")
    if not reproduction.complete:
        fail("stopped and saved; run the same command to go on", 130)


def _report(runs: Path, records: Path) -> None:
    """Add finished runs to the records, and write the report of all records."""
    from ..evaluation.illustration import sampling_traces
    from ..experiment.history import collect_records
    from ..experiment.review import review_records
    from ..file import write_text
    from ..report.reproduction import html_report, markdown_report

    with report_errors():
        for experiment in map(load_experiment, experiment_names()):
            for sentence in collect_records(experiment, runs / experiment.name, records)[1]:
                remark(sentence)
        review = review_records(records)
        if not review.known:
            got = f"got none of a cell in {str(runs)!r} and no records in {str(records)!r}"
            fail(f"out must hold finished runs, {got}: train some with concretely reproduce NAME")
        html = html_report(review, sampling_traces([2.0, 0.5, 1.0], [0.0, 0.5]))
        for name, text in (("README.md", markdown_report(review)), ("index.html", html)):
            write_text(records.parent / name, text)
            show_text(records.parent / name)
    show_text(f"{review.known} of {review.total} cells")
