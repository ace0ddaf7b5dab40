"""Runs that are small enough to be trained for the tests."""

from collections.abc import Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from concretely import recipe
from concretely.data import load
from concretely.training import loop
from concretely.training.loop import train
from concretely.training.member import Member
from concretely.training.recipe import resolve

STEPS = 30


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
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small recipes in place of the paper's, and an empty folder to be in."""
    monkeypatch.setattr(recipe, "FOLDER", copytree(Path(__file__).parent / "table", tmp_path / "recipe"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the folders that are trained in."""
    folders, train = list[str](), loop.train_together

    def watched(members: Sequence[Member], **others: Any) -> Any:
        folders.extend(member.folder.name for member in members)
        return train(members, **others)

    monkeypatch.setattr(loop, "train_together", watched)
    return folders


def _trained(notation: str, folders: pytest.TempPathFactory) -> Path:
    folder = folders.mktemp("run") / notation
    train(resolve(notation=notation, steps=STEPS), folder, data=load("digits"))
    return folder
