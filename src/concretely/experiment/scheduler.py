"""Train and score many runs, called members. Members of one architecture are trained together, as one program.

Several programs may share a device. The folder of a member holds the state of its run, so that a call continues where
the last one stopped.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import torch

from ..data import Bits
from ..file import write_text
from ..training import loop
from ..training.callback import Callbacks
from ..training.folder import Run, data_of, load_recipe, restored
from ..training.origin import sign_run
from ..training.own_recipe import OwnRecipe, RunRecipe, changed_settings
from ..training.recipe import FILE, Member
from . import scoring
from .board import ProgramState
from .record import FILE as RECORD
from .record import is_sufficient, read_record, recipe_settings, score_key
from .scoring import Precision, abort_on_stop, add_scores
from .subject import data_name, program_of, scored_split

DataOf = Callable[[RunRecipe], Any]
"""Returns the data set of a recipe."""

DIVERGED = "diverged.txt"
"""The file that a diverged run leaves in its folder. Such a run is not trained again."""

LARGEST_PROGRAM = 64
"""The maximum number of members of one program."""
POLL_SECONDS = 0.2
"""The interval at which the main thread wakes up while others work, so that Python can handle signals."""


@dataclass(frozen=True)
class Monitor:
    """Callbacks of an experiment. If several programs share a device, they are called from the programs' threads."""

    stop: Callable[[], bool] = lambda: False
    """Returns whether to stop. It is called after every step, and before every layer of a model that is scored."""
    loading: Callable[[], AbstractContextManager[object]] = nullcontext
    """Returns a context that is open while data are loaded. Meanwhile `stop` is not called."""
    training: Callable[[Sequence[Member], bool], AbstractContextManager[Callbacks]] = lambda members, alone: (
        nullcontext(Callbacks())
    )
    """Returns a context with the callbacks of a program, given its members and whether it uses the device alone."""
    note: Callable[[str], None] = lambda sentence: None
    """Receives messages for the user, one sentence each."""
    scored: Callable[[Path, Run, Any, Any, dict[str, Any]], object] = lambda *_: None
    """Receives every run, with its record, that has new scores on other splits than the validation set."""
    watching: Callable[[], AbstractContextManager[Callable[[Sequence[ProgramState]], None]]] = lambda: nullcontext(
        lambda states: None
    )
    """Returns a context with a function that receives the states of all programs, if they run in other processes."""
    progress: bool = False
    """Whether to show progress bars on stderr while loading and scoring."""


def last_run(folder: Path) -> Run | None:
    """Return the run at the last checkpoint in a folder, or None if there is no checkpoint."""
    return restored(folder)[0] if any(folder.glob("checkpoint-*.json")) else None


def has_diverged(member: Member) -> bool:
    """Return whether training has diverged."""
    return (member.folder / DIVERGED).exists()


def is_settled(member: Member, until: int | None = None) -> bool:
    """Return whether there is nothing left to train, at all or before the step `until`.

    The run is finished, or has diverged, or has taken the steps.
    """
    if has_diverged(member):
        return True
    run, steps = last_run(member.folder), member.recipe.steps
    if run is None:
        return False
    return (run.finished and run.recipe == member.recipe) or run.step >= (steps if until is None else until)


def current_record(member: Member) -> dict[str, Any] | None:
    """Return the record of a member, or None if it is missing, damaged, or not that of the last checkpoint's model."""
    run, path = last_run(member.folder), member.folder / RECORD
    if run is None or not path.exists():
        return None
    try:
        record = read_record(path)
    except ValueError:  # scoring makes it again
        return None
    return record if is_current(record, run) else None


def is_current(record: Mapping[str, Any], run: Run) -> bool:
    """Return whether a record has the recipe of a run and the step of its selected model."""
    return record["recipe"] == recipe_settings(run.recipe) and record.get("step") == run.chosen


def load_data(
    members: Sequence[Member], monitor: Monitor, *, points: int | None = None, max_bytes: int | None = None
) -> DataOf:
    """Load each data set of the members once, and return a function that returns the data of a recipe.

    With `points`, splits have at most that many data points, evenly spaced, since data may be sorted.
    """

    def few(bits: Bits) -> Bits:
        return bits if points is None else Bits(bits.packed[:: max(1, len(bits) // points)][:points], bits.width)

    loaded = {}
    with monitor.loading():
        for key, recipe in {data_name(member.recipe): member.recipe for member in members}.items():
            data = data_of(recipe, max_bytes=max_bytes, progress=monitor.progress)
            if points is not None:
                data = replace(data, train=few(data.train), valid=few(data.valid), test=few(data.test))
            loaded[key] = data
    return lambda recipe: loaded[data_name(recipe)]


def require_trainable(members: Sequence[Member], *, longer: bool = False, overwrite: bool = False) -> None:
    """Raise an error if two members share a folder, or if a folder holds a run that the recipe cannot resume.

    With `longer`, a folder may hold a run with more steps than the recipe. With `overwrite`, it may hold any run.
    """
    names = [member.folder.name for member in members]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"members must differ from each other, got {twice} twice")
    for recipe, folder in members:
        if overwrite or not (folder / FILE).exists():
            continue
        was = load_recipe(folder)
        # schedules of the learning rate other than constant depend on the last step
        free = recipe.flexible if recipe.lr_schedule == "constant" else recipe.flexible - {"steps"}
        if changed := [name for name in changed_settings(recipe.settings, was.settings) if name not in free]:
            raise ValueError(f"{str(folder)!r} holds a run with another {', '.join(changed)}: choose another folder")
        if isinstance(recipe, OwnRecipe):
            sign_run(folder, recipe)  # the caller has named the same function
        run = None if longer else last_run(folder)
        if run is not None and run.step > recipe.steps:
            raise ValueError(
                f"steps must be at least {run.step:,}, which the run in {str(folder)!r} has taken, "
                f"got {recipe.steps:,}: choose another folder"
            )


def train_members(
    members: Sequence[Member],
    data: DataOf,
    *,
    device: torch.device | str = "cpu",
    programs: int = 1,
    checkpoint_seconds: float = 60.0,
    monitor: Monitor = Monitor(),
    then: Callable[[Sequence[Member], Monitor], None] = lambda group, monitor: None,
    until: int | None = None,
) -> bool:
    """Train the members that are not finished; return whether all of them are settled now.

    Members of one architecture train as one program, and up to `programs` programs share the device. When a program
    has ended, `then` is called with its members and a monitor that also stops if another program fails. If `then`
    raises KeyboardInterrupt, or anything else fails, all programs save a checkpoint and stop. With `until`, members
    pause at that step, with a checkpoint.
    """
    groups = program_groups(members)
    programs = min(programs, len(groups))
    how: dict[str, Any] = {"device": device, "checkpoint_seconds": checkpoint_seconds, "until": until}

    def task(group: Sequence[Member]) -> Callable[[Monitor], bool]:
        return lambda monitor: train_program(group, data, **how, alone=programs == 1, monitor=monitor, then=then)

    return run_tasks([*map(task, groups)], threads=programs, monitor=monitor)


def train_program(
    group: Sequence[Member],
    data: DataOf,
    *,
    device: torch.device | str,
    checkpoint_seconds: float,
    alone: bool,
    monitor: Monitor,
    then: Callable[[Sequence[Member], Monitor], None],
    until: int | None,
) -> bool:
    """Train the members of one program that are not settled, call `then`, and return whether nothing has stopped it."""
    device = torch.device(device)
    # each program has its own stream, so that programs do not wait for each other
    with torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext():
        waiting = [member for member in group if not is_settled(member, until)]
        if monitor.stop():
            return False
        if waiting:
            with monitor.training(waiting, alone) as callbacks:
                callbacks, stop = _paused_at(until, callbacks, monitor.stop)
                how: dict[str, Any] = {"device": device, "checkpoint_seconds": checkpoint_seconds}
                results = loop.train_together(waiting, data=data, **how, callbacks=callbacks, stop=stop, until=until)
            if not _is_complete(waiting, results, monitor, until):
                return False
        then(group, monitor)
    return not monitor.stop()


def run_tasks(tasks: Sequence[Callable[[Monitor], bool]], *, threads: int, monitor: Monitor) -> bool:
    """Call tasks in a number of threads, and return whether all of them returned true.

    Their monitor also stops if another task fails.
    """
    failed, stop = Event(), monitor.stop
    monitor = replace(monitor, stop=lambda: stop() or failed.is_set())

    def call(task: Callable[[Monitor], bool]) -> bool:
        try:
            return task(monitor)
        except KeyboardInterrupt:
            failed.set()
            return False
        except BaseException:
            failed.set()  # so that the other programs save and stop
            raise

    if threads <= 1:
        return all(map(call, tasks))
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(call, task) for task in tasks]
        while wait(futures, timeout=POLL_SECONDS).not_done:
            pass
        complete = [future.result() for future in futures]  # all results are read, or an error would be lost
    return all(complete)


def score_member(
    member: Member,
    data: Any,
    wanted: Mapping[str, Precision],
    *,
    device: torch.device | str = "cpu",
    monitor: Monitor = Monitor(),
) -> dict[str, Any] | None:
    """Score a trained member on the splits where its record is less precise than `wanted`; return the record.

    Return None if the member is not trained or has diverged. An interruption keeps the splits that are already scored.
    """
    if not is_settled(member) or has_diverged(member):
        return None
    before = current_record(member)
    missing = _missing(before, wanted)
    if not missing and before is not None and before.get("finished", True):
        return before
    if missing:
        monitor.note(f"scoring {member.folder.name}")
    run, model, _ = restored(member.folder, device=device)
    if not missing:  # scored before it was finished, at the same step
        return add_scores(member.folder, run, model, data=data, scores={}, note=monitor.note)
    scores = {}
    try:
        with abort_on_stop(monitor.stop, model):
            for split, precision in missing.items():
                options = {**precision._asdict(), "progress": monitor.progress}
                scores[split] = scoring.score_split(run.recipe, model, data, split=split, **options)
    finally:
        if scores:
            record = add_scores(member.folder, run, model, data=data, scores=scores, note=monitor.note)
            if scores.keys() - {"valid"} or scored_split(data) == "valid":
                monitor.scored(member.folder, run, model, data, record)
    return current_record(member)


def is_scored(member: Member, wanted: Mapping[str, Precision]) -> bool:
    """Return whether the record of a trained member has all scores, or the member has diverged."""
    record = current_record(member)
    return has_diverged(member) or (record is not None and not _missing(record, wanted))


def _missing(record: Mapping[str, Any] | None, wanted: Mapping[str, Precision]) -> dict[str, Precision]:
    """Return the splits where a record is less precise than `wanted`."""
    metrics = {} if record is None else record["metrics"]
    return {
        split: precision
        for split, precision in wanted.items()
        if not is_sufficient(metrics.get(score_key(metrics, split), {}), **precision._asdict())
    }


def program_groups(members: Sequence[Member]) -> list[list[Member]]:
    """Group members that can train as one program."""
    groups = dict[object, list[Member]]()
    for member in members:
        groups.setdefault(program_of(member.recipe), []).append(member)
    most = LARGEST_PROGRAM
    return [group[first : first + most] for group in groups.values() for first in range(0, len(group), most)]


def _paused_at(
    until: int | None, callbacks: Callbacks, stop: Callable[[], bool]
) -> tuple[Callbacks, Callable[[], bool]]:
    """Return callbacks and a function `stop` that also returns true once the step `until` is taken."""
    if until is None:
        return callbacks, stop
    last = 0

    def step(taken: int) -> None:
        nonlocal last
        last = taken
        callbacks.step(taken)

    return replace(callbacks, step=step, sees_all=callbacks.has_each_step), lambda: last >= until or stop()


def _is_complete(
    members: Sequence[Member], results: Sequence[Run | loop.DivergedError], monitor: Monitor, until: int | None
) -> bool:
    """Mark the members that have diverged, and return whether all others are finished, or have reached `until`."""
    complete = True
    for member, run in zip(members, results, strict=True):
        if isinstance(run, loop.DivergedError):
            if len(members) == 1:
                monitor.note(str(run))  # of several, training itself has noted it
            write_text(member.folder / DIVERGED, f"{run}\n")
        else:
            complete &= run.finished or (until is not None and run.step >= until)
    return complete
