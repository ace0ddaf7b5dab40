from pathlib import Path
from shutil import copytree

import pytest

from concretely.experiment import paper
from concretely.experiment.paper import Experiment, load_experiment


@pytest.fixture
def table() -> Experiment:
    """A table with another number of steps than the paper's."""
    return load_experiment("table-1", steps=30_000)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables instead of the paper's, and an empty working directory."""
    monkeypatch.setattr(paper, "FOLDER", copytree(Path(__file__).parent / "table", tmp_path / "table"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
