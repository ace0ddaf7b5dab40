"""`concretely train`: train a model or a list of models, and resume runs."""

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ..experiment.grid import expand_grid
from ..training.own_resolve import remove_runs, resolve_recipe
from ..training.recipe import FILE, resolve
from . import terminal
from .option import (
    Device,
    MaxBytes,
    MembersPerProgram,
    Notation,
    Precision,
    Shared,
    folder_of,
    load_data,
    select_device,
    select_place,
    with_precision,
    with_recipe,
)
from .terminal import fail

if TYPE_CHECKING:
    import torch

    from ..training.own_recipe import RunRecipe
    from ..training.parallel import World

EXAMPLE = "Example: concretely train 32H~64V --steps 500 --lr 3e-3"
SECONDS, SAMPLES = 60.0, 100
"""The default seconds between checkpoints, and samples for scoring."""


@with_recipe
def train(
    notation: Notation = None,
    *,
    given: dict[str, Any],
    resume: Annotated[
        Path | None, typer.Option(**folder_of("resume"), help="Folder of a run to resume; --steps may be larger.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(**folder_of("out"), help="Output folder.", show_default="out/train/ and a name")
    ] = None,
    max_bytes: MaxBytes = None,
    device_name: Device = None,
    precision: Precision = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = SECONDS,
    score_samples: Annotated[int, typer.Option(help="Samples for scoring the trained model.")] = SAMPLES,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run in the output folder.")] = False,
    share: Shared = False,
    members_per_program: MembersPerProgram = None,
    shard: Annotated[bool, typer.Option("--shard", help="With torchrun: shard the parameters over ranks.")] = False,
) -> None:
    """Train a model, score it and write a report. Ctrl-C saves a checkpoint and prints how to resume.

    data, binarize, train-on, lr, weight-decay, temperature, prior-temperature, beta, clip, ema, seed and the values of
    set may be lists such as 1e-4,3e-4 or, for seeds, 0..7. All members of a list train as one program, each in its own
    folder. Run the same command again to go on with an interrupted list. With --share, run it in several terminals or
    on several machines with one shared folder: each process takes members that no other has.

    With torchrun --nproc-per-node N -m concretely train, N processes train one model, each on its part of every batch.
    """
    with terminal.as_rank(device_name, precision, shard=shard) as world:
        terminal.require(checkpoint_seconds >= 0, "checkpoint-seconds", "not be negative", checkpoint_seconds)
        terminal.require_positive(score_samples=score_samples, max_bytes=max_bytes)
        place = select_place(share=share, members_per_program=members_per_program)
        if share and overwrite:
            fail("overwrite must be left out with --share, as it would delete what other processes train")
        if resume is not None:
            if overwrite:
                fail("overwrite must be left out with --resume, as it would delete the run to resume")
            recipes, folder = [_resumed(resume, given, out)], resume
        else:
            from ..experiment.folder_name import train_folder

            with terminal.report_errors():
                recipes = [resolve_recipe(**with_precision(choice, precision)) for choice in expand_grid(given)]
                folder = out or train_folder(recipes, Path("out/train"))
            if overwrite and world is not None:
                fail("overwrite must be left out with torchrun, as a restart would delete the run: delete it first")
            if (folder / FILE).exists() and world is None and not overwrite:  # a restart by torchrun goes on with it
                todo = "resume it with --resume, replace it with --overwrite, or choose another folder with --out"
                fail(f"{str(folder)!r} already holds a run: {todo}")
        if share and len(recipes) == 1:
            fail("share must be left out for a single run, which one process trains: pass a list such as --seed 0..7")
        if tensorboard and len(recipes) > 1:
            fail("tensorboard must be left out for a list: each member has a curve.csv")
        if len(recipes) > 1 and world is not None:
            fail(f"a list must be trained without torchrun, which trains one model, got {len(recipes)} members")
        device = select_device(device_name, precision) if world is None else world.device
        how: dict[str, Any] = {"device": device, "checkpoint_seconds": checkpoint_seconds, "overwrite": overwrite}
        if len(recipes) > 1:
            _train_list(recipes, folder, samples=score_samples, max_bytes=max_bytes, on=place, **how)
            return
        moved = given.get("data") if resume else None
        with nullcontext() if world is None else world.in_turn():
            data = load_data(recipes[0], moved, resumed=resume is not None, max_bytes=max_bytes)
        flags = {"data": moved, "max-bytes": max_bytes, "device": device_name, "precision": precision}
        flags["checkpoint-seconds"] = checkpoint_seconds if checkpoint_seconds != SECONDS else None
        flags["score-samples"] = score_samples if score_samples != SAMPLES else None
        how |= {"data": data, "samples": score_samples, "tensorboard": tensorboard, "world": world}
        _train_one(recipes[0], folder, way_on=_resume_command(folder, flags), **how)
        _score(folder, data, device=device, samples=score_samples, world=world)


def _train_list(recipes: Sequence["RunRecipe"], folder: Path, *, overwrite: bool, **how: Any) -> None:
    """Train several models together, and print their test likelihoods."""
    from ..experiment.record import score_key
    from ..experiment.search import train_list
    from ..report.table import likelihood_table

    again = "the same command without --overwrite" if overwrite else "the same command"
    stopped = terminal.interruptible(f"stopped and saved; run {again} to go on")
    with terminal.report_errors(), stopped, terminal.stop_requested() as stop:
        members = train_list(recipes, folder, **how, overwrite=overwrite, monitor=terminal.monitor(stop))
    records = {member.folder.name: record for member, record in members if record is not None}
    if records:
        metrics = [record["metrics"] for record in records.values()]
        split = "test" if all(score_key(known, "test") in known for known in metrics) else "valid"
        terminal.show(likelihood_table(list(records.values()), split, list(records)))
        terminal.show_path(folder)
    for member, record in members:
        if record is None:
            terminal.remark(f"{member.folder.name} has diverged: {_smaller_lr(member.recipe, member.folder)}")
    if len(records) < len(members):
        raise typer.Exit(1)


def _train_one(
    recipe: "RunRecipe",
    folder: Path,
    *,
    samples: int,
    tensorboard: bool,
    way_on: str,
    overwrite: bool,
    world: "World | None" = None,
    **how: Any,
) -> None:
    """Train a model until it is finished; exit if it diverges or is interrupted, with the command to go on."""
    from ..experiment.scoring import require_scorable
    from ..experiment.subject import scored_split
    from ..file import FULL, writable_dir
    from ..training.loop import DivergedError, train
    from ..training.parallel import ALONE
    from ..training.train_state import TrainState
    from ..training.user_error import is_raised_by_user

    with terminal.report_errors():
        ranks = ALONE if world is None else world
        # bad input raises before anything is written
        state = TrainState.of(recipe, how["data"], device=how["device"], world=ranks)
        state.dry_run()
        if world is None:
            require_scorable(recipe, state.model, how["data"], split=scored_split(how["data"]), samples=samples)
        if world is None or world.is_first:
            writable_dir(folder)
        if overwrite:
            remove_runs(folder)
    terminal.remark(f"{recipe.toml()}# {how['data'].source}", style="dim")
    events = folder / "tensorboard"
    events_folder = events if tensorboard or events.is_dir() else None  # a resumed run goes on with its events
    if world is not None and not world.is_first:
        events_folder = None
    with (
        terminal.report_errors(),
        terminal.training_progress(recipe, terminal.console(err=True), events_folder) as callbacks,
        terminal.stop_requested() as stop,
    ):
        try:
            run = train(recipe, folder, **how, callbacks=callbacks, stop=stop, world=ranks)
        except DivergedError as error:
            terminal.remark(f"{error}, such as by: {_smaller_lr(recipe, folder)}")
            raise typer.Exit(1) from None
        except OSError as error:
            if is_raised_by_user(error):
                raise
            why = error.strerror or str(error)
            todo = "free some space, then resume" if error.errno in FULL else "resume"
            fail(f"{str(folder)!r} cannot be written to: {why}; {todo} with: {way_on}")
    if not run.finished:
        fail(f"stopped after step {run.step:,} and saved; resume with: {way_on}", 130)


def _resume_command(folder: Path, flags: dict[str, Any]) -> str:
    """Return the command that resumes a run with the same flags, but for those that are None."""
    given = [f"--{name} {shlex.quote(str(flag))}" for name, flag in flags.items() if flag is not None]
    return " ".join(["concretely train --resume", shlex.quote(str(folder)), *given])


def _smaller_lr(recipe: "RunRecipe", folder: Path) -> str:
    """Return the command that trains a recipe again with a smaller learning rate, in another folder."""
    lr, recipe_file = f"{recipe.settings.get('lr', 1e-3) / 10:.1g}", shlex.quote(str(folder / FILE))
    out, name = shlex.quote(f"{folder}-lr{lr}"), recipe.settings.get("model")
    model = "" if name is None else f"{shlex.quote(name)} "
    return f"concretely train {model}--recipe {recipe_file} --lr {lr} --out {out}"


def _score(folder: Path, data: Any, *, device: "torch.device", samples: int, world: "World | None" = None) -> None:
    """Score the trained model in a folder, and write its report. Several ranks share the work; the first one writes."""
    from ..experiment.scoring import add_scores, score_split
    from ..experiment.subject import scored_split
    from ..training.folder import restored
    from ..training.parallel import ALONE

    world = ALONE if world is None else world
    with terminal.report_errors():
        run, model, damaged = restored(folder, device=device)
        for sentence in damaged:
            terminal.remark(f"{sentence}; scoring the one of step {run.step:,}")
        score = f"concretely evaluate {shlex.quote(str(folder))}"
        with terminal.interruptible(f"stopped; the model is trained and saved, but not scored; score it with: {score}"):
            split = scored_split(data)
            likelihood = score_split(run.recipe, model, data, split=split, samples=samples, progress=True, world=world)
        if not world.is_first:
            return
        terminal.show_text(f"{split} {likelihood}")
        try:
            with terminal.stop_requested():  # a signal here must not leave a partial report
                record = add_scores(folder, run, model, data=data, scores={split: likelihood}, note=terminal.remark)
                page = terminal.write_run_report(folder, run, model, data, record)
        except OSError as error:
            fail(f"{terminal.describe_error(error)}; the model is trained and saved; write its report with: {score}")
    terminal.show_path(page)


def _resumed(folder: Path, given: dict[str, Any], out: Path | None) -> "RunRecipe":
    """Return the recipe of a run to resume."""
    from ..training.builder import imported
    from ..training.folder import load_recipe, rename_builder, runs_in
    from ..training.origin import SCRIPT, require_named
    from ..training.own_recipe import OwnRecipe

    others = [name for name in (*given, *(["out"] if out else [])) if name not in ("steps", "data", "model")]
    if others:
        fail(f"a resumed run keeps its recipe except for steps and the path of its data, got {', '.join(others)}")
    with terminal.report_errors():
        try:
            recipe = load_recipe(folder)
        except ValueError as error:
            several = not (folder / FILE).exists() and runs_in(folder)
            fail(f"{error}{', or resume all with the command that started them' if several else ''}")
        name = given.get("model")
        if isinstance(recipe, OwnRecipe):
            if not recipe.model or recipe.model.startswith(SCRIPT):  # of a model without a name, or of a script
                fail(f"a run of a script must be resumed by the script, got {str(folder)!r}: run the script again")
            require_named(folder, recipe, name)
        if name not in (None, recipe.settings.get("model")):
            recipe = rename_builder(folder, name)
        elif isinstance(recipe, OwnRecipe):
            try:
                imported(recipe.model)
            except ValueError as error:
                fail(f"{error}; name the builder of this run as first argument, such as file.py:build")
        if "steps" not in given:
            return recipe
        steps = resolve(notation="1H-1V", steps=given["steps"]).steps
        return cast("RunRecipe", replace(cast("Any", recipe), steps=steps))
