"""Runs that are small enough to be trained for the tests."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from concretely.data import load_data
from concretely.training import loop
from concretely.training.loop import train
from concretely.training.recipe import Member, resolve

from ..experiment.conftest import tables as tables

STEPS = 30
Interrupt = Callable[[Callable[[], bool]], None]


@pytest.fixture(scope="session")
def density(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a density model, to be read only."""
    return _trained("6H-64V", tmp_path_factory)


@pytest.fixture(scope="session")
def prediction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of structured prediction, lower halves from upper ones, to be read only."""
    return _trained("32V-6H-32V", tmp_path_factory)


@pytest.fixture
def run(density: Path, tmp_path: Path) -> Path:
    """A run of a density model, to be changed."""
    return copytree(density, tmp_path / "run")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of the runs that are trained."""
    found, train = list[Path](), loop.train_together

    def watched(members: Sequence[Member], **others: Any) -> Any:
        found.extend(member.folder for member in members)
        return train(members, **others)

    monkeypatch.setattr(loop, "train_together", watched)
    return found


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Interrupt:
    """Send SIGINT when a program starts, if a condition holds."""

    def arrange(when: Callable[[], bool]) -> None:
        train = loop.train_together

        def interrupted(members: Sequence[Member], **others: Any) -> Any:
            if when():
                os.kill(os.getpid(), signal.SIGINT)
            return train(members, **others)

        monkeypatch.setattr(loop, "train_together", interrupted)

    return arrange


def _trained(notation: str, folders: pytest.TempPathFactory) -> Path:
    folder = folders.mktemp("run") / notation
    train(resolve(notation=notation, steps=STEPS), folder, data=load_data("digits"))
    return folder
