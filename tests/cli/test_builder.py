"""The command builds models by functions in files of any name, and says in one sentence where their code fails."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import concretely as c
from concretely.training.builder import imported
from concretely.training.folder import load_recipe

from ..training import own
from .command import call

pytestmark = pytest.mark.usefixtures("unpictured", "path")
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
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the folders of the files of a test."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_a_file_called_like_a_module_is_trained_resumed_listed_swept_and_loaded(data: str, tmp_path: Path) -> None:
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


FAILING = """
import concretely as c
from torch import nn
from tests.training.own import Gate

class Failing(Gate):
    calls, last = 0, {last}

    def forward(self, draw, x, y):
        Failing.calls += 1
        if Failing.calls > Failing.last:
            {statement}
        return super().forward(draw, x, y)
"""
LINE = 1 + FAILING[: FAILING.index("{statement}")].count("\n")


def failing(folder: Path, statement: str, *, last: int) -> tuple[str, ...]:
    """Write a program that fails after some calls, and return the words that train it."""
    file, x = folder / "failing.py", own.bits(60).numpy()
    file.write_text(FAILING.format(statement=statement, last=last))
    data = own.write(folder / "pairs.npz", train_x=x, train_y=x.sum(-1).astype(np.int64) % 3)
    given = ("--data", data, *SHORT, "--estimator", "rloo", "--steps", "9")
    return f"{file}:Failing", *given, "--out", str(folder / "run")


@pytest.mark.parametrize(
    ("last", "statement", "sentence"),
    [
        (0, "assert len(x) > 99, 'few rows'", "the model raised AssertionError at failing.py:{line}: few rows\n"),
        (0, "assert len(x) > 99", "the model raised AssertionError at failing.py:{line}\n"),
        (9, "raise ValueError('few\\nrows')", "the model raised ValueError at failing.py:{line}: few\n"),
        (9, "1 / 0", "the model raised ZeroDivisionError at failing.py:{line}: division by zero\n"),
        (9, "x + None", "the model raised TypeError at failing.py:{line}: unsupported operand type(s)"),
        (9, "x @ x", "the model raised RuntimeError at failing.py:{line}: mat1 and mat2 shapes cannot be"),
        (9, "import nowhere", "the model raised ModuleNotFoundError at failing.py:{line}: No module named 'nowhere'\n"),
        (0, "open('/nowhere/x')", "the model raised FileNotFoundError at failing.py:{line}: [Errno 2] No such file"),
        (12, "open('/nowhere/x')", "the model raised FileNotFoundError at failing.py:{line}: [Errno 2] No such file"),
        (9, "draw('gate', 3)", "the model raised TypeError at failing.py:{line}: draw must be given a name and a"),
        (9, "c.Bernoulli(logits=0 * x / 0)", "logits must be numbers, got nan at index ("),
    ],
)
def test_an_error_of_a_program_gets_one_sentence(last: int, statement: str, sentence: str, tmp_path: Path) -> None:
    code, stdout, stderr = call("train", *failing(tmp_path, statement, last=last))
    assert (code, stdout) == (2, "")
    assert stderr.splitlines(keepends=True)[-1].startswith(sentence.format(line=LINE)), stderr


@pytest.mark.parametrize(
    ("statement", "raised"),
    [("{}['size']", "KeyError at {}: 'size'"), ("raise ValueError('few')", "ValueError at {}: few")],
)
def test_an_error_on_the_first_batch_names_the_data(statement: str, raised: str, tmp_path: Path) -> None:
    code, stdout, stderr = call("train", *failing(tmp_path, statement, last=0))
    must = (
        f"the model must run on a batch of the data {str(tmp_path / 'pairs.npz')!r}, of float32 (8, 6) and int64 (8,)"
    )
    sentence = f"{must}, but it raised {raised.format(f'failing.py:{LINE}')}\n"
    assert (code, stdout, stderr) == (2, "", sentence)


@pytest.mark.parametrize("several", [("train", "--seed", "0,1"), ("sweep", "--lr", "0.01,0.1")])
def test_an_error_of_a_program_of_several_runs_gets_one_sentence(several: tuple[str, ...], tmp_path: Path) -> None:
    code, stdout, stderr = call(several[0], *failing(tmp_path, "1 / 0", last=12), *several[1:])
    assert (code, stdout) == (2, "")
    assert stderr.endswith(f"\nthe model raised ZeroDivisionError at failing.py:{LINE}: division by zero\n")


def test_an_error_of_a_program_that_is_scored_gets_one_sentence(tmp_path: Path) -> None:
    words = failing(tmp_path, "1 / 0", last=10**6)
    assert call("train", *words)[0] == 0
    imported(words[0]).last = 0
    for verb, *extra in (("evaluate",), ("study", "--repeats", "2")):
        code, stdout, stderr = call(verb, str(tmp_path / "run"), "--samples", "2", *extra)
        assert (code, stdout) == (2, "")
        assert stderr.splitlines()[-1] == f"the model raised ZeroDivisionError at failing.py:{LINE}: division by zero"


def test_an_error_of_a_program_keeps_its_type_in_python(tmp_path: Path) -> None:
    build = imported(failing(tmp_path, "assert len(x) > 99, 'few rows'", last=0)[0])
    with pytest.raises(AssertionError, match=r"^few rows$"):
        c.fit(build, (own.bits(), own.bits()[:, 0].long()), estimator=c.RLOO(), samples=2, steps=2)
