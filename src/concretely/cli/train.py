"""`concretely train`: train a model of the paper, callbacks it, stop it, go on with it."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..training.member import DIFFERENT, Member, data_key
from ..training.recipe import FILE, Recipe
from .compare import compared
from .flags import loaded, loaded_once, resolved, with_recipe
from .list import choices, differing, named, title
from .member import (
    Wish,
    dry_run,
    interrupted,
    require_different,
    require_fitting,
    require_no_longer,
    score,
    train_all,
)
from .terminal import (
    Device,
    Products,
    console,
    device,
    interruptible,
    prepare,
    refuse,
    refusing,
    require,
    show,
    stopping,
)

if TYPE_CHECKING:
    import torch

    from ..data import Dataset
    from ..training.run import Run

EXAMPLE = "Example: concretely train 32H~64V --steps 500"


@with_recipe
def train(
    notation: Annotated[
        str | None, typer.Argument(help="The model in the paper's notation, such as 200H~784V.")
    ] = None,
    *,
    given: dict[str, Any],
    resume: Annotated[Path | None, typer.Option(help="The folder of a run to go on with; --steps may grow.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the run.", show_default="out/train/ and a name")
    ] = None,
    device_name: Device = None,
    products: Products = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="The seconds from one checkpoint to the next.")] = 60.0,
    score_samples: Annotated[int, typer.Option(help="Samples by which the trained model is scored.")] = 100,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write event files into the folder.")] = False,
) -> None:
    """Train a model, and leave a report of it. Ctrl-C saves and says how to go on.

    data, binarize, train-on, lr, weight-decay, temperature, prior-temperature and seed may be lists such as 1e-4,3e-4
    or, of seeds, 0..7: all members are then trained as one program, each in a folder of its own, and the same command
    goes on with them.
    """
    require(checkpoint_seconds >= 0, "checkpoint-seconds", "not be negative", checkpoint_seconds)
    require(score_samples >= 1, "score-samples", "be at least 1", score_samples)
    recipes = [] if resume is not None else _recipes(notation, given)
    if len(recipes) > 1:
        if tensorboard:
            refuse("tensorboard must be left out where there are several members, each of which has a curve.csv")
        on = device(device_name, products)
        _train_together(recipes, out, on=on, checkpoint_seconds=checkpoint_seconds, samples=score_samples)
        return
    if resume is None:
        (recipe,) = recipes
        folder = Path("out/train") / recipe.title if out is None else out
        _require_unused(folder)
        place = None
    else:
        recipe, folder, place = _continued(resume, notation, given, out), resume, given.get("data")
    on = device(device_name, products)
    data = loaded(recipe, place, again=resume is not None)
    run = _fit(recipe, folder, data, on=on, checkpoint_seconds=checkpoint_seconds, tensorboard=tensorboard)
    if not run.finished:
        typer.echo(f"stopped after step {run.step:,}, saved; go on with: {_way_on(folder)}", err=True)
        raise typer.Exit(130)
    _finish(folder, data, on=on, samples=score_samples)


def _recipes(notation: str | None, given: dict[str, Any]) -> list[Recipe]:
    """The recipes that lists mean."""
    with refusing():
        wished = choices(given)
    return [resolved(notation, choice) for choice in wished]


def _train_together(
    recipes: list[Recipe], out: Path | None, *, on: "torch.device", checkpoint_seconds: float, samples: int
) -> None:
    """Train several models as one program, score each, and show them beside each other."""
    keys = differing(recipes) or DIFFERENT  # else they are all the same, which is refused
    folder = Path("out/train") / title(recipes) if out is None else out
    members = [Member(recipe, folder / name) for recipe, name in zip(recipes, named(recipes, keys), strict=True)]
    require_different(members)
    _require_unused(folder)
    for member in members:
        require_fitting(member)
        require_no_longer(member)
    every = loaded_once(recipes)

    def data(recipe: Recipe) -> "Dataset":
        return every[data_key(recipe)]

    with refusing():
        dry_run(recipes[0], data(recipes[0]), on=on)
    prepare(folder)
    sources = "\n".join(each.source for each in every.values())
    console(err=True).print(f"{len(members)} members in {folder}\n{sources}", markup=False, style="dim")
    if not train_all(members, data, on=on, checkpoint_seconds=checkpoint_seconds):
        interrupted()
    try:
        found = [score(member, data(member.recipe), {"test": Wish(samples)}, on=on) for member in members]
    except KeyboardInterrupt:
        interrupted()
    records = {member.folder.name: record for member, record in zip(members, found, strict=True) if record is not None}
    if records:
        show(compared(list(records.values()), "test", list(records)))
        console().print(str(folder), style="bold", markup=False)
    for member in members:
        if member.folder.name not in records:
            typer.echo(f"{member.folder.name} has diverged: try a smaller lr", err=True)
    if len(records) < len(members):
        raise typer.Exit(1)


def _fit(
    recipe: Recipe,
    folder: Path,
    data: "Dataset",
    *,
    on: "torch.device",
    checkpoint_seconds: float = 60.0,
    tensorboard: bool = False,
) -> "Run":
    """Train in a folder before the user's eyes, until it is finished or interrupted.

    What has written events before goes on to do so.
    """
    from ..training.loop import DivergedError, train
    from ..training.train_state import TrainState
    from .screen import screen

    with refusing():
        TrainState(recipe, data, device=on).dry_run()  # what a step would refuse is refused before a folder is made
    prepare(folder)
    err = console(err=True)
    err.print(f"{recipe.toml()}# {data.source}", markup=False, style="dim")
    events = folder / "tensorboard"
    written = events if tensorboard or events.is_dir() else None
    with refusing(), screen(recipe, err, written) as callbacks, stopping() as stop:
        try:
            return train(
                recipe,
                folder,
                data=data,
                device=on,
                checkpoint_seconds=checkpoint_seconds,
                callbacks=callbacks,
                stop=stop,
            )
        except DivergedError as error:
            err.print(str(error), markup=False)
            raise typer.Exit(1) from None
        except OSError as error:
            why = error.strerror or str(error)
            refuse(f"{str(folder)!r} cannot be written to: {why}; make room, then go on with: {_way_on(folder)}")


def _finish(folder: Path, data: "Dataset", *, on: "torch.device", samples: int) -> None:
    """Score what a folder holds, write its report, and say both."""
    from ..report.run import leave, scored
    from ..training.run import restored

    out = console()
    with refusing():
        run, model, damaged = restored(folder, device=on)
        for sentence in damaged:
            console(err=True).print(f"{sentence}; scoring that of step {run.step:,}", markup=False)
        way = f"concretely evaluate {shlex.quote(str(folder))}"
        with interruptible(f"stopped; the model is trained and saved, but not scored; score it with: {way}"):
            found = scored(run.recipe, model, data, part="test", samples=samples, progress=True)
        out.print(f"test {found}", markup=False)
        with stopping():  # who interrupts now gets all of it a moment later, not half
            *_, page = leave(folder, run, model, data=data, found={"test": found})
    out.print(str(page), style="bold", markup=False)


def _way_on(folder: Path) -> str:
    return f"concretely train --resume {shlex.quote(str(folder))}"


def _require_unused(folder: Path) -> None:
    if (folder / FILE).exists():
        refuse(f"{str(folder)!r} holds a run already: go on with it by --resume, or choose another folder by --out")


def _continued(resume: Path, notation: str | None, given: dict[str, Any], out: Path | None) -> Recipe:
    """The recipe of a run that goes on."""
    from ..training.run import load_recipe, runs_in

    others = [*given, *(["notation"] if notation else []), *(["out"] if out else [])]
    if others := [name for name in others if name not in ("steps", "data")]:
        refuse(f"a run that goes on keeps its recipe but for steps and where data are, got {', '.join(others)}")
    with refusing():
        try:
            recipe = load_recipe(resume)
        except ValueError as error:
            together = not (resume / FILE).exists() and runs_in(resume)
            refuse(f"{error}{', or go on with all by the command that began them' if together else ''}")
    if "steps" not in given:
        return recipe
    return replace(recipe, steps=resolved(recipe.notation, {"steps": given["steps"]}).steps)
