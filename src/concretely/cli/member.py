"""Runs that are trained and scored one after another, as parts of a sweep or of a table."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import typer

from ..file import draft
from ..training.recipe import FILE, Recipe
from .terminal import console, refuse, refusing, stopping

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from ..data import Dataset
    from ..training.run import Run

DIVERGED = "diverged.txt"
"""What a run leaves that has diverged, and that is then not tried again."""
BRIEF = 1_000
"""Runs of fewer steps are over before there is anything to say of them."""


class Member(NamedTuple):
    """A run of several."""

    recipe: Recipe
    folder: Path


def train_all(
    members: Sequence[Member],
    data: Callable[[Recipe], "Dataset"],
    *,
    on: "torch.device",
    first: int = 1,
    of: int | None = None,
) -> bool:
    """Train the members that are not finished, and whether all are settled now, so that none was interrupted.

    Shown as members from the first on, of so many.
    """
    from ..training.run import DivergedError, Watch, train
    from .screen import screen

    err = console(err=True)
    with stopping() as stop:
        for index, (recipe, folder) in enumerate(members, start=first):
            if settled(Member(recipe, folder)):
                continue
            err.print(f"{index} of {of or len(members)}: {folder.name}", markup=False)
            quiet = recipe.steps < BRIEF and not err.is_terminal
            with refusing(), nullcontext(Watch(note=_noting(err))) if quiet else screen(recipe, err, None) as watch:
                try:
                    run = train(recipe, folder, data=data(recipe), device=on, watch=watch, stop=stop)
                except DivergedError as error:
                    err.print(str(error), markup=False)
                    with draft(folder / DIVERGED) as place:
                        place.write_text(f"{error}\n", encoding="utf-8")
                    continue
            if stop() or not run.finished:
                return False
    return True


def score(
    member: Member, data: "Dataset", *, parts: Sequence[str], samples: int, on: "torch.device"
) -> dict[str, Any] | None:
    """The record of a member, with the likelihoods of parts of the data; None if it has nothing to be scored."""
    from ..report.run import leave, scored
    from ..training.run import restored

    if not settled(member) or (member.folder / DIVERGED).exists():
        return None
    before = known(member)
    metrics = {} if before is None else before["metrics"]
    missing = [part for part in parts if metrics.get(f"{part}_nll", {}).get("samples", 0) < samples]
    if missing:
        err = console(err=True)
        err.print(f"scoring {member.folder.name}", markup=False)
        with refusing():
            run, model, _ = restored(member.folder, device=on)
            found = {
                part: scored(run.recipe, model, data, part=part, samples=samples, progress=err.is_terminal)
                for part in missing
            }
            leave(member.folder, run, model, data=data, found=found)
    return known(member)


def settled(member: Member) -> bool:
    """Whether there is nothing left to train, as it has been done or cannot be."""
    if (member.folder / DIVERGED).exists():
        return True
    run = reached(member.folder)
    return run is not None and ((run.finished and run.recipe == member.recipe) or run.step >= member.recipe.steps)


def known(member: Member) -> dict[str, Any] | None:
    """The record of a member, unless it is of fewer steps than have been taken."""
    from ..report.record import FILE as RECORD
    from ..report.record import read
    from ..report.run import settings_of

    run, path = reached(member.folder), member.folder / RECORD
    if run is None or not path.exists():
        return None
    with refusing():
        found = read(path)
    return found if found["recipe"] == settings_of(run.recipe) and found.get("step") == run.chosen else None


def require_fitting(member: Member) -> None:
    """Refuse to go on with a run in a folder that is of another recipe."""
    from ..training.run import begun

    recipe, folder = member
    if not (folder / FILE).exists():
        return
    with refusing():
        was = begun(folder)
    grows = recipe.lr_schedule == "constant"  # or else it falls towards the last step
    if was != (replace(recipe, steps=was.steps) if grows else recipe):
        changed = [name for name, value in recipe.settings.items() if was.settings.get(name) != value]
        refuse(f"{str(folder)!r} holds a run with another {', '.join(changed)}: choose another folder by --out")


def interrupted() -> NoReturn:
    """Say how to go on after an interruption, and stop."""
    typer.echo("stopped and saved; the same command goes on", err=True)
    raise typer.Exit(130)


def reached(folder: Path) -> "Run | None":
    """What the run in a folder has come to, or None if there is none yet."""
    from ..training.run import restored

    if not any(folder.glob("checkpoint-*.json")):
        return None
    with refusing():
        return restored(folder)[0]


def _noting(err: "Console") -> Callable[[str], None]:
    return lambda sentence: err.print(sentence, markup=False)
