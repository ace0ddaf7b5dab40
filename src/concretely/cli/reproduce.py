"""`concretely reproduce`: the paper's tables and figures, ours beside the paper's."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..experiment.paper import RUNS, SPLITS, Cell, Experiment, experiment_names, load_experiment
from ..file import atomic_write
from ..spelling import did_you_mean
from ..training.member import OF_DATA, Member, data_key
from ..training.recipe import Recipe, overruled, read
from ..training.section import WHEN, sections
from . import figure
from .candidate import Candidates, best, candidates_for, choices_made
from .flags import loaded_once
from .list import choices
from .member import (
    DIVERGED,
    Stop,
    Wish,
    heeding,
    interrupted,
    known,
    require_fitting,
    score,
    settled,
    train_all,
)
from .terminal import (
    Device,
    Products,
    console,
    device,
    prepare,
    refuse,
    refusing,
    require,
    require_known_products,
    save,
    show,
)

if TYPE_CHECKING:
    import torch

    from ..data import Dataset
    from ..report.table import Line

EXAMPLE = "Example: concretely reproduce simplex"

FIGURES: dict[str, tuple[str, Callable[..., None]]] = {
    "graph": ("figure 1", figure.graph),
    "simplex": ("figure 2", figure.simplex),
    "binary": ("figure 3", figure.binary),
}
"""The figures that need no training, where they are in the paper, and what draws them."""

AT_ONCE = 4
"""How many programs share a GPU: one by itself leaves parts of it idle."""
STEPS, SAMPLES, POINTS = 20, 10, 128
"""What a smoke test takes: just enough to see that everything runs."""
VALIDATING = 1_000
"""The most samples by which candidates for a cell are compared."""
TOLD = (*OF_DATA, "notation", "arity", "estimator", "samples", "temperature", "prior_temperature", "seed")
"""The keys of a recipe that a cell has of its table, and that no other recipe may change."""


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table or figure; without one, all are listed.")] = None,
    *,
    rows: Annotated[str | None, typer.Option(help="Rows, by name or model.", show_default="all")] = None,
    data: Annotated[str | None, typer.Option(help="Data sets.", show_default="all")] = None,
    samples: Annotated[str | None, typer.Option(help="Numbers m of samples.", show_default="all")] = None,
    estimator: Annotated[str | None, typer.Option(help="Estimators.", show_default="all")] = None,
    steps: Annotated[str | None, typer.Option(help="How many steps to train.", show_default="the paper's")] = None,
    lr: Annotated[
        str | None, typer.Option(help="The learning rate, or several to choose from.", show_default="the paper's")
    ] = None,
    weight_decay: Annotated[
        str | None, typer.Option(help="The weight decay, or several to choose from.", show_default="the paper's")
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(help="A TOML file, or paper or fast, which the three flags above overrule.", show_default="none"),
    ] = None,
    score_samples: Annotated[
        int | None, typer.Option(help="Samples by which models are scored.", show_default="the paper's")
    ] = None,
    thorough: Annotated[
        int | None,
        typer.Option(
            help="Training points scored by all samples; the rest by 1,000, corrected by the mean difference on these.",
            show_default="all",
        ),
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help=f"Only see that all runs: {STEPS} steps, {POINTS} data points.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be trained, and how.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the tables and figures.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Add what is finished to the records, and write the report of all.")
    ] = False,
    records: Annotated[
        Path, typer.Option(help="The folder of the records, beside which the report is written.")
    ] = Path("reproduction/records"),
    out: Annotated[
        Path, typer.Option(help="The folder of the runs, in which each table and figure has its own.")
    ] = RUNS,
    programs: Annotated[
        int | None, typer.Option(help="Programs that share the device at once.", show_default="4 on a GPU, 1 elsewhere")
    ] = None,
    device_name: Device = None,
    products: Products = None,
) -> None:
    """Train what is missing of a table or figure of the paper, and show ours beside the paper's.

    Rows, data sets, numbers of samples and estimators may be lists with commas. So may learning rates and weight
    decays: a cell is then trained with each, and the best on the validation set is taken.
    Ctrl-C saves; the same command goes on.
    """
    wished = {"rows": rows, "data": data, "samples": samples, "estimator": estimator}
    how = {"steps": steps, "lr": lr, "weight_decay": weight_decay}
    budget = {**how, "recipe": recipe, "score_samples": score_samples, "thorough": thorough}
    training = {**wished, **budget, "smoke": smoke or None, "dry_run": dry_run or None}
    training |= {"programs": programs, "device": device_name, "products": products}
    if report:
        _require_left_out("--report", name=name, list=listing or None, **training)
        _report(out, records)
        return
    if name is None or listing:
        for flag in (flag for flag, value in training.items() if value is not None and not listing):
            refuse(f"name must be given with {flag.replace('_', '-')}, such as {experiment_names()[0]}, got none")
        _require_left_out("--list", **training)
        _list()
        return
    folder = out / name
    if name in FIGURES:
        _require_left_out(name, **training)
        FIGURES[name][1](out=folder)
        return
    require(programs is None or programs >= 1, "programs", "be at least 1", programs)
    require(score_samples is None or score_samples >= 1, "score-samples", "be at least 1", score_samples)
    require(thorough is None or thorough >= 1, "thorough", "be at least 1", thorough)
    changes = _changes(recipe, {**how, "steps": STEPS if smoke and steps is None else steps})
    tried = [_chosen(name, wished, change) for change in changes]
    chosen = tried[0]
    if smoke:
        chosen, folder = replace(chosen, score_samples=min(SAMPLES, chosen.score_samples)), folder / "smoke"
    if score_samples is not None:
        chosen = replace(chosen, score_samples=score_samples)
    candidates = candidates_for(tried, folder)
    require_known_products(products)
    if dry_run:
        from ..report.command import command

        others: dict[str, Any] = {"score_samples": chosen.score_samples}
        others |= {} if products is None else {"products": products}
        for member in chain(*candidates.values()):
            typer.echo(command(member.recipe, member.folder, **others))
        return
    on = device(device_name, products)
    at_once = programs or (AT_ONCE if on.type == "cuda" else 1)
    _make(chosen, candidates, folder, on=on, at_once=at_once, thorough=thorough, smoke=smoke)


def _list() -> None:
    """Say what there is."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in ("name", "in the paper", "cells", "what"):
        table.add_column(header, justify="right" if header == "cells" else "left")
    for each in map(load_experiment, experiment_names()):
        table.add_row(each.name, each.place, str(len(each.cells)), each.title)
    for name, (place, draw) in FIGURES.items():
        table.add_row(name, place, "–", (draw.__doc__ or "").removeprefix("Draw ").rstrip(".").capitalize())
    show(table)


def _require_left_out(name: str, /, **given: Any) -> None:
    for flag, value in given.items():
        if value is not None:
            found = str(value) if isinstance(value, Path) else value
            refuse(f"{flag.replace('_', '-')} must be left out for {name}, which needs no training, got {found!r}")


def _changes(recipe: Path | None, given: Mapping[str, str | int | None]) -> list[dict[str, Any]]:
    """What is to be changed in the recipes of all cells; of several changes, each is tried."""
    with refusing():
        changes = {} if recipe is None else read(recipe)
    for part in (changes, *(section.said for section in sections(changes.get(WHEN, {})))):
        for key in (key for key in TOLD if key in part):
            refuse(f"recipe must leave {key} to the cells, got {part[key]!r} in {str(recipe)!r}")
    with refusing():
        return choices(overruled(changes, {key: value for key, value in given.items() if value is not None}))


def _chosen(name: str, wished: dict[str, str | None], changes: dict[str, Any]) -> Experiment:
    """The part of an experiment that was asked for."""
    if name not in experiment_names():
        refuse(f"unknown table or figure {name!r}{did_you_mean(name, [*experiment_names(), *FIGURES])}")
    asked = {flag: {entry.strip() for entry in text.split(",")} for flag, text in wished.items() if text is not None}
    whole = load_experiment(name)
    for flag, entries in asked.items():
        every = {answer for cell in whole.cells for answer in _answers(cell, flag)}
        for entry in sorted(entries - every):
            refuse(f"unknown {'row' if flag == 'rows' else flag} {entry!r} in {name}{did_you_mean(entry, every)}")
    with refusing():
        found = load_experiment(
            name, lambda cell: all(entries & _answers(cell, flag) for flag, entries in asked.items()), **changes
        )
    if not found.cells:
        refuse(f"{name} has no cell with {' and '.join(f'{flag} {wished[flag]}' for flag in asked)}")
    return found


def _answers(cell: Cell, flag: str) -> set[str]:
    """What a cell answers to."""
    match flag:
        case "rows":
            return {cell.row, cell.recipe.notation}
        case "estimator":
            return {cell.heading, cell.recipe.estimator}
        case _:
            return {str(getattr(cell.recipe, flag))}


def _make(
    chosen: Experiment,
    candidates: Candidates,
    folder: Path,
    *,
    on: "torch.device",
    at_once: int,
    thorough: int | None,
    smoke: bool,
) -> None:
    """Train and score what is missing, and show all of it."""
    from ..report.table import table

    members = list(chain(*candidates.values()))
    for member in members:
        require_fitting(member)
    data = _data(members, smoke=smoke)
    prepare(folder)
    whole = False
    with suppress(KeyboardInterrupt):
        whole = _train(chosen, candidates, data, on=on, at_once=at_once, thorough=thorough)
    lines = _lines(chosen, candidates)
    show(table(lines, title=_title(chosen, smoke=smoke), caption=_caption(chosen)))
    if whole:  # or else another may be better
        for choice in choices_made(candidates):
            typer.echo(choice)
    if chosen.figure == "temperature":
        _draw(lines, folder, note=_title(chosen, smoke=smoke) if smoke else "")
    if not whole:
        interrupted()


def _data(members: Iterable[Member], *, smoke: bool) -> "Callable[[Recipe], Dataset]":
    """All the data that members ask for, loaded before any of them trains."""
    every = loaded_once(member.recipe for member in members)
    used = {key: _few(data) if smoke else data for key, data in every.items()}
    return lambda recipe: used[data_key(recipe)]


def _few(data: "Dataset") -> "Dataset":
    """A data set with few points, spread over all, which may be sorted."""
    from ..data import Bits

    def few(bits: Bits) -> Bits:
        return Bits(bits.packed[:: max(1, len(bits) // POINTS)][:POINTS], bits.width)

    return replace(data, train=few(data.train), valid=few(data.valid), test=few(data.test))


def _train(
    chosen: Experiment,
    candidates: Candidates,
    data: "Callable[[Recipe], Dataset]",
    *,
    on: "torch.device",
    at_once: int,
    thorough: int | None,
) -> bool:
    """Train and score, some programs at once; whether none was interrupted."""
    samples = chosen.score_samples
    validated = {"valid": Wish(min(samples, VALIDATING))}
    compared = {"test": Wish(samples), "train": Wish(samples, thorough)}

    def then(group: Sequence[Member], stop: Stop) -> None:
        for members in candidates.values():
            here = [member for member in members if member in group]
            if len(here) > 1:
                for member in here:
                    score(member, data(member.recipe), validated, on=on, stop=stop)
            if here:
                member = best(here)
                points, holds = data(member.recipe), member.recipe.train_on == "train"
                record = score(member, points, (validated if holds else {}) | compared, on=on, stop=stop)
                if record is not None and chosen.figure == "temperature":
                    _relax(member, record, points, on=on, stop=stop)

    return train_all(list(chain(*candidates.values())), data, on=on, at_once=at_once, then=then)


def _relax(member: Member, record: dict[str, Any], data: "Dataset", *, on: "torch.device", stop: Stop) -> None:
    """Add the objective of the relaxed graph to a record, by as many samples as it has of the discrete one."""
    from ..report.run import leave_record
    from ..report.temperature import relaxed
    from ..training.run import restored

    metrics, new = record["metrics"], dict[str, dict[str, Any]]()
    wished = {part: metrics[f"{part}_nll"]["samples"] for part in SPLITS}
    missing = [part for part in SPLITS if metrics.get(f"{part}_relaxed", {}).get("samples") != wished[part]]
    if missing:
        run, model, _ = restored(member.folder, device=on)
        with heeding(stop, model):
            for part in missing:
                new[f"{part}_relaxed"] = relaxed(
                    run.recipe, model, data, part=part, samples=wished[part], step=run.chosen
                )
        leave_record(member.folder, run, model, data=data, found={}, others=new)


def _lines(chosen: Experiment, candidates: Candidates) -> "list[Line]":
    from ..report.table import Line

    lines = []
    for cell in chosen.cells:
        members = candidates[cell.title]
        filling = best(members)
        if all((member.folder / DIVERGED).exists() for member in members):
            lines.append(Line(cell, state="diverged"))
        else:
            lines.append(Line(cell, known(filling) if settled(filling) else None))
    return lines


def _title(chosen: Experiment, *, smoke: bool) -> str:
    if smoke:
        return f"Smoke test of {chosen.name} on {POINTS} data points: these numbers mean nothing"
    return f"{chosen.title} ({chosen.place})"


def _caption(chosen: Experiment) -> str:
    return f"NLL in nats from {chosen.score_samples:,} sample{'s' * (chosen.score_samples > 1)} ± standard error"


def _draw(lines: "Sequence[Line]", folder: Path, *, note: str) -> None:
    """Draw the objectives of the temperatures that are known."""
    from ..report.temperature import point, temperature

    found = (point(line.record, part="train") for line in lines if line.record is not None)
    points = [each for each in found if each is not None]
    if points:
        save(temperature(points, note=note), folder / "temperature")
    else:
        console(err=True).print("there is nothing to draw yet")


def _report(runs: Path, records: Path) -> None:
    """Add finished runs to the records, and write what all of them say."""
    from ..report.archive import collected
    from ..report.reproduction import gathered, page, report

    err = console(err=True)
    with refusing():
        for each in map(load_experiment, experiment_names()):
            _, refused = collected(each, runs / each.name, records)
            for sentence in refused:
                err.print(sentence, markup=False)
        found = gathered(records)
        if not found.known:
            there = f"got none of a cell in {str(runs)!r} and no records in {str(records)!r}"
            refuse(f"out must hold finished runs, {there}: train some by concretely reproduce NAME")
        for name, text in (("README.md", report(found)), ("index.html", page(found))):
            with atomic_write(records.parent / name) as place:
                place.write_text(text, encoding="utf-8")
            typer.echo(records.parent / name)
    typer.echo(f"{found.known} of {found.total} cells")
