"""Runs that are trained, watched, stopped and resumed: one, or many of one architecture as one program.

Whatever ends a run, at most the steps since its last checkpoint are done again, and they end in the same parameters.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ..data import Dataset
from ..environment import describe_environment
from ..file import exclusive_dir
from . import checkpoint
from .ensemble import Ensemble
from .member import Member
from .recipe import FILE, Recipe
from .run import Run, finish, keep, require_same, resumed, write
from .trainer import WATCHED, Row, Trainer

ROWS = 500
"""The most rows that a curve has, or some more if it has grown."""
HOPELESS = 10
"""A bound so many times as far below zero as before training is no bad luck."""


class DivergedError(ArithmeticError):
    """Training that has become useless; its sentence says where, and where to go back to."""


@dataclass(frozen=True)
class Watch:
    """Who wants to know how runs are doing; of several, rows are averages over those that go on."""

    step: Callable[[int], None] = lambda step: None
    row: Callable[[Row], None] = lambda row: None
    note: Callable[[str], None] = lambda sentence: None


def train(
    recipe: Recipe,
    folder: Path,
    *,
    data: Dataset,
    device: torch.device | str = "cpu",
    checkpoint_seconds: float = 60.0,
    watch: Watch = Watch(),  # noqa: B008 (frozen)
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Train a model in a folder, from the last checkpoint there or from the start.

    A checkpoint is written every so many seconds, when there is reason to stop, and at the end. After each step `stop`
    is asked whether there is.
    """
    (found,) = train_together(
        [Member(recipe, folder)],
        data=lambda recipe: data,
        device=device,
        checkpoint_seconds=checkpoint_seconds,
        watch=watch,
        stop=stop,
    )
    if isinstance(found, DivergedError):
        raise found
    return found


def train_together(
    members: Sequence[Member],
    *,
    data: Callable[[Recipe], Dataset],
    device: torch.device | str = "cpu",
    checkpoint_seconds: float = 60.0,
    watch: Watch = Watch(),  # noqa: B008 (frozen)
    stop: Callable[[], bool] = lambda: False,
) -> list[Run | DivergedError]:
    """Train runs of one architecture as one program, each in its folder; what each has come to.

    Each ends as it would alone, up to rounding, which may now and then tip a discrete draw. One that diverges does not
    disturb the others.
    """
    own = [data(member.recipe) for member in members]
    moved = {id(each): each.to(device) for each in own}  # once, however many share them
    trainers = [
        Trainer(member.recipe, moved[id(each)], device=device) for member, each in zip(members, own, strict=True)
    ]
    starts = [trainer.rehearsed() for trainer in trainers]
    made = describe_environment(str(trainers[0].device))
    with ExitStack() as stack:
        courses = []
        for member, each, trainer, start in zip(members, own, trainers, starts, strict=True):
            member.folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(exclusive_dir(member.folder))
            courses.append(_begun(member, each, trainer, start, watch, made))
        behind = [course for course in courses if course.goes_on]
        while behind:  # those that were resumed from an earlier step catch up with the others
            first = min(course.place for course in behind)
            group = [course for course in behind if course.place == first]
            later = [course.trainer.step for course in behind if course.trainer.step > first[0]]
            until, several = min(later, default=None), len(members) > 1
            if not _train(group, checkpoint_seconds, watch, stop, until=until, several=several):
                break
            behind = [course for course in behind if course.goes_on]
    return [course.failure or course.run for course in courses]


@dataclass
class _Course:
    """A run that is being trained."""

    folder: Path
    trainer: Trainer
    run: Run
    failure: DivergedError | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The step that it has come to, and that of its last row."""
        return self.trainer.step, self.trainer.since

    @property
    def goes_on(self) -> bool:
        return self.failure is None and not self.run.finished


def _begun(
    member: Member, data: Dataset, trainer: Trainer, start: float, watch: Watch, made: dict[str, Any]
) -> _Course:
    """A run at its last checkpoint, or at the start."""
    found = resumed(trainer, member.folder)
    run, damaged = found or (Run(member.recipe, made, data.digest, start, step=0, seconds=0.0), ())
    for sentence in damaged:
        watch.note(f"{sentence}; going on from step {run.step:,}")
    require_same(run, data)
    write(member.folder / FILE, member.recipe.toml())  # only now, as a run that is refused keeps its own
    if run.finished:
        finish(run, trainer, member.folder)  # again, should anything of it have been lost
    return _Course(member.folder, trainer, run if run.finished else replace(run, made=made))


def _train(
    courses: list[_Course],
    checkpoint_seconds: float,
    watch: Watch,
    stop: Callable[[], bool],
    *,
    until: int | None,
    several: bool,
) -> bool:
    """Take steps up to one or to the end, and look up where there is something to write down; whether it got there."""
    recipe, saved, stopped = courses[0].trainer.recipe, time.monotonic(), False
    active = [course for course in courses if course.goes_on]
    for course in active:
        course.run = replace(course.run, members=len(active))
    program: Trainer | Ensemble | None = None

    def pause() -> bool:
        nonlocal stopped
        watch.step(active[0].trainer.step)
        stopped = stop()
        return stopped or time.monotonic() - saved > checkpoint_seconds

    while active and not stopped and active[0].trainer.step != until:
        # until most have come to an end, those that have cost less than a new program
        if program is None or len(active) <= program.size // 2:
            program = _program([course.trainer for course in active])
        ends, started = _ends(recipe, program.step), time.perf_counter()
        program.advance(min(ends if until is None else [*ends, until]), pause=pause)
        if isinstance(program, Ensemble):
            for course in active:
                course.trainer.seconds += (time.perf_counter() - started) / len(active)
        due, at_end = stopped or time.monotonic() - saved > checkpoint_seconds, program.step in ends
        for course in active:
            _look(course, at_end=at_end, due=due)
        saved = time.monotonic() if due else saved
        for course in active:
            if course.failure is not None and several:
                watch.note(f"{course.folder.name}: {course.failure}")
        rows = [course.run.rows[-1] for course in active if course.failure is None and at_end]
        if rows:
            watch.row(_average(rows))
        active = [course for course in active if course.goes_on]
    for course in courses:
        if course.failure is None and not course.run.finished:
            finish(course.run, course.trainer, course.folder)
    return not stopped


def _program(trainers: list[Trainer]) -> Trainer | Ensemble:
    """What takes the steps of trainers; on a CPU, one alone is fastest by itself."""
    lone = len(trainers) == 1 and trainers[0].device.type == "cpu"
    return trainers[0] if lone else Ensemble(trainers)


def _look(course: _Course, *, at_end: bool, due: bool) -> None:
    """See how a run is doing, and write it down where the time has come."""
    trainer, folder = course.trainer, course.folder
    try:
        _require_sound(trainer, folder)
        _require_hope(trainer, course.run, folder)
        if at_end:
            _require_finite(trainer, folder)
            course.run = _with_row(trainer, course.run)
        course.run = replace(course.run, step=trainer.step, seconds=trainer.seconds)
        if course.run.finished or due:
            _require_finite(trainer, folder)
            keep(course.run, trainer, folder)
    except DivergedError as error:
        course.failure = error
        return
    if course.run.finished:
        finish(course.run, trainer, folder)


def _with_row(trainer: Trainer, run: Run) -> Run:
    """The run with one more row, and with a look at the validation set where the recipe wants one."""
    recipe, best, stale = trainer.recipe, run.best, run.stale
    # a run that was stopped after a row may be asked to end right there
    again = bool(run.rows) and run.rows[-1].step == trainer.step
    rows, row = (run.rows[:-1], run.rows[-1]) if again else (run.rows, trainer.row())
    if recipe.validate and trainer.step % recipe.validate == 0:
        nll = trainer.validated()
        row = replace(row, valid=nll)
        if best is None or nll < best[1]:
            best, stale = (trainer.step, nll), 0
            trainer.keep()
        else:
            stale += 1
    finished = trainer.step >= recipe.steps or 0 < recipe.patience <= stale
    return replace(run, rows=(*rows, row), best=best, stale=stale, finished=finished)


def _require_sound(trainer: Trainer, folder: Path) -> None:
    fault = trainer.fault()
    if fault is not None:
        step, layer = fault
        raise DivergedError(
            f"the gradient of step {step + 1:,} is not finite, first in layer {layer}; {_way_back(folder)}"
        )


def _require_finite(trainer: Trainer, folder: Path) -> None:
    layer = trainer.spoiled()
    if layer is not None:
        raise DivergedError(
            f"the parameters after step {trainer.step:,} are not finite, first in layer {layer}; {_way_back(folder)}"
        )


def _require_hope(trainer: Trainer, run: Run, folder: Path) -> None:
    bound = trainer.bound()
    if not bound >= -HOPELESS * max(abs(run.start), 1.0):
        layer = trainer.culprit(trainer.step - 1)
        raise DivergedError(
            f"training has diverged by step {trainer.step:,}: its bound is {bound:,.4g}, and was {run.start:,.4g} "
            f"at first; the largest gradient is that of layer {layer}; {_way_back(folder)}"
        )


def _way_back(folder: Path) -> str:
    try:
        last = checkpoint.latest(folder)
    except ValueError as error:
        return str(error)
    found = "there is no checkpoint yet" if last is None else f"the last good checkpoint is that of step {last.step:,}"
    return f"{found}: try a smaller lr"


def _ends(recipe: Recipe, step: int) -> list[int]:
    """The next steps after which there is something to write down."""
    every = [_interval(recipe), *([recipe.validate] if recipe.validate else [])]
    return [recipe.steps, *((step // each + 1) * each for each in every)]


def _interval(recipe: Recipe) -> int:
    """The number of steps of a row."""
    return WATCHED * math.ceil(recipe.steps / ROWS / WATCHED)


def _average(rows: Sequence[Row]) -> Row:
    """One row for those of several runs; their seconds add up."""
    if len(rows) == 1:
        return rows[0]
    looks = [row.valid for row in rows if row.valid is not None]
    return replace(
        rows[0],
        seconds=math.fsum(row.seconds for row in rows),
        bound=fmean(row.bound for row in rows),
        discrete=fmean(row.discrete for row in rows),
        valid=fmean(looks) if looks else None,
    )
