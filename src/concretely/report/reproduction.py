"""The reproduction report as Markdown and as one HTML page. It compares our records with the paper's numbers."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from ..environment import PRECISIONS
from ..experiment.claim import TemperaturePoint
from ..experiment.paper import RUNS, CellResult, Experiment, cell_title
from ..experiment.plan import train_command
from ..experiment.record import is_corrected
from ..experiment.review import NEAR, Review, Standing
from ..graph.trace import Trace
from ..spelling import format_difference, format_number, printable
from ..training.recipe import resolve
from .curve import temperature_curve
from .diagram import side_by_side
from .page import embed_figure, render_template
from .relaxation import binary, simplex
from .table import MISSING, Grid, cell_grid, format_comparison, format_cost, format_score


def markdown_report(review: Review) -> str:
    """Return the reproduction report in Markdown."""
    return render_template("reproduction.md", **_variables(review))


def html_report(review: Review, sampling: Sequence[tuple[float, Mapping[str, Trace]]]) -> str:
    """Return the reproduction report as one HTML page, with the paper's figures.

    `sampling` has the traces to draw as figure 1, by name for each temperature (see `sampling_traces`).
    """
    style = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return render_template(
        "reproduction.html",
        **_variables(review),
        style=Markup(style.partition("<style>")[2].partition("</style>")[0]),  # shared with the reports of runs
        figures=[embed_figure(caption, drawn, "svg") for caption, drawn in _figures(review.points, sampling)],
    )


def _variables(review: Review) -> dict[str, Any]:
    """Return the variables of both templates."""
    return {
        "review": review,
        "sections": [
            _section(experiment, results)
            for experiment, results in review.experiments
            if any(result.record for result in results)
        ],
        "standing": _standing(review.standing),
        "summary": _summary(review),
        "deviations": [_deviation(*deviation) for deviation in review.deviations],
        "paper_budget": _budgets(review.paper_budget),
        "budgets": _budgets(review.budgets),
        "missing": [
            f"{count} of {experiment.name}"
            for experiment, results in review.experiments
            if (count := sum(result.record is None for result in results))
        ],
        "notes": tomllib.loads(files(__package__).joinpath("notes.toml").read_text(encoding="utf-8")),
        "near": f"{NEAR:g}",
    }


def _standing(standing: Standing) -> str:
    cells, near, better, repeated, near_at_first = standing
    text = f"Of the {cells} cells that can be compared, {near} are within {NEAR:g} nat of the paper's test NLL or "
    text += f"better, {better} of them better by more than that." if better else "better."
    return text + (f" Before {repeated} of them were trained again, {near_at_first} were." if repeated else "")


def _summary(review: Review) -> Grid:
    head = ["experiment", "estimator", f"within {NEAR:g} nat or better", "median test diff", "median train diff"]
    rows = [
        [group.experiment, group.estimator, f"{group.near} of {group.cells}", *map(format_difference, group[-2:])]
        for group in review.summary
    ]
    return Grid(head, rows)


def _budgets(results: Sequence[CellResult]) -> Grid:
    """Return a table with a row for every result, of cells that were trained more than once."""
    rows = []
    for result in results:
        recipe, (test, _, difference) = result.recipe, format_comparison(result, "test")
        prior = format_number(recipe.prior_temperature) if isinstance(recipe.prior_temperature, float) else MISSING
        about = (recipe.notation, recipe.data, recipe.estimator, str(recipe.samples), prior)
        how = (recipe.optimizer, f"{recipe.batch:,}", f"{recipe.lr:g}", f"{recipe.weight_decay:g}")
        rows.append([*about, *how, format_score(result, "valid_nll"), test, difference, *format_cost(result)])
    setup = ("model", "data", "estimator", "m", "prior λ", "optimizer", "batch", "rate", "decay")
    return Grid([*setup, "validation", "test", "diff", "steps", "seconds"], rows)


def _section(experiment: Experiment, results: Sequence[CellResult]) -> dict[str, Any]:
    """Return the template's variables for an experiment."""
    known = {row: result.record for row, result in enumerate(results, start=1) if result.record is not None}
    devices, commands = set[str](), list[tuple[int, str]]()
    for row, record in known.items():
        if device := record["device"]:
            devices.add(device.get("gpu") or device.get("cpu") or "an unnamed device")
        recipe, multiplied = resolve(**record["recipe"]), device.get("matmul_precision", "highest")
        precision = next((name for name, torchs in PRECISIONS.items() if torchs == multiplied), "float32")
        options = {
            "score_samples": experiment.score_samples,
            "precision": None if precision == "float32" else precision,
        }
        command = train_command(recipe, RUNS / experiment.name / cell_title(recipe), **options)
        commands.append((row, printable(command).replace("\n", r"\n")))
    return {
        "experiment": experiment,
        "cells": f"{len(known)} of {len(results)} cells",
        "corrections": _corrections(list(known.values())),
        "devices": " and ".join(sorted(devices)),
        "grid": cell_grid(results),
        "commands": commands,
    }


def _corrections(records: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence about records in which only some training points were scored with all samples, if any."""
    scores = [score for record in records if is_corrected(score := record["metrics"].get("train_nll", {}))]
    if not scores:
        return ""
    numbers = " or ".join(f"{number:,}" for number in sorted({score["full_points"] for score in scores}))
    return (
        f"In {len(scores)} of them {numbers} of the training points had all samples and the others 1,000, corrected by "
        f"the mean difference (`evaluate --full-points`)."
    )


def _deviation(result: CellResult, reason: str) -> dict[str, str]:
    recipe = result.recipe
    about = {"notation": recipe.notation, "cell": f"{recipe.data}, {recipe.estimator}, m = {recipe.samples}"}
    ours, paper, difference = format_comparison(result, "test")
    return {**about, "ours": ours, "paper": paper, "difference": difference, "reason": reason}


def _figures(
    points: Sequence[TemperaturePoint], sampling: Sequence[tuple[float, Mapping[str, Trace]]]
) -> Iterator[tuple[str, Figure]]:
    """Yield the paper's figures with their captions."""
    temperatures = [0.0, 0.5, 1.0, 2.0]
    yield "How a variable is sampled: discrete, and relaxed at λ = 1/2 (figure 1).", side_by_side(sampling)
    yield (
        "The density of three categories, with α = (2, 1/2, 1) (figure 2).",
        simplex([2.0, 0.5, 1.0], temperatures),
    )
    yield "Noisy log-odds, the sigmoid and the density of its output, with α = 2 (figure 3).", binary(2.0, temperatures)
    if points:
        caption = "Objectives on the training set against the temperature of training (figure 4, right)."
        yield caption, temperature_curve(points)
