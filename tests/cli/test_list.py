"""Lists are trained as one program, and each member is left as it would be alone."""

import json
import re
import shlex
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from concretely.training.folder import restored

from ..training import own
from .command import call
from .conftest import Interrupt

pytestmark = pytest.mark.usefixtures("unpictured")

TINY = ("train", "4H-64V", "--steps", "20", "--batch", "8", "--score-samples", "3")
LISTS = ("--seed", "0..1", "--lr", "1e-3,1e-2")
NAMES = ["lr=0.001,seed=0", "lr=0.001,seed=1", "lr=0.01,seed=0", "lr=0.01,seed=1"]


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A list that was trained, to be read only, and the output of the command."""
    folder = tmp_path_factory.mktemp("list") / "all"
    code, stdout, stderr = call(*TINY, *LISTS, "--out", str(folder))
    assert code == 0, stderr
    return folder, stdout, stderr


def test_members_are_one_program_and_are_left_as_if_alone(listed: tuple[Path, str, str], tmp_path: Path) -> None:
    folder, stdout, stderr = listed
    assert "4 members of 4H-64V as one program" in stderr
    assert sorted(path.name for path in folder.iterdir()) == NAMES
    assert [line.split()[-1] for line in stdout.splitlines()[2:-1]] == NAMES
    assert stdout.splitlines()[-1] == str(folder)
    code, *_ = call(*TINY, "--seed", "1", "--lr", "1e-2", "--out", str(tmp_path / "alone"))
    member, alone = folder / NAMES[3], tmp_path / "alone"
    assert code == 0
    assert {path.name for path in member.iterdir()} == {path.name for path in alone.iterdir()}
    one, other = (json.loads((folder / "record.json").read_text()) for folder in (member, alone))
    assert one["recipe"] == other["recipe"]
    assert (one["members"], other["members"]) == (4, 1)
    found, expected = (record["metrics"]["test_nll"] for record in (one, other))
    assert found["value"] == pytest.approx(expected["value"], rel=1e-5)


def test_the_same_command_trains_nothing_and_a_longer_list_only_that(
    listed: tuple[Path, str, str], tmp_path: Path, trained: list[Path]
) -> None:
    folder = copytree(listed[0], tmp_path / "all")
    code, stdout, _ = call(*TINY, *LISTS, "--out", str(folder))
    assert (code, stdout.splitlines()[:-1], trained) == (0, listed[1].splitlines()[:-1], [])
    code, _, stderr = call(*TINY, "--seed", "0..2", *LISTS[2:], "--out", str(folder))
    assert (code, len(trained)) == (0, 2)
    assert "2 members of 4H-64V as one program" in stderr


def test_an_interrupted_list_goes_on(tmp_path: Path, interrupt: Interrupt, trained: list[Path]) -> None:
    interrupt(lambda: not trained)
    code, stdout, stderr = call(*TINY, *LISTS, "--out", str(tmp_path))
    assert (code, stdout) == (130, "")
    assert stderr.splitlines()[-1] == "stopped and saved; run the same command to go on"
    assert [restored(tmp_path / name)[0].step for name in NAMES] == [1, 1, 1, 1]
    code, *_ = call(*TINY, *LISTS, "--out", str(tmp_path))
    assert code == 0
    assert [restored(tmp_path / name)[0].step for name in NAMES] == [20, 20, 20, 20]


def test_an_interrupted_list_that_overwrites_does_not_go_on_by_overwriting(
    tmp_path: Path, interrupt: Interrupt, trained: list[Path]
) -> None:
    interrupt(lambda: not trained)
    code, _, stderr = call(*TINY, *LISTS, "--out", str(tmp_path), "--overwrite")
    assert code == 130
    assert stderr.splitlines()[-1] == "stopped and saved; run the same command without --overwrite to go on"


def test_a_member_that_diverges_is_told_and_the_others_are_shown(tmp_path: Path) -> None:
    code, stdout, stderr = call(*TINY, "--lr", "1e-3,1e30", "--out", str(tmp_path))
    assert code == 1
    assert "lr=1e+30: " in stderr
    (command,) = re.findall(r"lr=1e\+30 has diverged: concretely (train --recipe .* --lr 1e\+29 --out .*)\n", stderr)
    words = shlex.split(command)
    assert (words[2], words[-1]) == (f"{tmp_path}/lr=1e+30/recipe.toml", f"{tmp_path}/lr=1e+30-lr1e+29")
    assert [line.split()[-1] for line in stdout.splitlines()[2:-1]] == ["lr=0.001"]


def test_data_may_be_a_list(tmp_path: Path, trained: list[Path]) -> None:
    points = np.random.default_rng(0).integers(0, 2, (60, 64)).astype(np.uint8)
    dots = own.write(tmp_path / "dots.npz", train=points[:40], test=points[40:])
    code, stdout, stderr = call(*TINY, "--data", f"digits,{dots}", "--seed", "0", "--out", str(tmp_path / "out"))
    assert (code, len(trained)) == (0, 2), stderr
    assert {line.split()[1] for line in stdout.splitlines() if "4H-64V" in line} == {"digits", "dots.npz"}


def test_what_is_trained_on_may_be_a_list(tmp_path: Path, trained: list[Path]) -> None:
    grey = np.random.default_rng(0).random((60, 64)).astype(np.float32)
    path = own.write(tmp_path / "grey.npz", train=grey[:30], valid=grey[30:40], test=grey[40:])
    lists = ("--binarize", "bernoulli,threshold", "--train-on", "train,whole")
    code, _, stderr = call(*TINY, "--data", path, *lists, "--out", str(tmp_path / "out"))
    assert (code, len(trained)) == (0, 4), stderr
    folders = sorted((tmp_path / "out").iterdir())
    assert [folder.name for folder in folders] == [
        f"binarize={how},train_on={part}" for how in ("bernoulli", "threshold") for part in ("train", "whole")
    ]
    assert len({restored(folder)[0].digest for folder in folders}) == 4


def test_a_folder_of_members_is_not_resumed_but_its_members_are(listed: tuple[Path, str, str], tmp_path: Path) -> None:
    folder = listed[0]
    for verb in (["train", "--resume"], ["evaluate"]):
        code, stdout, stderr = call(*verb, str(folder))
        assert (code, stdout) == (2, "")
        named = ", ".join(map(repr, NAMES))
        sentence = f"run must be the folder of a run, got {str(folder)!r}, which holds runs: choose one of {named}"
        way = ", or resume all with the command that started them" if verb[0] == "train" else ""
        assert stderr == f"{sentence}{way}\n"
    member = copytree(folder / NAMES[1], tmp_path / "member")
    code, *_ = call("train", "--resume", str(member), "--steps", "25", "--score-samples", "3")
    assert (code, restored(member)[0].step) == (0, 25)


def test_of_many_members_some_are_named(tmp_path: Path) -> None:
    for index in range(20):
        (tmp_path / f"seed={index}").mkdir()
        (tmp_path / f"seed={index}" / "recipe.toml").touch()
    *_, stderr = call("train", "--resume", str(tmp_path))
    assert stderr.count("seed=") == 8
    assert "'seed=15', …, or resume all" in stderr


def test_a_list_of_one_is_a_single_run(tmp_path: Path, trained: list[Path]) -> None:
    code, *_ = call(*TINY, "--seed", "3..3", "--out", str(tmp_path / "out"))
    assert (code, len(trained)) == (0, 1)
    assert restored(tmp_path / "out")[0].recipe.seed == 3


def test_a_list_of_fewer_steps_than_were_taken_is_refused(listed: tuple[Path, str, str]) -> None:
    code, stdout, stderr = call(*TINY, *LISTS, "--steps", "10", "--out", str(listed[0]))
    assert (code, stdout) == (2, "")
    assert stderr.startswith("steps must be at least 20, which the run in ")


def test_numbers_that_differ_little_are_two_members(tmp_path: Path) -> None:
    code, *_ = call(*TINY, "--lr", "0.0010000001,0.001", "--out", str(tmp_path))
    assert code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lr=0.001", "lr=0.0010000001"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--seed", "3..0"), "a range of seeds must be ascending, with at most 10,000 seeds, got '3..0'"),
        (("--seed", "0.."), "seed must be a number, or a range such as 0..7, got '0..'"),
        (("--seed", "0,1,0"), "seeds and settings must differ between runs, got 'seed=0' twice: leave one of them out"),
        (("--lr", "1e-3,fast"), "lr must be a number, got 'fast'"),
        (("--lr", "1e-3,"), "lr must be a number, got ''"),
        (
            ("--seed", "0,1", "--tensorboard"),
            "tensorboard must be left out for a list: each member has a curve.csv",
        ),
        (
            ("--seed", "0,1", "--precision", "tf16"),
            "unknown precision 'tf16'; choose from 'bfloat16', 'float32', 'tf32'",
        ),
    ],
)
def test_bad_lists_get_one_sentence_and_nothing_is_made(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    code, stdout, stderr = call(*TINY, *arguments, "--out", str(tmp_path / "out"))
    assert (code, stdout, stderr) == (2, "", f"{sentence}\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["train", "sweep"])
def test_another_setting_has_another_default_folder(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[Path]
) -> None:
    own.write(tmp_path / "my.npz", train=own.bits(50).numpy(), test=own.bits(10).numpy())
    monkeypatch.chdir(tmp_path)
    given = ("tests.training.own:build", "--data", "my.npz", "--steps", "2", "--batch", "8", "--score-samples", "2")
    for extra in ((), ("--estimator", "rloo"), ("--optimizer", "muon")):
        for _ in range(2):  # the second time, nothing is left to train
            code, _, stderr = call(verb, *given, "--lr", "1e-2,1e-3", *extra)
            assert code == 0, stderr
    assert len(trained) == 6
    names = sorted(path.name for path in (tmp_path / "out" / verb).iterdir())
    assert names == ["own.build-my", "own.build-my,estimator=rloo,samples=5", "own.build-my,optimizer=muon"]
