"""The training loop: it trains, checkpoints, stops and resumes one run, or many of one architecture together.

A resumed run repeats at most the steps since its last checkpoint. On a CPU the repeated steps give the same bits.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ..environment import describe_environment
from ..file import exclusive_dir, write_text
from . import checkpoint
from .builder import require_separate
from .callback import Callbacks
from .collapse import CollapseWatch
from .engine import GAP_INTERVAL, Engine
from .folder import Run, export, require_same, resume, save_checkpoint
from .origin import sign_run
from .own_recipe import OwnRecipe, RunRecipe
from .own_resolve import remove_runs
from .parallel import ALONE, World, shapes_of
from .place import Owned, keep_changes, owned_by, tensors_of
from .recipe import FILE, Member
from .stream import EndOfDataError
from .train_state import Row, TrainState
from .trial import examine

ROWS = 500
"""The maximum number of rows of a training curve. A run whose number of steps was raised later may have more."""
GAPS = 4
"""The least number of measurements of the gap in a row of a long run. A short run has fewer."""
HOPELESS = 10
"""The training of a model has diverged if its objective is below minus this factor times its absolute first value."""


class DivergedError(ArithmeticError):
    """Raised if training diverges. The message has the step, the layer, and the checkpoint to resume from."""


def train(
    recipe: RunRecipe,
    folder: str | Path,
    *,
    data: Any,
    device: torch.device | str = "cpu",
    checkpoint_seconds: float = 60.0,
    callbacks: Callbacks = Callbacks(),  # noqa: B008 (frozen)
    stop: Callable[[], bool] = lambda: False,
    world: World = ALONE,
) -> Run:
    """Train a model in a folder, from the last checkpoint there or from the start.

    `stop` is called after each step, or on a GPU after ten; training ends when it returns true. A checkpoint is written
    every `checkpoint_seconds` and at the end. `world` are the ranks that train the model together.
    """
    (result,) = train_together(
        [Member(recipe, Path(folder))],
        data=lambda recipe: data,
        device=device,
        checkpoint_seconds=checkpoint_seconds,
        callbacks=callbacks,
        stop=stop,
        world=world,
    )
    if isinstance(result, DivergedError):
        raise result
    return result


def train_together(
    members: Sequence[Member],
    *,
    data: Callable[[Any], Any],
    device: torch.device | str = "cpu",
    checkpoint_seconds: float = 60.0,
    callbacks: Callbacks = Callbacks(),  # noqa: B008 (frozen)
    stop: Callable[[], bool] = lambda: False,
    world: World = ALONE,
    until: int | None = None,
) -> list[Run | DivergedError]:
    """Train runs of one architecture together, each in its folder, and return each run or the error that ended it.

    On a CPU each result has the same bits as if the run were trained alone. On a GPU it is the same up to rounding,
    which may occasionally change a discrete draw. A run that diverges does not disturb the others. `stop` is called
    after the step `until` at least, on a GPU not after each step; to pause there, it must return true.
    """
    own = [data(member.recipe) for member in members]
    moved = {id(data_set): data_set.to(device) for data_set in own}  # once, however many share them
    states = [
        TrainState.of(member.recipe, moved[id(own_data)], device=device, world=world)
        for member, own_data in zip(members, own, strict=True)
    ]
    require_separate([state.model for state in states])
    how: dict[str, Any] = {"checkpoint_seconds": checkpoint_seconds, "callbacks": callbacks, "stop": stop}
    return train_states(states, [member.folder for member in members], **how, until=until)


def train_states(
    states: Sequence[TrainState],
    folders: Sequence[Path | None],
    *,
    names: Sequence[str] | None = None,
    checkpoint_seconds: float = 60.0,
    callbacks: Callbacks = Callbacks(),  # noqa: B008 (frozen)
    stop: Callable[[], bool] = lambda: False,
    until: int | None = None,
    overwritten: Path | None = None,
) -> list[Run | DivergedError]:
    """Train runs of one program together and return each run or the error that ended it.

    A run with a folder goes on from the last checkpoint there; one without is kept in memory only. `names` are shown if
    there are several runs, by default those of the folders. `overwritten` is the folder whose run, with those in
    `folders`, is deleted once the new ones have been checked.
    """
    if names is None:
        names = ["" if folder is None or len(folders) == 1 else folder.name for folder in folders]
    world = states[0].world
    called = {"number of runs": len(states), "out": None if folders[0] is None else "a folder"}
    world.require_same("call", {**called, "compile": states[0].task.compiles})
    for state in states:
        world.require_same("recipe", {**state.recipe.settings, "digest of the data": state.task.digest})
        world.require_same("model", {} if world.shards else shapes_of({**tensors_of(state.model), **state.state}))
        world.require_same_batches(state.task.feed, state.step)
        world.broadcast_([] if world.shards else list(state.state.values()))
    for state in states:
        if state.task.examines and not world.shards:
            note = callbacks.note if state is states[0] else lambda sentence: None  # the others are alike
            state.may_capture = all(world.gather(examine(state, note))) and world.may_capture
    starts = [state.dry_run() for state in states]
    if overwritten is not None:
        remove_runs(overwritten, [folder for folder in folders if folder is not None])
    if states[0].device.type == "cuda" and not world.may_capture and not world.shards:
        callbacks.note("steps are not captured as CUDA graphs, since gloo averages over ranks on the host: use NCCL")
    environment = describe_environment(str(states[0].device))
    with ExitStack() as stack:
        for state in states:
            stack.callback(state.task.feed.close)
        jobs = []
        for state, folder, start, name in zip(states, folders, starts, names, strict=True):
            if folder is not None and world.is_first:
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(exclusive_dir(folder))
            if folder is not None:
                world.require_visible(folder)
            jobs.append(_start(state, folder, start, callbacks, environment, name=name))
        active = [job for job in jobs if job.is_active]
        while active:  # runs that were resumed from an earlier step catch up with the others
            first = min(job.place for job in active)
            group = [job for job in active if job.place == first]
            later = [job.state.step for job in active if job.state.step > first[0]]
            later += [until] if until is not None and until > first[0] else []
            if not _train(group, checkpoint_seconds, callbacks, stop, until=min(later, default=None)):
                break
            active = [job for job in active if job.is_active]
        world.wait()  # for the files of rank 0
    return [job.failure or job.run for job in jobs]


@dataclass
class _Job:
    """A run that is being trained."""

    folder: Path | None
    state: TrainState
    run: Run
    watch: Callable[[Row], None]
    note: Callable[[str], None]
    name: str = ""
    """The name of the run if there are several."""
    failure: DivergedError | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Return the current step, and the step of the last row."""
        return self.state.step, self.state.since

    @property
    def is_active(self) -> bool:
        return self.failure is None and not self.run.finished


def _start(
    state: TrainState,
    folder: Path | None,
    start: float,
    callbacks: Callbacks,
    environment: dict[str, Any],
    *,
    name: str,
) -> _Job:
    """Return the job of a run, resumed from its last checkpoint if there is one."""
    task = state.task
    new = Run(task.recipe, environment, task.digest, start, step=0, seconds=0.0)
    note = (lambda said: callbacks.note(f"{name}: {said}")) if name else callbacks.note
    run, damaged = (None if folder is None else resume(state, folder)) or (new, ())
    watch = CollapseWatch(task.recipe.steps, task.units, note, relaxes=task.relaxes, past=run.rows)
    if folder is None:
        return _Job(None, state, new, watch, note, name)
    if state.optimizer is not None:
        state.optimizer.is_saved = True
    for sentence in damaged:
        note(f"{sentence}; going on from step {run.step:,}")
    require_same(run, task.digest, task.source)
    state.world.require_same("checkpoints", {"step": run.step})
    if state.world.is_first:
        write_text(folder / FILE, task.recipe.toml())  # only now: a failed check must leave the old recipe
    if state.world.is_first and isinstance(task.recipe, OwnRecipe) and task.recipe.model:
        sign_run(folder, task.recipe)
    if run.finished:
        export(run, state, folder)  # again, in case a file was lost
    return _Job(folder, state, run if run.finished else replace(run, environment=environment), watch, note, name)


def _train(
    jobs: list[_Job],
    checkpoint_seconds: float,
    callbacks: Callbacks,
    stop: Callable[[], bool],
    *,
    until: int | None,
) -> bool:
    """Take steps to `until` or to the end, with rows, validations and checkpoints; return whether it got there."""
    recipe, saved, stopped = jobs[0].state.recipe, time.monotonic(), False
    ended: EndOfDataError | None = None
    active = jobs
    for job in active:
        job.run = replace(job.run, members=len(active))
    states, world = [job.state for job in active], active[0].state.world
    owned = {id(state): owned_by(state.loss) for state in states}
    for state in states:
        _bind(state)
    engine = Engine(states, note=callbacks.note, gap_interval=_gap_interval(states[0].recipe))
    due = False

    def pause() -> bool:
        nonlocal stopped, due
        callbacks.step(active[0].state.step)
        stopped, due = world.agreed(stop=stop(), due=time.monotonic() - saved > checkpoint_seconds)
        return stopped or due

    try:
        while active and not stopped and active[0].state.step != until:
            engine = engine.without_ended([job.state for job in active])
            ends, started, due = _ends(recipe, engine.step), time.perf_counter(), False
            try:
                end = min(ends if until is None else [*ends, until])
                engine.advance(end, pause=pause, each=callbacks.has_each_step)
            except EndOfDataError as error:  # what was trained is saved first
                ended, stopped = error, True
            for job in active:
                job.state.seconds += (time.perf_counter() - started) / len(active)
            late = due if world.ranks > 1 else time.monotonic() - saved > checkpoint_seconds
            due, at_end = stopped or late, engine.step in ends
            try:
                for job in active:
                    _update(job, at_end=at_end, due=due)
                _call([job for job in active if job.failure is None and at_end], callbacks, owned)
            finally:  # after the callbacks, which may change parameters, and also if one of them raises
                for job in active:
                    _save(job, due=due)
            saved = time.monotonic() if due else saved
            active = [job for job in active if job.is_active]
    finally:
        engine.close()
    for job in jobs:
        if job.is_active and job.folder is not None:
            export(job.run, job.state, job.folder)
    if ended is not None:
        raise ended
    return not stopped


def _update(job: _Job, *, at_end: bool, due: bool) -> None:
    """Check a run for divergence, at a row or a `due` checkpoint also its parameters. With `at_end`, add a row."""
    reason = _divergence(job.state, job.run, parameters=at_end or due)
    if reason is not None:
        job.failure = DivergedError(f"{reason}; {_way_back(job.folder)}")
        if job.name:
            job.note(str(job.failure))
        return
    if at_end:
        job.run = _with_row(job.state, job.run, job.note)
        job.watch(job.run.rows[-1])
    job.run = replace(job.run, step=job.state.step, seconds=job.state.seconds)


def _call(jobs: Sequence[_Job], callbacks: Callbacks, owned: Mapping[int, Owned]) -> None:
    """Call the callbacks with the last rows of runs, and keep what they change."""
    rows = [job.run.rows[-1] for job in jobs]
    for job, row in zip(jobs, rows, strict=True):
        callbacks.row(replace(row, run=job.name))
    if rows:
        callbacks.mean_row(average(rows))
    for job in jobs:
        if job.state.sharding is None:
            keep_changes(job.state.loss, job.state.state, owned[id(job.state)])


def _save(job: _Job, *, due: bool) -> None:
    """Write a checkpoint if the run is finished or one is due, and the other files of a finished run."""
    if job.folder is None or job.failure is not None or job.run.step != job.state.step:  # its update has failed
        return
    if job.run.finished or due:
        save_checkpoint(job.run, job.state, job.folder)
    if job.run.finished:
        export(job.run, job.state, job.folder)


def _with_row(state: TrainState, run: Run, note: Callable[[str], None]) -> Run:
    """Return the run with one more row, and with a validation if the recipe asks for one at this step.

    A score that is not a number counts as no improvement, and is noted once.
    """
    recipe, best, stale = state.recipe, run.best, run.stale
    # a run that was stopped after a row may end at the same step when it is resumed
    again = bool(run.rows) and run.rows[-1].step == state.step
    rows, row = (run.rows[:-1], run.rows[-1]) if again else (run.rows, state.row())
    if recipe.validate and state.step % recipe.validate == 0:
        nll = state.validate()
        _bind(state)
        if math.isnan(nll) and not any(math.isnan(row.valid or 0.0) for row in rows):
            note(f"the validation score of step {state.step:,} is not a number, and so not the best")
        row = replace(row, valid=nll)
        if not math.isnan(nll) and (best is None or not nll >= best[1]):  # earlier versions kept one that is NaN
            best, stale = (state.step, nll), 0
            state.keep_best()
        else:
            stale += 1
    finished = state.step >= recipe.steps or 0 < recipe.patience <= stale
    return replace(run, rows=(*rows, row), best=best, stale=stale, finished=finished)


def _bind(state: TrainState) -> None:
    """Let the model of a run have the tensors of its state, also if a call outside of a step has replaced some."""
    if state.sharding is None:
        state.bind(state.state)


def _divergence(state: TrainState, run: Run, *, parameters: bool) -> str | None:
    """Return why a run has diverged, or None. With `parameters`, also check these, which waits for the device."""
    if (nonfinite := state.first_nonfinite()) is not None:
        return f"the gradient of step {nonfinite[0] + 1:,} is not finite, first in layer {nonfinite[1]}"
    objective, least = state.bound(), -HOPELESS * max(abs(run.start), 1.0) if state.task.is_bound else -math.inf
    if not objective >= least:
        layer = state.first_nonfinite_layer(state.step - 1)
        change = f"its objective is {objective:,.4g}, and was {run.start:,.4g} at first"
        return f"training has diverged by step {state.step:,}: {change}; the largest gradient is that of layer {layer}"
    if parameters and (name := state.first_nonfinite_parameter()) is not None:
        return f"the parameters after step {state.step:,} are not finite, first in layer {name}"
    return None


def _way_back(folder: Path | None) -> str:
    if folder is None:
        return "try a smaller lr"
    try:
        last = checkpoint.latest(folder)
    except ValueError as error:
        return str(error)
    where = "there is no checkpoint yet" if last is None else f"the last good checkpoint is that of step {last.step:,}"
    return f"{where}: start a new run with a smaller lr in another folder"


def _ends(recipe: RunRecipe, step: int) -> list[int]:
    """Return the next steps after which there is a row or a validation, and the last step of the run."""
    every = [_interval(recipe), *([recipe.validate] if recipe.validate else [])]
    return [recipe.steps, *((step // interval + 1) * interval for interval in every)]


def _interval(recipe: RunRecipe) -> int:
    """Return the number of steps between two rows."""
    return GAP_INTERVAL * math.ceil(recipe.steps / ROWS / GAP_INTERVAL)


def _gap_interval(recipe: RunRecipe) -> int:
    """Return the number of steps between two measurements of the gap, of which a row averages at least `GAPS`."""
    return GAP_INTERVAL * max(1, _interval(recipe) // (GAPS * GAP_INTERVAL))


def average(rows: Sequence[Row]) -> Row:
    """Return the average of rows, such as those of several runs. Seconds are added, and scores of NaN left out."""
    scores = [row.valid for row in rows if row.valid is not None]
    numbers = [score for score in scores if not math.isnan(score)]
    names = dict.fromkeys(name for row in rows for name in row.metrics)  # some rows may lack a node
    return replace(
        rows[0],
        lr=fmean(row.lr for row in rows),
        seconds=math.fsum(row.seconds for row in rows),
        objective=fmean(row.objective for row in rows),
        discrete=fmean(row.discrete for row in rows),
        valid=fmean(numbers or scores) if scores else None,
        metrics={name: fmean(row.metrics[name] for row in rows if name in row.metrics) for name in names},
    )
