"""Runs that are small enough to be trained for the tests, and files of data."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from concretely.data import load_data
from concretely.training import loop
from concretely.training.loop import train
from concretely.training.recipe import Member, resolve

from ..experiment.conftest import tables as tables
from ..training import own

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


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of bits, with splits."""
    x = own.bits(80).numpy()
    return own.write(tmp_path_factory.mktemp("data") / "my.npz", train=x[:50], valid=x[50:65], test=x[65:])


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of bits and labels, without a validation split."""
    x = own.bits(80).numpy()
    y = (x.sum(-1) % 3).astype(np.int64)
    path = tmp_path_factory.mktemp("data") / "labelled.npz"
    return own.write(path, train_x=x[:60], train_y=y[:60], test_x=x[60:], test_y=y[60:])


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
