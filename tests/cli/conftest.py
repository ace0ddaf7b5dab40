"""Runs that are small enough to be trained for the tests."""

from pathlib import Path
from shutil import copytree

import pytest

from concretely.data import load
from concretely.training.loop import train
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


def _trained(notation: str, folders: pytest.TempPathFactory) -> Path:
    folder = folders.mktemp("run") / notation
    train(resolve(notation=notation, steps=STEPS), folder, data=load("digits"))
    return folder
