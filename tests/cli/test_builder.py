"""The command builds models by functions in files of any name."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import concretely as c
from concretely.training.folder import load_recipe

from ..training import own
from .command import call

pytestmark = pytest.mark.usefixtures("unpictured")
SHORT = ("--steps", "2", "--batch", "8", "--score-samples", "2")
FILE = """
from dataclasses import dataclass

from width_beside_it import WIDTH
from tests.training.own import build as make

@dataclass
class Setting:
    width: int = WIDTH

def build(width=WIDTH):
    return make(Setting(width).width)
"""


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A file of bits, with splits."""
    x = own.bits(60).numpy()
    np.savez(tmp_path / "my.npz", train=x[:40], valid=x[40:50], test=x[50:])
    return str(tmp_path / "my.npz")


def test_a_file_called_like_a_module_is_trained_resumed_listed_swept_and_loaded(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "json.py").write_text(FILE)
    (tmp_path / "width_beside_it.py").write_text("WIDTH = 7\n")
    given = (f"{tmp_path / 'json.py'}:build", "--data", data, *SHORT)
    for verb, lists in (("train", ()), ("train", ("--seed", "0,1")), ("sweep", ("--set", "width=3,4", "--lr", "0.01"))):
        code, _, stderr = call(verb, *given, *lists, "--out", str(tmp_path / f"{verb}{len(lists)}"))
        assert code == 0, stderr
    code, _, stderr = call("train", "--resume", str(tmp_path / "train0"), "--steps", "4", "--score-samples", "2")
    assert code == 0, stderr
    for run, width in (("train0", 7), ("train2/seed=1", 7), ("sweep4/width=3,lr=0.01,seed=0", 3)):
        assert c.load(tmp_path / run).p.decoder[0].weight.shape == (width, 8)
    assert sys.modules["json"] is json


@pytest.mark.parametrize(("verb", "run"), [("train", "."), ("sweep", "lr=0.01,seed=0")])
def test_the_precision_is_a_setting_of_the_recipe(verb: str, run: str, data: str, tmp_path: Path) -> None:
    given = ("tests.training.own:build", "--data", data, *SHORT, "--lr", "0.01", "--precision", "bfloat16")
    code, _, stderr = call(verb, *given, "--out", str(tmp_path / "out"))
    assert code == 0, stderr
    assert load_recipe(tmp_path / "out" / run).settings["precision"] == "bfloat16"
