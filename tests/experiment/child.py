"""A process that shares the cells of a table with others, and writes down what it does."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from concretely.experiment import paper, scheduler
from concretely.experiment.plan import plan_experiment, reproduce
from concretely.experiment.scheduler import Monitor
from concretely.experiment.work import ScoreSplits
from concretely.file import open_append
from concretely.training import checkpoint, loop
from concretely.training.recipe import Member

SLEEP_AT = 5
"""The step at which a process that is to be killed sleeps."""


def work(folder: Path, tables: Path, told: Connection, sleeps: bool) -> None:
    """Reproduce a table in a folder, with a checkpoint after every step, and log every step and every record."""
    paper.FOLDER = tables
    save, train, add = checkpoint.save, loop.train_together, scheduler.add_scores

    def log(*words: object) -> None:
        with open_append(folder.parent / "log.txt") as file:
            file.write(f"{' '.join(map(str, words))} {os.getpid()}\n".encode())

    def saved(folder: Path, step: int, *state: Any) -> Path:
        path = save(folder, step, *state)
        log(folder.name, step)
        if sleeps and step == SLEEP_AT:
            told.send("asleep")
            time.sleep(600)
        return path

    def frequently(members: Sequence[Member], **how: Any) -> Any:
        return train(members, **{**how, "checkpoint_seconds": 0.0})

    def added(folder: Path, *arguments: Any, **options: Any) -> Any:
        log(folder.name, "scored")
        return add(folder, *arguments, **options)

    checkpoint.save, loop.train_together, scheduler.add_scores = saved, frequently, added
    found = reproduce(plan_experiment("tiny", folder=folder), on="share", monitor=Monitor(note=told.send))
    told.send("complete" if found.complete else "incomplete")


def logged_score(wanted: Any, folder: str, dies: str) -> "LoggedScore":
    """Return a score, and arrange that this process logs its steps and dies in a member, unless one has already."""
    root, save = Path(folder), checkpoint.save

    def saved(folder: Path, step: int, *state: Any) -> Path:
        path = save(folder, step, *state)
        with open_append(root / "log.txt") as file:
            device = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
            file.write(f"{folder.name} {step} {os.getpid()} {device}\n".encode())
        if folder.name == dies and step == SLEEP_AT and not (root / "died").exists():
            (root / "died").touch()
            os._exit(1)
        return path

    if save.__name__ != saved.__name__:  # a worker of Ray gets several tasks
        checkpoint.save = saved
    return LoggedScore(wanted, folder, dies)


@dataclass(frozen=True)
class LoggedScore(ScoreSplits):
    """Scores members. Where it is unpickled, steps are logged."""

    folder: str
    dies: str

    def __reduce__(self) -> Any:
        return logged_score, (dict(self.wanted), self.folder, self.dies)
