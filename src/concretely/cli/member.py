"""Runs that are trained and scored together, as parts of a list, a sweep or a table."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import typer

from ..file import atomic_write
from ..training.member import Member, alike
from ..training.recipe import FILE, Recipe
from .terminal import console, refuse, refusing, stopping

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from ..data import Dataset
    from ..model import Model
    from ..training.run import Run

DIVERGED = "diverged.txt"
"""What a run leaves that has diverged, and that is then not tried again."""
BRIEF = 1_000
"""Runs of fewer steps are over before there is anything to say of them."""
MOST = 64
"""The most members of one program."""
HEARING = 0.2
"""After so many seconds a thread that waits for others hears of a signal."""

Stop = Callable[[], bool]
"""What says whether there is reason to stop."""


def train_all(
    members: Sequence[Member],
    data: Callable[[Recipe], "Dataset"],
    *,
    on: "torch.device",
    at_once: int = 1,
    checkpoint_seconds: float = 60.0,
    then: Callable[[Sequence[Member], Stop], None] = lambda group, stop: None,
) -> bool:
    """Train the members that are not finished, and whether all are settled now, so that none was interrupted.

    Members of one architecture are one program, and so many programs share the device at once. What comes after
    training is done for the members of a program when it has ended; if it raises KeyboardInterrupt, that ends all.
    """
    groups, failed = _programs(members), Event()
    at_once = min(at_once, len(groups))
    with stopping() as asked:

        def stop() -> bool:
            return asked() or failed.is_set()

        def work(group: Sequence[Member]) -> bool:
            try:
                with _stream(on):
                    alone = at_once == 1
                    if stop() or not _train(group, data, on=on, seconds=checkpoint_seconds, stop=stop, alone=alone):
                        return False
                    then(group, stop)
            except KeyboardInterrupt:
                failed.set()
                return False
            except BaseException:
                failed.set()  # so that the others save and end, too
                raise
            return not stop()

        if at_once <= 1:
            return all(work(group) for group in groups)
        with ThreadPoolExecutor(at_once) as pool:
            working = [pool.submit(work, group) for group in groups]
            while wait(working, timeout=HEARING).not_done:
                pass  # a signal that has come to another thread is heard once this one, the first, wakes up
            whole = [each.result() for each in working]  # of all, or an error might be passed over
            return all(whole)


def _programs(members: Sequence[Member]) -> list[list[Member]]:
    """The members that can be trained together, in the order of the first of each."""
    groups: list[list[Member]] = []
    for member in members:
        fitting = (group for group in groups if len(group) < MOST and alike(group[0].recipe, member.recipe))
        found = next(fitting, None)
        if found is None:
            groups.append([member])
        else:
            found.append(member)
    return groups


def _train(
    group: Sequence[Member],
    data: Callable[[Recipe], "Dataset"],
    *,
    on: "torch.device",
    seconds: float,
    stop: Stop,
    alone: bool,
) -> bool:
    """Train what is not finished of a program, and whether all of it is settled now."""
    from ..training import loop
    from .screen import screen

    waiting = [member for member in group if not settled(member)]
    if not waiting:
        return True
    err, recipe = console(err=True), waiting[0].recipe
    together = f"{len(waiting)} members of {recipe.notation} as one program"
    err.print(waiting[0].folder.name if len(waiting) == 1 else together, markup=False)
    quiet = recipe.steps < BRIEF and not err.is_terminal
    shown = nullcontext(loop.Watch(note=_noting(err))) if quiet else screen(recipe, err, None, bar=alone)
    with refusing(), shown as watch:
        found = loop.train_together(waiting, data=data, device=on, checkpoint_seconds=seconds, watch=watch, stop=stop)
    for member, run in zip(waiting, found, strict=True):
        if isinstance(run, loop.DivergedError):
            if len(waiting) == 1:
                err.print(str(run), markup=False)
            with atomic_write(member.folder / DIVERGED) as place:
                place.write_text(f"{run}\n", encoding="utf-8")
    return all(isinstance(run, loop.DivergedError) or run.finished for run in found)


def _stream(on: "torch.device") -> AbstractContextManager[object]:
    """A queue of work of one's own, so that programs do not wait for each other."""
    import torch

    return torch.cuda.stream(torch.cuda.Stream(on)) if on.type == "cuda" else nullcontext()


@contextmanager
def heeding(stop: Stop, model: "Model") -> Iterator[None]:
    """Have a model raise KeyboardInterrupt, before its next layer runs, once there is reason to stop.

    In a thread of its own it would not hear of one.
    """

    def look(*_: object) -> None:
        if stop():
            raise KeyboardInterrupt

    handles = [module.register_forward_pre_hook(look) for module in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Wish(NamedTuple):
    """How well the likelihood of a part of the data is to be known."""

    samples: int
    thorough: int | None = None
    """How many data points get all samples, by default all."""


def score(
    member: Member, data: "Dataset", wishes: Mapping[str, Wish], *, on: "torch.device", stop: Stop = lambda: False
) -> dict[str, Any] | None:
    """The record of a member, with the likelihoods of parts of the data; None if it has nothing to be scored."""
    from ..report.record import suffices
    from ..report.run import leave, leave_record, scored
    from ..training.run import restored

    if not settled(member) or (member.folder / DIVERGED).exists():
        return None
    before = known(member)
    metrics = {} if before is None else before["metrics"]
    missing = {
        part: wish
        for part, wish in wishes.items()
        if not suffices(metrics.get(f"{part}_nll", {}), samples=wish.samples, thorough=wish.thorough)
    }
    if missing:
        err = console(err=True)
        err.print(f"scoring {member.folder.name}", markup=False)
        with refusing():
            run, model, _ = restored(member.folder, device=on)
            score = partial(scored, run.recipe, model, data, progress=err.is_terminal)
            found = {}
            try:
                with heeding(stop, model):
                    for part, wish in missing.items():
                        found[part] = score(part=part, samples=wish.samples, full_points=wish.thorough)
            finally:  # what was found before an interruption is kept
                if found:
                    # what is only compared with others needs no pictures, which take longer than to score it
                    write = leave_record if found.keys() <= {"valid"} else leave
                    write(member.folder, run, model, data=data, found=found)
    return known(member)


def validation(record: Mapping[str, Any] | None) -> float:
    """By what members are chosen, the lowest first: those of which nothing is known come last."""
    value = None if record is None else record["metrics"].get("valid_nll", {}).get("value")
    return math.inf if value is None else value


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


def require_different(members: Sequence[Member]) -> None:
    """Refuse members that would be trained in one folder."""
    names = [member.folder.name for member in members]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        refuse(f"members must differ from each other, got {twice} twice")


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


def require_no_longer(member: Member) -> None:
    """Refuse a run that has gone further than the others will."""
    run = reached(member.folder)
    if run is not None and run.step > member.recipe.steps:
        refuse(
            f"steps must be at least {run.step:,}, which the run in {str(member.folder)!r} has taken, "
            f"got {member.recipe.steps:,}: choose another folder by --out"
        )


def rehearse(recipe: Recipe, data: "Dataset", *, on: "torch.device") -> None:
    """Have what a step would refuse be refused before any is taken; it is the same for all members."""
    from ..training.trainer import Trainer

    Trainer(recipe, data, device=on).rehearsed()


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
