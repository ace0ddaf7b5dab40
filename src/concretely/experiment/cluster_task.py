"""A program as a task of Ray, which trains and scores members in their folder or, if it does not see that, in a copy.

If its process or its machine is lost, Ray restarts the task, which resumes from the last checkpoint. The checkpoint is
in the folder, in a copy on the same machine or, on another machine, among the files that the task was given.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..file import atomic_write, exclusive_dir, read_bytes, try_file_lock
from ..training.callback import Callbacks
from ..training.folder import recipe_of
from ..training.interrupt import stop_requested
from ..training.recipe import Member
from .scheduler import Monitor, load_data, require_trainable
from .share import CLAIM, train_shared
from .work import Score, Work

REPORT_SECONDS = 1.0
"""The least interval between two reports of a task."""

Files = Mapping[str, bytes]
"""The files in the folder of a run, by name."""


@dataclass(frozen=True)
class Task:
    """A program for another process. All of it is pickled."""

    program: int
    """The index of the program."""
    bundles: Sequence[Sequence[tuple[Mapping[str, Any], str]]]
    """The recipe of every member as settings, and the name of its folder."""
    folder: str
    """The folder of all members, on the machine of the caller."""
    token: str
    """A part of the name of a file in `folder`. A task that finds the file sees the same folder."""
    working_dir: str
    score: Score
    gpu: bool | None
    """Whether to train on a GPU, or None to take one if there is one."""
    precision: str
    """Torch's precision of matrix products."""
    checkpoint_seconds: float
    until: int | None
    points: int | None
    max_bytes: int | None
    version: str = __version__


@dataclass(frozen=True)
class Outcome:
    """The outcome of a task."""

    complete: bool
    scored: Sequence[str]
    """The names of the members with new scores on other splits than the validation set."""
    files: Mapping[str, Files] | None
    """The folders of all members, or None if the caller sees them."""


def token_path(folder: Path, token: str) -> Path:
    """Return the path of a file that a task finds if it sees the folder of the caller."""
    return folder / f".ray-{token}"


def run_task(task: Task, board: Any, kept: Sequence[Any]) -> Outcome:
    """Train and score the members of a program. `kept` are objects of Ray with the current files of members."""
    if task.version != __version__:
        todo = "install the same version on all machines of the cluster"
        raise ValueError(f"concretely must have version {task.version} on the cluster, got {__version__}: {todo}")
    torch.set_float32_matmul_precision(task.precision)
    folder, scored = Path(task.folder), list[str]()
    with stop_requested() as stop, _working_dir(task.working_dir):
        board.start.remote(task.program)
        reporter = _Reporter(task.program, board)
        shared = _sees(folder, task.token)
        root = folder if shared else _scratch(task.token)
        bundles = [[Member(recipe_of(settings), root / name) for settings, name in bundle] for bundle in task.bundles]
        members = [member for bundle in bundles for member in bundle]
        if not shared:
            _place(members, kept)
        monitor = Monitor(
            stop,
            training=lambda members, alone: nullcontext(reporter.callbacks),
            note=reporter.note,
            scored=lambda folder, *_: scored.append(folder.name),
        )
        require_trainable(members, longer=True)
        device = _device(task.gpu, reporter.note)
        data = load_data(members, monitor, points=task.points, max_bytes=task.max_bytes)
        how: dict[str, Any] = {"checkpoint_seconds": task.checkpoint_seconds, "until": task.until}
        how |= {"points": task.points, "max_bytes": task.max_bytes}
        work = Work(root, bundles, data, reporter.scoring(task.score), device, monitor, **how)
        complete = train_shared(work, members=len(members))
        reporter.report(state="done" if complete else "stopped")
        files = None if shared else {member.folder.name: packed(member.folder) for member in members}
    for member in () if shared else members:
        shutil.rmtree(member.folder, ignore_errors=True)
    if not shared:
        with suppress(OSError):  # another task has a copy there
            root.rmdir()
    return Outcome(complete, scored, files)


def packed(folder: Path) -> dict[str, bytes]:
    """Return the files in the folder of a run, without locks, signatures and whatever else is hidden."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.name: read_bytes(path) for path in paths if path.is_file() and not path.name.startswith(".")}


def unpack(files: Files, folder: Path) -> None:
    """Replace the files in a folder by the files of a run."""
    for name in files:
        if not name or Path(name).name != name or name.startswith("."):
            raise ValueError(f"a run must have files with plain names, got {name!r}")
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive_dir(folder):
        # the JSON file of a checkpoint comes last: without it, its tensors are ignored
        for name in sorted(files, key=lambda name: (name.endswith(".json"), name)):
            with atomic_write(folder / name) as place:
                place.write_bytes(files[name])
        for path in folder.glob("checkpoint-*"):
            if path.name not in files:
                path.unlink(missing_ok=True)


class _Reporter:
    """Reports a program to the board. If the board is lost, nothing is reported."""

    def __init__(self, program: int, board: Any) -> None:
        self._program, self._board, self._last = program, board, 0.0
        self.callbacks = Callbacks(self._step, mean_row=self._row, note=self.note, sees_all=False)

    def report(self, **state: Any) -> None:
        """Report a state."""
        with suppress(Exception):
            self._board.report.remote(self._program, state)

    def note(self, sentence: str) -> None:
        """Pass on a sentence for the user."""
        with suppress(Exception):
            self._board.note.remote(self._program, sentence)

    def scoring(self, score: Score) -> Score:
        """Return a score that is reported."""
        return _ReportedScore(score, lambda: self.report(state="scoring"))

    def _step(self, step: int) -> None:
        now = time.monotonic()
        if now - self._last > REPORT_SECONDS:
            self._last = now
            self.report(step=step, state="training")

    def _row(self, row: Any) -> None:
        self.report(step=row.step, objective=row.objective)


@dataclass(frozen=True)
class _ReportedScore:
    score: Score
    report: Callable[[], None]

    def __call__(self, bundle: Sequence[Member], data: Any, **how: Any) -> None:
        self.report()
        self.score(bundle, data, **how)

    def is_done(self, bundle: Sequence[Member]) -> bool:
        return self.score.is_done(bundle)

    def is_scored(self, bundle: Sequence[Member]) -> bool:
        return self.score.is_scored(bundle)


@contextmanager
def _working_dir(path: str) -> Iterator[None]:
    """Work in the folder of the caller, if this machine has it, so that relative paths of data and models work."""
    with chdir(path) if Path(path).is_dir() else nullcontext():
        yield


def _sees(folder: Path, token: str) -> bool:
    """Return whether this process sees the folder of the caller and can lock it. Otherwise it trains a copy."""
    try:
        if token_path(folder, token).name not in os.listdir(folder):
            return False
        with try_file_lock(folder / CLAIM):
            return True
    except (OSError, ValueError):
        return False


def _scratch(token: str) -> Path:
    """Return a private folder on this machine, the same for all tasks of a caller."""
    folder = Path(tempfile.gettempdir()) / f"concretely-{token}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _place(members: Sequence[Member], kept: Sequence[Any]) -> None:
    """Write the caller's files of members, unless this machine already has a copy."""
    import ray

    for member, files in zip(members, kept, strict=True):
        if files is not None and not any(member.folder.glob("checkpoint-*.json")):
            unpack(ray.get(files), member.folder)


def _device(gpu: bool | None, note: Callable[[str], None]) -> torch.device:
    """Return the GPU that Ray has assigned, or the CPU."""
    if gpu is not False and torch.cuda.is_available():
        return torch.device("cuda")
    if gpu:
        raise ValueError("device must be available to torch on the cluster, got 'cuda', where torch finds no GPU")
    if gpu is None:
        note("torch finds no GPU on the machine that Ray has chosen, and trains on its CPU")
    return torch.device("cpu")
