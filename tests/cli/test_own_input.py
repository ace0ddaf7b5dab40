"""Builders, settings and files that do not fit a model of one's own get one sentence, before it is trained."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import concretely as c

from ..training import own
from .command import call

pytestmark = pytest.mark.usefixtures("unpictured")
BUILD = "tests.training.own:build"
GATE = "tests.training.own:Gate"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([BUILD, "--set", "wide=3"], "tests.training.own:build has no parameter 'wide'"),
        ([BUILD, "--set", "wide"], "set must be a name and a value, such as width=200, got 'wide'"),
        ([BUILD, "--set", "width=[3,4]"], "set must be a number, true, false or a text, got 'width=[3,4]': for a list"),
        (
            [BUILD, "--set", "width=3", "--set", "width=4"],
            "set must name width once, got 2 values: for several runs, pass width=3,4",
        ),
        ([BUILD, "--validate", "-1"], "validate must be a whole number, not negative, got -1\n"),
        ([BUILD, "--beta", "-1"], "beta must be finite and not negative, got -1.0"),
        (["4H-6V", "--set", "width=3"], "set must be left out, as 4H-6V has no builder, got width"),
        (["tests.cli.test_own_input:needs"], "tests.cli.test_own_input:needs must be given width, got no value"),
        (["tests.training.own:bild"], "unknown name 'bild' in tests.training.own; did you mean 'build'?"),
        (
            ["no.such.module:build"],
            "model must be importable, such as package.module:build, got 'no.such.module:build'",
        ),
        (["missing.py:build"], "model must be importable, such as package.module:build, got 'missing.py:build': there"),
        ([BUILD, "--estimator", "rlo"], "unknown estimator 'rlo'; did you mean 'rloo'?"),
        ([BUILD, "--estimator", "rloo", "--samples", "1"], "samples must be at least 2 for estimator 'rloo', got 1"),
        (
            [BUILD, "--weight-decay", "1"],
            "weight_decay must be left out for a model of one's own, as it is for a notation\n",
        ),
        (
            [BUILD, "--recipe", "fast"],
            "in 'fast': sections must be left out for a model of one's own, as they are for a notation, got [when.…]\n",
        ),
        (["4H-6V", "--clip", "3"], "clip must be left out for a notation, as it is for models of one's own\n"),
        ([BUILD, "--lr", "fast"], "lr must be a number, got 'fast'"),
        ([BUILD, "--beta", "0:1"], "beta must be a number, or start:end:steps such as 1:1/2:10000, got '0:1'"),
        ([GATE], "a program of (x, y) must be given as many inputs, got 1 input"),
        (
            ["my_model.py"],
            "a model of your own must be named as package.module:build or file.py:build, got 'my_model.py'",
        ),
        (
            ["tests/own:build"],
            "a model of your own must be named as package.module:build or file.py:build, got 'tests/own:build'",
        ),
        (["tests.cli"], "a model of your own must be named as package.module:build or file.py:build, got 'tests.cli'"),
        (
            ["tests.cli.test_own_input:nothing"],
            "tests.cli.test_own_input:nothing must return a Model or a program, got NoneType",
        ),
        (
            ["tests.cli.test_own_input:gate"],
            "tests.cli.test_own_input:gate must build a model, but it is a program itself: name a",
        ),
        (
            ["tests.cli.test_own_input:fails", "--set", "width=3"],
            "tests.cli.test_own_input:fails must build a model from width=3, got RuntimeError at test_own_input.py:",
        ),
        (
            ["tests.cli.test_own_input:exits"],
            "tests.cli.test_own_input:exits must build a model from its defaults, got SystemExit at test_own_input.py:",
        ),
        (
            [BUILD, "--set", "width=a"],
            "tests.training.own:build must build a model from width='a', got TypeError at own.py:",
        ),
    ],
)
def test_bad_input_gets_one_sentence(
    arguments: list[str], sentence: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, stdout, stderr = call("train", *arguments, "--data", data)
    assert (code, stdout) == (2, "")
    assert stderr.startswith(sentence), stderr
    assert not list(tmp_path.iterdir())


def needs(width: int) -> Any:
    return own.build(width)


def nothing() -> None:
    """A builder that forgets to return its model."""


def gate(draw: c.Draw, x: Any) -> Any:
    return draw("gate", c.Bernoulli(logits=x)).sum(-1)


def exits() -> None:
    raise SystemExit("no licence")


def fails(width: int) -> None:
    raise RuntimeError(f"no model of width {width}\nand a second line")


@pytest.mark.parametrize(
    "text", ["def build(:", "raise RuntimeError('no licence')", "import no_such_package", "raise SystemExit(3)"]
)
def test_a_module_that_fails_when_it_is_imported_gets_one_sentence(text: str, data: str, tmp_path: Path) -> None:
    name = f"{tmp_path / 'broken.py'}:build"
    (tmp_path / "broken.py").write_text(text)
    code, _, stderr = call("train", name, "--data", data, "--out", str(tmp_path / "run"))
    assert (code, len(stderr.splitlines())) == (2, 1)
    assert stderr.startswith(f"model must be importable, but importing {name!r} raised ")
    assert "broken.py" in stderr.partition("raised")[2]


def test_only_functions_and_classes_are_suggested_as_builders(data: str, tmp_path: Path) -> None:
    for text, known in (("WIDTH = 3", "there are none"), ("WIDTH, make = 3, print", "choose from 'make'")):
        file = tmp_path / f"names_of_{len(text)}.py"
        file.write_text(text)
        sentence = f"unknown name 'build' in {file}; {known}\n"
        assert call("train", f"{file}:build", "--data", data) == (2, "", sentence)


@pytest.mark.parametrize(
    ("model", "text", "sentence"),
    [
        (BUILD, "stepps = 3", "unknown key 'stepps'; did you mean 'steps'?"),
        (BUILD, "arity = 8", "arity must be left out for a model of one's own, as it is for a notation"),
        (BUILD, "arguments = 3", "arguments must be a table of arguments by name, got 3"),
        ("4H-6V", "clip = 1.0", "clip must be left out for a notation, as it is for models of one's own"),
        ("4H-6V", f"model = '{BUILD}'", "model must be left out for a notation, as it is for models of one's own"),
    ],
)
def test_a_recipe_of_another_kind_of_model_gets_one_sentence(
    model: str, text: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    assert call("train", model, "--recipe", str(path)) == (2, "", f"in {str(path)!r}: {sentence}\n")


@pytest.mark.parametrize(
    ("name", "guess"),
    [("digitz", "; did you mean 'digits'?"), ("my.csv", "; choose from 'digits', 'mnist', 'omniglot'")],
)
def test_unknown_data_get_one_sentence(name: str, guess: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    must = "data must be a data set name or the path of an .npz file"
    assert call("train", BUILD, "--data", name) == (2, "", f"{must}, got {name!r}{guess}\n")


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"images": np.zeros((3, 6))}, "must have arrays train, or train_x, train_y and so on, and likewise for valid"),
        ({"test": np.zeros((3, 6))}, "must have an array 'train' or arrays 'train_NAME', got none"),
        (
            {"train": np.zeros((9, 6)), "test": np.zeros((3, 5))},
            "must have points of the same shape as train, got (5,)",
        ),
        ({"train_x": np.zeros((9, 6)), "train_y": np.zeros(8)}, "must have as many data points in every array"),
        (
            {"train": np.zeros((9, 5))},
            "bad.npz', of float32 (64, 5), but it raised RuntimeError at own.py:",
        ),
        (
            {"train": np.zeros((9, 6)), "train_y": np.zeros(9)},
            "must have 'train' or arrays such as 'train_y', got both",
        ),
        (
            {"train": np.zeros((1, 6))},
            "must have at least two training points, of which one is held out, or arrays for",
        ),
        ({"train_x": np.zeros((9, 6)), "test_y": np.zeros((9, 6))}, "must have the inputs x, as train has, got y"),
        (
            {"train": np.zeros((9, 6), np.float32), "test": np.zeros((9, 6), np.int64)},
            "must have the dtype of train, which is read as float32, got int64",
        ),
        (
            {"train": np.zeros((9, 6), np.uint8), "test": np.full((9, 6), 2, np.uint8)},
            "must have the dtype of train, which is read as float32, got uint8 of values up to 2",
        ),
        (
            {"train": np.zeros((9, 6)), "test": np.full((9, 6), np.nan)},
            "the model must run on points of the split 'test', of float32 (2, 6) with nan, with 2 samples of each, as ",
        ),
        (
            {"train": np.full((9, 6), 0.5)},
            "observed node 'x': value must lie in the support of Bernoulli, got 0.5 at index (0, 0)",
        ),
    ],
)
def test_a_file_that_does_not_fit_gets_one_sentence(arrays: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    path = own.write(tmp_path / "bad.npz", **arrays)
    code, stdout, stderr = call("train", BUILD, "--data", path, "--out", str(tmp_path / "run"))
    assert (code, stdout) == (2, "")
    assert sentence in stderr
    assert len(stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_program_of_other_inputs_than_a_file_has_says_which_arrays_it_takes(data: str, tmp_path: Path) -> None:
    x, y = own.bits(40).numpy(), np.zeros(40, np.int64)
    named = own.write(tmp_path / "named.npz", train_images=x, train_labels=y)
    must, unknown = "a program of (x, y) must be given", "without 'x', 'y' and with unknown 'images', 'labels'"
    for path, got in ((data, "as many inputs, got 1 input"), (named, f"a dictionary of its inputs, got one {unknown}")):
        todo = f"instead of {path!r}, take a file with arrays train_x and train_y, and likewise for valid and test"
        assert call("train", GATE, "--data", path) == (2, "", f"{must} {got}: {todo}\n")


def test_vimco_of_a_program_is_refused(labelled: str, tmp_path: Path) -> None:
    given = ("--data", labelled, "--estimator", "vimco", "--out", str(tmp_path / "run"))
    sentence = "estimator must not be vimco for a program, as it needs the log-weights of a model\n"
    assert call("train", GATE, *given) == (2, "", sentence)


def test_values_of_a_file_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    x = own.bits(40).numpy().astype(np.float32)
    path = own.write(tmp_path / "holes.npz", train=x, valid=x, test=np.where(np.arange(5)[:, None] == 4, np.nan, x[:5]))
    given = ("--data", path, "--steps", "1", "--batch", "8", "--score-samples", "2", "--out", str(tmp_path / "run"))
    code, _, stderr = call("train", BUILD, *given)
    sizes = "40 training, 40 validation, 5 test points of float32 (6,). 6 values of test are not finite."
    assert f"# {path!r}: {sizes}\n" in stderr
    assert (code, stderr.splitlines()[-1][:22]) == (2, "logits must be numbers")


@pytest.mark.parametrize("several", [[], ["--seed", "0,1"]], ids=["one run", "a list"])
def test_a_model_that_cannot_be_scored_is_not_trained(several: list[str], labelled: str, tmp_path: Path) -> None:
    given = ("--data", labelled, "--steps", "2", "--batch", "8", "--out", str(tmp_path / "run"))
    code, stdout, stderr = call("train", "tests.cli.test_own_input:Untiled", *given, *several)
    assert (code, stdout) == (2, "")
    must = "the model must run on points of the split 'test', of float32 (2, 6) and int64 (2,), with 2 samples of each"
    assert stderr.startswith(f"{must}, as it is scored with 100, but it raised ValueError: a tensor with 2 rows")
    assert not (tmp_path / "run").exists()
    code, _, stderr = call("train", "tests.cli.test_own_input:Untiled", *given, *several, "--score-samples", "1")
    assert code == 0, stderr


class Untiled(nn.Module):
    """A program that runs with one sample only."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 6)

    def forward(self, draw: c.Draw, x: Tensor, y: Tensor) -> Tensor:
        return (draw("gate", c.Bernoulli(logits=self.gate(x))) * x).sum(-1) - y


def test_a_list_is_tried_whole_before_it_is_trained(data: str, tmp_path: Path) -> None:
    code, _, stderr = call("train", BUILD, "--data", data, "--set", "width=4,a", "--out", str(tmp_path / "list"))
    assert code == 2
    assert stderr.startswith("tests.training.own:build must build a model from width='a'")
    assert not (tmp_path / "list").exists()


def test_a_list_of_models_with_the_same_parameters_is_not_trained(data: str, tmp_path: Path) -> None:
    given = ("--data", data, "--seed", "0,1", "--out", str(tmp_path / "list"))
    code, _, stderr = call("train", "tests.cli.test_own_input:shared", *given)
    assert code == 2
    assert stderr.startswith("a builder must make new parameters for each seed and setting, got the same 'p.logits'")
    assert not (tmp_path / "list").exists()


ONCE = own.build()


def shared() -> c.Model:
    return ONCE
