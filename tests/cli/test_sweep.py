"""A sweep trains a grid, survives what goes wrong with a member, and chooses by the validation set."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from concretely.experiment.record import read_record
from concretely.training.folder import load_recipe, restored
from concretely.training.recipe import read, resolve

from .command import call
from .conftest import Interrupt

pytestmark = pytest.mark.usefixtures("unpictured")

GRID = ("--lr", "1e-3,3e-2", "--weight-decay", "0,1")
SMALL = ("sweep", "6H-64V", "--steps", "20", "--score-samples", "10")


def lines(stdout: str) -> list[list[str]]:
    """The words of every line of members, after the title and the head and before the caption."""
    found = [line.split() for line in stdout.splitlines() if line.strip() and "─" not in line]
    return found[2:-2]


def told(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    return content


def test_a_sweep_sorts_its_members_marks_the_best_and_writes_its_recipe(tmp_path: Path, trained: list[Path]) -> None:
    code, stdout, stderr = call(*SMALL, *GRID, "--out", str(tmp_path))
    assert code == 0, stderr
    table = lines(stdout)
    assert stdout.split()[:3] == ["6H-64V-digits-concrete-m1", "lr", "weight_decay"]
    assert {line[0] for line in table[:2]} == {"0.03"}  # in so few steps the faster is ahead
    values = [float(line[2]) for line in table]
    assert values == sorted(values)
    assert [line[-1] == "best" for line in table] == [True, False, False, False]
    assert stdout.splitlines()[-1] == str(tmp_path / "best.toml")

    best = resolve(**read(tmp_path / "best.toml"))
    assert (best.lr, best.steps, best.notation) == (0.03, 20, "6H-64V")
    content = told(tmp_path)
    assert content["members"][0]["recipe"] == best.settings
    assert content["best"] == content["members"][0]["folder"]
    assert [member["nll"] for member in content["members"]] == sorted(member["nll"] for member in content["members"])
    assert all(member["standard_error"] > 0 and member["seconds"] > 0 for member in content["members"])
    assert len(trained) == len(set(trained)) == 4


def test_what_a_file_says_of_a_model_is_not_swept(tmp_path: Path, trained: list[Path]) -> None:
    (tmp_path / "some.toml").write_text("[when.linear.relaxed]\nlr = 1e-2\n[when.nonlinear]\nweight_decay = 8\n")
    code, *_ = call(*SMALL, "--recipe", str(tmp_path / "some.toml"), "--out", str(tmp_path))
    assert code == 0
    names = sorted(path.name.partition(",temperature")[0] for path in trained)
    assert names == [f"lr=0.01,weight_decay={decay}" for decay in ("0", "0.01", "0.1", "1")]


def test_members_are_scored_by_the_validation_set(tmp_path: Path) -> None:
    call(*SMALL, "--lr", "1e-3", "--weight-decay", "0", "--out", str(tmp_path))
    (member,) = told(tmp_path)["members"]
    metrics = read_record(tmp_path / member["folder"] / "record.json")["metrics"]
    assert "valid_nll" in metrics
    assert "test_nll" not in metrics
    assert metrics["valid_nll"]["value"] == member["nll"]
    assert (metrics["valid_nll"]["samples"], metrics["valid_nll"]["points"]) == (10, 250)


def test_the_same_command_trains_nothing_and_one_with_more_only_that(tmp_path: Path, trained: list[Path]) -> None:
    command = (*SMALL, "--weight-decay", "0", "--out", str(tmp_path))
    _, first, _ = call(*command, "--lr", "1e-3,1e-2")
    trained.clear()
    code, second, _ = call(*command, "--lr", "1e-3,1e-2")
    assert (code, second, trained) == (0, first, [])
    call(*command, "--lr", "1e-3,1e-2,2e-2")
    assert [folder.name.partition(",")[0] for folder in trained] == ["lr=0.02"]
    trained.clear()
    call(*command, "--lr", "1e-3", "--steps", "30")
    assert len(trained) == 1
    assert told(tmp_path)["members"][0]["step"] == 30


def test_a_member_that_diverges_is_reported_once_and_stops_no_other(tmp_path: Path, trained: list[Path]) -> None:
    command = (*SMALL, "--lr", "1e9,1e-3", "--weight-decay", "0", "--out", str(tmp_path))
    code, stdout, stderr = call(*command)
    assert code == 0
    assert "training has diverged by step" in stderr
    good, bad = lines(stdout)
    assert (good[0], good[-1]) == ("0.001", "best")
    assert bad == ["1e+09", "diverged", "–", "–"]
    assert told(tmp_path)["members"][1]["diverged"].startswith("training has diverged by step")
    trained.clear()
    assert call(*command)[:2] == (0, stdout)
    assert trained == []


def test_nothing_is_chosen_if_all_diverge(tmp_path: Path) -> None:
    code, stdout, stderr = call(*SMALL, "--lr", "1e9", "--weight-decay", "0", "--out", str(tmp_path))
    assert code == 1
    way = "run the command again with smaller values of --lr"
    assert stderr.splitlines()[-1] == f"no member can be selected, as all have diverged: {way}"
    assert "best" not in stdout
    assert not (tmp_path / "best.toml").exists()
    assert told(tmp_path)["best"] is None
    assert call(*SMALL, "--lr", "1e-3", "--weight-decay", "0", "--out", str(tmp_path))[0] == 0
    assert told(tmp_path)["best"] is not None


def test_an_interrupted_sweep_goes_on_to_the_same_end(
    tmp_path: Path, trained: list[Path], interrupt: Interrupt
) -> None:
    call(*SMALL, *GRID, "--out", str(tmp_path / "whole"))
    interrupt(lambda: len(trained) == 4)
    code, stdout, stderr = call(*SMALL, *GRID, "--out", str(tmp_path / "halves"))
    assert (code, stdout) == (130, "")
    assert stderr.splitlines()[-1] == "stopped and saved; run the same command to go on"
    assert len(trained) == 8
    assert not (tmp_path / "halves" / "sweep.json").exists()
    assert restored(trained[-1])[0].step == 1
    code, *_ = call(*SMALL, *GRID, "--out", str(tmp_path / "halves"))
    assert (code, len(trained)) == (0, 12)
    whole, halves = (
        [(each["folder"], each["nll"]) for each in told(tmp_path / name)["members"]] for name in ("whole", "halves")
    )
    assert whole == halves


def test_data_that_are_loaded_can_be_interrupted_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    monkeypatch.setattr("concretely.training.folder.load_data", slow)
    sentence = "stopped before the data were complete; downloaded files are kept\n"
    assert call("sweep", "6H-64V", "--out", str(tmp_path)) == (130, "", sentence)


def test_the_papers_grid_is_taken_unless_another_is_given(tmp_path: Path) -> None:
    from concretely.experiment.grid import expand_grid
    from concretely.experiment.search import PAPER_GRID

    assert len(expand_grid(PAPER_GRID)) == 12
    assert {choice["lr"] for choice in expand_grid(PAPER_GRID)} == {"1e-4", "3e-4", "1e-3"}
    assert {choice["weight_decay"] for choice in expand_grid(PAPER_GRID)} == {"0", "1e-2", "1e-1", "1"}
    assert len(expand_grid({**PAPER_GRID, "lr": "1", "temperature": "1/2,1", "seed": "0..2"})) == 24
    assert len(expand_grid({"lr": [1e-3, 1e-4], "weight_decay": 0.0})) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--lr", "1e-3,fast"], "lr must be a number, got 'fast'"),
        (["--lr", "1e-3,"], "lr must be a number, got ''"),
        (["--lr", "1e-3,0"], "lr must be positive, got 0.0"),
        (["--temperature", "1,0"], "temperature must be positive, got 0.0"),
        (["--batch", "64,128"], "batch must be a number, got '64,128'"),
        (["--estimator", "vimcoo"], "unknown estimator 'vimcoo'; did you mean 'vimco'?"),
        (["--score-samples", "0"], "score-samples must be at least 1, got 0"),
        (["--data", "digits,mnist"], "data must have one value, as one member is selected, got 'digits,mnist'"),
        (["--train-on", "train,whole"], "train_on must have one value, as one member is selected, got 'train,whole'"),
        (["--data", "mnist"], "data must have 64 bits for each point, like the model, got 784 in 'mnist'"),
        (
            ["--lr", "1e-3,0.001", "--weight-decay", "0"],
            "seeds and settings must differ between runs, got 'lr=0.001,weight_decay=0.0,"
            "temperature=0.6666666666666666,prior_temperature=0.5,seed=0' twice: leave one of them out",
        ),
    ],
)
def test_what_is_wrong_is_refused_before_any_training(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    code, stdout, stderr = call("sweep", "6H-64V", *arguments, "--out", str(tmp_path / "out"))
    assert (code, stdout, stderr) == (2, "", f"{sentence}\n")
    assert not (tmp_path / "out").exists()


def test_what_a_step_would_refuse_is_refused_before_any(tmp_path: Path) -> None:
    code, _, stderr = call("sweep", "40H-64V", "--estimator", "exact", "--out", str(tmp_path / "out"))
    assert (code, stderr) == (2, "a graph must have at most 2^20 states to be enumerated, got 2^40 up to node 'h1'\n")
    assert not (tmp_path / "out").exists()


def test_an_empty_list_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("lr = []\n")
    code, _, stderr = call("sweep", "6H-64V", "--recipe", str(tmp_path / "r.toml"))
    assert (code, stderr) == (2, "lr must have at least one value, got none\n")


def test_folders_of_other_runs_are_left_alone(tmp_path: Path, trained: list[Path]) -> None:
    command = ("--lr", "1e-3", "--weight-decay", "0", "--out", str(tmp_path))
    call(*SMALL, *command)
    (folder,) = trained
    code, _, stderr = call(*SMALL, *command, "--batch", "32")
    assert code == 2
    assert stderr == f"{str(folder)!r} holds a run with another batch: choose another folder\n"
    code, _, stderr = call(*SMALL, *command, "--steps", "10")
    assert code == 2
    assert stderr == (
        f"steps must be at least 20, which the run in {str(folder)!r} has taken, got 10: choose another folder\n"
    )
    assert load_recipe(folder).steps == 20
    assert len(trained) == 1


def test_a_sweep_holds_out_what_it_chooses_by() -> None:
    found = call("sweep", "6H-64V", "--train-on", "whole")
    assert found == (2, "", "train_on must be 'train', as members are selected on the validation set, got 'whole'\n")
