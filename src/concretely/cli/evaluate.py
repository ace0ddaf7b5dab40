"""`concretely evaluate`: score a trained model by the likelihood of its discrete graph."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..spelling import did_you_mean
from .restore import LEFT, Folder, Place, restore
from .terminal import Device, Products, console, device, interruptible, refuse, refusing, require, stopping

if TYPE_CHECKING:
    from ..evaluation.likelihood import Likelihood
    from ..training.run import Run

EXAMPLE = f"Example: concretely evaluate {LEFT} --samples 1000"

DENSITY, PREDICTION = 50_000, 100
"""By how many samples the paper scores models without a context and with one."""


def evaluate(
    run: Folder,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Samples for each data point.",
            show_default=f"the paper's {DENSITY:,}, or {PREDICTION} given a context",
        ),
    ] = None,
    *,
    split: Annotated[str, typer.Option(help="test, valid or train.")] = "test",
    thorough: Annotated[
        int | None,
        typer.Option(
            help="Data points scored by all samples; the rest by 1,000, corrected by the mean difference on these.",
            show_default="all",
        ),
    ] = None,
    relaxed: Annotated[
        bool, typer.Option("--relaxed", help="Also the objective of training, that of the relaxed graph.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
    chunk: Annotated[
        int | None,
        typer.Option(help="Pairs of a sample and a data point to run at once.", show_default="what suits the device"),
    ] = None,
    place: Place = None,
    device_name: Device = None,
    products: Products = None,
) -> None:
    """Score a run by the negative log-likelihood of data, in nats, and add the score to its report."""
    for name, number in (("samples", samples), ("thorough", thorough), ("chunk", chunk)):
        require(number is None or number >= 1, name, "be at least 1", number)
    on = device(device_name, products)

    from ..data.dataset import SPLITS
    from ..report import temperature
    from ..report.record import finite, measured
    from ..report.run import leave, scored

    if split not in SPLITS:
        refuse(f"unknown split {split!r}{did_you_mean(split, SPLITS)}")
    past, model, data = restore(run, on=on, place=place)
    recipe, others = past.recipe, dict[str, dict[str, Any]]()
    if relaxed and not recipe.method.relaxes:
        refuse(f"relaxed must be left out, as estimator {recipe.estimator!r} trains the discrete graph")
    if samples is None:
        samples = DENSITY if recipe.architecture.context is None else PREDICTION
    score: dict[str, Any] = {"part": split, "chunk": chunk, "progress": True}
    with refusing(), interruptible("stopped; the run is as it was before"):
        found = scored(recipe, model, data, samples=samples, full_points=thorough, **score)
        if relaxed:
            others[f"{split}_relaxed"] = temperature.relaxed(
                recipe, model, data, samples=recipe.samples, step=past.chosen, **score
            )
    if as_json:
        typer.echo(json.dumps(finite(_told(past, found, split) | others), ensure_ascii=False))
    else:
        typer.echo(f"{split} {found}")
        for other in others.values():
            typer.echo(f"{other['title']} {measured(other['value'], other['standard_error'])} (m = {recipe.samples})")
    with refusing(), stopping():  # who interrupts now gets all of it a moment later, not half
        *_, page = leave(run, past, model, data=data, found={split: found}, others=others)
    console(err=True).print(f"added to {page}", markup=False)


def _told(run: "Run", found: "Likelihood", split: str) -> dict[str, Any]:
    """A likelihood and what it is of."""
    from ..report.run import metric

    recipe = run.recipe
    of = {"notation": recipe.notation, "data": recipe.data, "estimator": recipe.estimator, "step": run.chosen}
    value, *others = metric(found).items()
    return {**of, "split": split, "nll": value[1], **dict(others)}
