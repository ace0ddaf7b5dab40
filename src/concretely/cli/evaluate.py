"""`concretely evaluate`: score a trained model by the likelihood of its discrete graph."""

import json
import sys
from contextlib import nullcontext, redirect_stdout
from functools import partial
from typing import Annotated, Any

import typer

from . import terminal
from .option import (
    EXAMPLE_RUN,
    DataPath,
    Device,
    FullPoints,
    MaxBytes,
    ModelName,
    Precision,
    RunFolder,
    option,
    restore_run,
    select_device,
)

EXAMPLE = f"Example: concretely evaluate {EXAMPLE_RUN} --samples 1000"

DENSITY, PREDICTION, OWN = 50_000, 100, 1_000
"""The default numbers of samples: the paper's, without and with a context, and ours for models of one's own."""


def evaluate(
    run: RunFolder,
    samples: Annotated[
        int | None,
        option(
            "Samples for each data point.",
            f"the paper's {DENSITY:,}, or {PREDICTION} with a context; own models: {OWN:,}, or {PREDICTION} without q",
        ),
    ] = None,
    *,
    split: Annotated[
        str | None, option("Split: test, valid or train.", "test, or valid for a file without test")
    ] = None,
    full_points: FullPoints = None,
    relaxed: Annotated[
        bool, typer.Option("--relaxed", help="Also score the relaxed graph by the objective of training.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
    chunk: Annotated[
        int | None,
        option("Pairs of a sample and a data point to run at once.", "4,096, or what suits a model on a GPU"),
    ] = None,
    data_path: DataPath = None,
    model_name: ModelName = None,
    max_bytes: MaxBytes = None,
    device_name: Device = None,
    precision: Precision = None,
) -> None:
    """Print the negative log-likelihood of a run in nats, and add it to the record and the report of the run.

    With torchrun --nproc-per-node N -m concretely evaluate, N processes share the data points.
    """
    terminal.require_positive(samples=samples, full_points=full_points, chunk=chunk, max_bytes=max_bytes)

    from ..data.dataset import SPLITS
    from ..experiment import scoring
    from ..experiment.record import finite_or_none, format_metric, model_title
    from ..experiment.subject import has_context, relaxes, scored_split
    from ..spelling import explain_loose
    from ..training.own_recipe import OwnRecipe
    from ..training.parallel import ALONE

    with terminal.as_rank(device_name, precision) as world:
        if split is not None:
            terminal.require_known("split", split, SPLITS)
        device, ranks = select_device(device_name, precision) if world is None else world.device, world or ALONE
        # what a builder or a program prints is not part of the object
        apart = partial(redirect_stdout, sys.stderr) if as_json else nullcontext
        with ranks.in_turn(), apart():  # files that one rank downloads are there for the others
            past, model, data = restore_run(
                run, device=device, data=data_path, model_name=model_name, max_bytes=max_bytes
            )
        recipe, others = past.recipe, dict[str, dict[str, Any]]()
        split = scored_split(data) if split is None else split
        with terminal.report_errors():
            if relaxed and not relaxes(recipe):
                terminal.fail(f"relaxed must be left out, as estimator {recipe.estimator!r} trains the discrete graph")
        if samples is None:
            samples = PREDICTION if has_context(recipe, model) else OWN if isinstance(recipe, OwnRecipe) else DENSITY
        how: dict[str, Any] = {"split": split, "chunk": chunk, "progress": True}
        with terminal.report_errors(), terminal.interruptible("stopped; the run is unchanged"), apart():
            score = scoring.score_split(
                recipe, model, data, samples=samples, full_points=full_points, world=ranks, **how
            )
            if relaxed:
                others[f"{split}_relaxed"] = scoring.relaxed_objective(
                    recipe, model, data, samples=recipe.samples, step=past.chosen, **how
                )
        if as_json:
            name = "model" if isinstance(recipe, OwnRecipe) else "notation"
            about = {name: model_title(recipe.settings), "data": recipe.data, "estimator": recipe.estimator}
            metric, kind = scoring.score_metric(score), scoring.score_name(score, split).rpartition("_")[2]
            content = {**about, "step": past.chosen, "split": split, kind: metric.pop("value"), **metric, **others}
            terminal.show_text(json.dumps(finite_or_none(content)))
            if sentence := explain_loose(content.get("effective_sample_size"), samples=content.get("samples", 0)):
                terminal.remark(sentence)
        else:
            terminal.show_text(f"{split} {score}")
            for other in others.values():
                terminal.show_text(f"{other['title']} {format_metric(other)} (m = {recipe.samples})")
        if not ranks.is_first:
            return
        # a signal here must not leave a partial report
        with terminal.report_errors(), terminal.stop_requested(), apart():
            scores: dict[str, Any] = {"scores": {split: score}, "others": others, "note": terminal.remark}
            record = scoring.add_scores(run, past, model, data=data, **scores)
            page = terminal.write_run_report(run, past, model, data, record)
        name, new = scoring.score_name(score, split), scoring.score_metric(score)
        kept = record.get("metrics", {}).get(name, new)
        is_added = kept["value"] == new["value"]
        terminal.remark(f"added to {page}" if is_added else f"{page} keeps the score with {kept['samples']:,} samples")
