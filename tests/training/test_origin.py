"""A run of others calls the function that it names only if the caller names it too."""

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

import concretely as c
from concretely.training import checkpoint
from concretely.training.folder import load_recipe
from concretely.training.origin import FILE

from ..cli.command import call
from . import own

BUILD = "tests.training.own:build"
GADGET = "subprocess:getoutput"
SHORT = ("--steps", "2", "--batch", "8", "--score-samples", "1")


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained here, to be read only."""
    folder = tmp_path_factory.mktemp("mine") / "run"
    c.fit(own.build, own.bits(40), estimator=c.RLOO(), steps=4, batch=8, arguments={"width": 5}, out=folder)
    return folder


@pytest.fixture
def theirs(mine: Path, tmp_path: Path) -> Path:
    """The same run, as it comes from another machine."""
    folder = copytree(mine, tmp_path / "theirs")
    (folder / FILE).unlink()
    return folder


def hostile(folder: Path, trace: Path) -> None:
    """Let a run build its model by a command that leaves a trace, with checksums that are right."""
    named = {"model": GADGET, "arguments": {"cmd": f"touch {trace}"}}
    text = (folder / "recipe.toml").read_text().replace(BUILD, GADGET)
    (folder / "recipe.toml").write_text(re.sub(r"(?s)\[arguments\].*", f'[arguments]\ncmd = "touch {trace}"\n', text))
    last = checkpoint.latest(folder)
    assert last is not None
    checkpoint.save(folder, last.step, last.tensors, {**last.state, "recipe": {**last.state["recipe"], **named}})
    assert load_recipe(folder).settings["arguments"] == named["arguments"]


def test_a_run_that_was_trained_here_is_loaded_in_another_process(mine: Path) -> None:
    program = f"import concretely as c; print(type(c.load({str(mine)!r})).__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "Model\n"


def test_a_run_of_others_is_loaded_once_its_function_is_named(theirs: Path, mine: Path) -> None:
    todo = (
        f"to allow that, pass its name, such as {BUILD!r}, as model to load, as --model, or as first argument to train"
    )
    sentence = f"{str(theirs)!r} was not trained here, and calls {BUILD!r} to build its model: {todo}"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        c.load(theirs)
    with pytest.raises(
        ValueError, match=r"^the model of this run cannot be built by its name: .*, got 'no_such:build'"
    ):
        c.load(theirs, model="no_such:build")
    expected = c.load(mine).state_dict()
    for model in (BUILD, f"{own.__file__}:build", own.build(width=5)):
        found = c.load(theirs, model=model).state_dict()
        assert all(found[name].equal(expected[name]) for name in expected)


@pytest.mark.parametrize("change", ["model", "arguments", "signature", "key"])
def test_a_signature_holds_for_one_function_one_set_of_arguments_and_one_user(
    change: str, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copytree(mine, tmp_path / "run")
    text = (folder / "recipe.toml").read_text()
    if change == "model":
        (folder / "recipe.toml").write_text(text.replace(BUILD, "tests.training.own:Gate"))
    elif change == "arguments":
        (folder / "recipe.toml").write_text(text.replace("width = 5", "width = 6"))
    elif change == "signature":
        (folder / FILE).write_text("0" * 64)
    else:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    with pytest.raises(ValueError, match=r"was not trained here|a resumed run must keep its recipe"):
        c.load(folder)


@pytest.mark.parametrize(
    "act",
    [
        lambda run: call("evaluate", run),
        lambda run: call("sample", run),
        lambda run: call("study", run),
        lambda run: call("train", "--resume", run, "--steps", "9"),
        lambda run: call("train", "--recipe", f"{run}/recipe.toml", "--out", f"{run}-new"),
        lambda run: call("sweep", "--recipe", f"{run}/recipe.toml", "--out", f"{run}-new"),
        lambda run: call("compare", run),
        lambda run: call("evaluate", run, "--model", BUILD),
        lambda run: call("train", BUILD, "--resume", run),
    ],
)
def test_reading_a_run_of_others_executes_nothing(act: Any, theirs: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    hostile(theirs, trace)
    code, _, stderr = act(str(theirs))
    assert (code, stderr.count("\n")) == (2, 1), stderr
    assert not trace.exists()
    with pytest.raises(ValueError, match="was not trained here"):
        c.load(theirs)
    assert not trace.exists()


def test_the_command_reads_a_run_of_others_once_its_function_is_named(theirs: Path) -> None:
    data = Path(theirs.parent, "my.npz")
    x = own.bits(40).numpy()
    np.savez(data, train=x, valid=x, test=x)
    run = theirs.parent / "run"
    given = ("--data", str(data), *SHORT, "--set", "width=5")
    assert call("train", BUILD, *given, "--out", str(run))[0] == 0
    (run / FILE).unlink()
    assert call("evaluate", str(run), "--samples", "1")[0] == 2
    assert call("evaluate", str(run), "--samples", "1", "--model", BUILD)[0] == 0
    assert call("train", "--resume", str(run), "--steps", "3")[0] == 2
    assert call("train", BUILD, "--resume", str(run), "--steps", "3", "--score-samples", "1")[0] == 0
    assert call("evaluate", str(run), "--samples", "1")[0] == 0  # it was trained here by now


def test_a_run_is_read_and_resumed_by_the_name_that_its_builder_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    x = own.bits(40).numpy()
    for place in (before, after):
        place.mkdir()
        np.savez(place / "my.npz", train=x, valid=x, test=x)
    (before / "mine.py").write_text("from tests.training.own import build, build_restless\n")
    monkeypatch.chdir(before)
    assert call("train", "mine.py:build", "--data", "my.npz", *SHORT, "--set", "width=5", "--out", "../run")[0] == 0
    monkeypatch.chdir(after)
    (before / "mine.py").rename("moved.py")
    sentence = (
        "model must be importable, such as package.module:build, got 'mine.py:build': there is no such file; name "
    )
    for words in (("evaluate", "../run", "--samples", "1"), ("train", "--resume", "../run")):
        code, _, stderr = call(*words)
        assert (code, sentence in stderr, stderr.count("\n")) == (2, True, 1)
    for verb in (("evaluate", "--samples", "1"), ("sample", "--rows", "1"), ("study", "--repeats", "2")):
        code, _, stderr = call(verb[0], "../run", *verb[1:], "--model", "moved.py:build")
        assert code == 0, stderr
    code, _, stderr = call("train", "moved.py:build_restless", "--resume", "../run", "--steps", "3")
    assert (code, stderr[:51]) == (2, "the model of this run cannot be built by its name: ")
    code, _, stderr = call("train", "moved.py:build", "--resume", "../run", "--steps", "3", "--score-samples", "1")
    assert code == 0, stderr
    assert load_recipe("../run").settings["model"] == "moved.py:build"
    assert call("evaluate", "../run", "--samples", "1")[0] == 0
    with pytest.raises(ValueError, match="other values of model"):
        c.fit(own.build, x, steps=4, batch=8, arguments={"width": 5}, out=tmp_path / "run")


def test_the_key_is_for_the_user_alone_and_a_run_without_one_is_named(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = Path(os.environ["XDG_CONFIG_HOME"]).rglob("key")
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == 32
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    folder = tmp_path / "run"
    c.fit(own.build, own.bits(40), estimator=c.RLOO(), steps=2, batch=8, arguments={"width": 5}, out=folder)
    assert not (folder / FILE).exists()
    with pytest.raises(ValueError, match="was not trained here"):
        c.load(folder)
    assert c.load(folder, model=BUILD) is not None


@pytest.mark.parametrize(
    ("name", "value"), [("steps", '"many"'), ("steps", "0"), ("arguments", "3"), ("lr", '"x"'), ("data", "3")]
)
def test_a_recipe_of_another_form_is_refused_in_one_sentence(name: str, value: str, theirs: Path) -> None:
    text = (theirs / "recipe.toml").read_text().partition("\n[arguments]")[0]
    lines = [line for line in text.splitlines() if not line.startswith(f"{name} =")]
    (theirs / "recipe.toml").write_text("\n".join([*lines, f"{name} = {value}"]))
    with pytest.raises(ValueError, match=rf"^{name} must ") as caught:
        c.load(theirs, model=BUILD)
    assert "\n" not in str(caught.value)
