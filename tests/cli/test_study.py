"""The study is that of the library, on a model before training or that of a run."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from concretely import VIMCO, Pathwise, evaluation
from concretely.data import load_data
from concretely.evaluation import GradientStudy, gradient_study
from concretely.experiment import task_study
from concretely.experiment.task import TASKS, Gates
from concretely.experiment.task_study import read_study
from concretely.report.table import format_task_score
from concretely.training import checkpoint
from concretely.training import folder as training
from concretely.training.paper import build_model
from concretely.training.recipe import read, resolve
from concretely.training.rng import Order

from .command import call
from .conftest import STEPS

QUICK = ("--repeats", "12", "--points", "3", "--samples", "2")


class Studies(list[tuple[tuple[Any, ...], dict[str, Any]]]):
    """What the library was asked to study, each with few estimates."""

    def study(self, *arguments: Any, **options: Any) -> GradientStudy:
        self.append((arguments, options))
        return gradient_study(*arguments, **{**options, "repeats": 2})


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Studies:
    noted = Studies()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluation, "gradient_study", noted.study)
    return noted


def test_the_table_is_printed_and_drawn(tmp_path: Path) -> None:
    code, stdout, stderr = call("study", "6H-64V", *QUICK, "--out", str(tmp_path / "out"))
    assert code == 0
    table, _, rest = stdout.partition("\n\n")
    assert [line.split()[0] for line in table.splitlines()] == [
        "estimator",
        *("concrete", "vimco", "rloo", "nvil", "reinforce"),
    ]
    assert {line.split()[1] for line in table.splitlines()[1:]} == {"2"}
    assert "noise: the standard deviation of one estimate" in rest
    files = [str(tmp_path / "out" / f"6H-64V-digits.{kind}") for kind in ("png", "svg")]
    assert stdout.splitlines()[-3:] == ["", *files]
    assert sorted(str(file) for file in (tmp_path / "out").iterdir()) == files
    assert "references" in stderr
    assert "estimators" in stderr


def test_a_notation_is_studied_before_training(studies: Studies) -> None:
    code, _, _ = call("study", "(6h − 64v)", "--estimators", "concrete, vimco", "--points", "3")
    assert code == 0
    ((model, x), options) = studies[0]
    fresh = build_model(resolve(notation="6H-64V"), None)
    assert model.state_dict().keys() == fresh.state_dict().keys()
    assert x.shape == (3, 64)
    assert (options["samples"], options["repeats"]) == (5, 200)
    assert options["estimators"] == {"concrete": Pathwise(2 / 3, 1 / 2), "vimco": VIMCO()}


def test_a_run_is_studied_as_it_was_trained(studies: Studies, prediction: Path, density: Path) -> None:
    data = load_data("digits")
    order = Order(points=len(data.train), batch=3, seed=0)
    for folder in (prediction, density):
        _, trained, _ = training.restored(folder)
        code, stdout, _ = call("study", str(folder), "--estimators", "concrete", *QUICK)
        assert (code, stdout.splitlines()[-2]) == (0, f"out/study/{folder.name}.png")
        (model, *inputs), options = studies[-1]
        assert torch.equal(torch.cat(inputs, -1), data.train[order.indices(STEPS)])  # of the step after the last
        assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in trained.state_dict().items())
    assert [len(arguments) for arguments, _ in studies] == [3, 2]
    assert options["estimators"] == {"concrete": Pathwise(2 / 3, 1 / 2)}


def test_temperatures_are_the_given_ones_then_those_of_the_run(studies: Studies, run: Path) -> None:
    falling = f'prior_temperature = "1:1/4:{STEPS}"'
    _retell(run, (run / "recipe.toml").read_text().replace("prior_temperature = 0.5", falling))
    for option in ([], ["--temperature", "3/4"]):
        call("study", str(run), "--estimators", "concrete,reinforce", *QUICK, *option)
    call("study", "6H-64V", "--estimators", "concrete,reinforce", *QUICK, "--temperature", "3/4")
    found = [options["estimators"]["concrete"] for _, options in studies]
    assert found == [Pathwise(2 / 3, 1 / 4), Pathwise(3 / 4, 1 / 4), Pathwise(3 / 4, 1 / 2)]


def test_every_estimator_with_a_prior_temperature_has_that_of_the_run(studies: Studies, run: Path) -> None:
    own = (run / "recipe.toml").read_text().replace('"concrete"', '"logistic-normal"')
    _retell(run, own.replace("prior_temperature = 0.5", "prior_temperature = 0.8"))
    call("study", str(run), "--estimators", "concrete,logistic-normal", *QUICK)
    ((_, options),) = studies
    assert options["estimators"] == {
        "concrete": Pathwise(2 / 3, 0.8),
        "logistic-normal": Pathwise(2 / 3, 0.8, noise="normal"),
    }


def test_points_and_draws_follow_from_the_seed(studies: Studies) -> None:
    for seed in ("0", "0", "1"):
        call("study", "6H-64V", "--estimators", "reinforce", *QUICK, "--seed", seed)
    (first, same, other) = ((x, options["generator"].initial_seed()) for (_, x), options in studies)
    assert torch.equal(first[0], same[0])
    assert first[1] == same[1] != other[1]
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["6H-64"], "notation must have H or V after the units, got nothing at column 6\n6H-64\n     ^"),
        (["out/none"], "run must be the folder of a run, got 'out/none', which has no recipe.toml"),
        (["6H-64V", "--estimators", "concrete,vimcoo"], "unknown estimator 'vimcoo'; did you mean 'vimco'?"),
        (["6H-64V", "--samples", "1"], "samples must be at least 2 for estimator 'vimco', got 1"),
        (["6H-64V", "--samples", "0", "--estimators", "reinforce"], "samples must be at least 1, got 0"),
        (["6H-64V", "--repeats", "1"], "repeats must be at least 2, got 1"),
        (["6H-64V", "--points", "0"], "points must be at least 1, got 0"),
        (["6H-64V", "--points", "1298"], "points must be at most 1,297, the size of the training set, got 1298"),
        (["6H-64V", "--seed", "-1"], "seed must not be negative, got -1"),
        *(
            (["6H-64V", "--temperature", text], f"temperature must be a positive number, got {text!r}")
            for text in ("0", "-1/2", "cold", "inf", "1:1/2:100")
        ),
        (
            ["6H-64V", "--estimators", "rloo,vimco", "--temperature", "1"],
            "temperature must be left out, as no estimator has one, got '1'",
        ),
        (
            ["6H-64V", "--data", "minst"],
            "data must be a data set name or the path of an .npz file, got 'minst'; did you mean 'mnist'?",
        ),
        (["6H-63V"], "data must have 63 bits for each point, like the model, got 64 in 'digits'"),
    ],
)
def test_bad_input_gets_one_sentence_and_leaves_no_files(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("study", *arguments) == (2, "", f"{sentence}\n")
    assert not list(tmp_path.iterdir())


def test_a_run_keeps_its_data_wherever_they_are(density: Path, tmp_path: Path) -> None:
    sentence = "data must have 64 bits for each point, like the model, got 784 in 'mnist'\n"
    assert call("study", str(density), "--data", "mnist") == (2, "", sentence)
    others = str(tmp_path / "others.npz")
    np.savez(others, **{part: np.eye(20, 64, dtype=np.uint8) for part in ("train", "valid", "test")})
    sentence = f"data must be those that the run was trained on, got others in {others!r}"
    assert call("study", str(density), "--data", others) == (
        2,
        "",
        f"{sentence}: restore them, or start a new run in another folder or with overwrite\n",
    )


def test_what_an_estimator_refuses_gets_one_sentence(tmp_path: Path) -> None:
    code, stdout, stderr = call("study", "32H-64V", "--estimators", "exact", "--out", str(tmp_path))
    assert (code, stdout) == (2, "")
    assert stderr == "a graph must have at most 2^20 states to be enumerated, got 2^32 up to node 'h1'\n"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the gates of the task have few states."""
    monkeypatch.setitem(TASKS, "gate", replace(TASKS["gate"], build=lambda: Gates(blocks=2, width=2)))


TASK = ("study", "--tasks", "gate", "--estimators", "rloo,exact", "--steps", "5")


@pytest.mark.usefixtures("small")
def test_tasks_are_told_in_a_table_and_kept_in_a_record(tmp_path: Path) -> None:
    code, stdout, stderr = call(*TASK, "--seeds", "2", "--out", str(tmp_path))
    assert code == 0
    assert [note.partition(":")[0] for note in stderr.splitlines()] == [
        f"gate, {name}, seed {seed}" for name in ("rloo", "exact") for seed in (0, 1)
    ]
    study = read_study(tmp_path / "tasks.json")
    rows = [line.split() for line in stdout.splitlines() if line.startswith((" rloo", " exact"))]
    assert rows == [[name, *format_task_score(study.score("gate", name)).split()] for name in ("rloo", "exact")]
    assert stdout.splitlines()[-1] == str(tmp_path / "tasks.json")
    assert call(*TASK, "--out", str(tmp_path), "--seeds", "1")[::2] == (0, "")  # nothing is left to train


@pytest.mark.usefixtures("small")
def test_tasks_that_were_interrupted_keep_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, begun = task_study._run, list[str]()

    def interrupted(name: str, estimator: str, **options: Any) -> Any:
        begun.append(estimator)
        if estimator == "exact":
            os.kill(os.getpid(), signal.SIGINT)
        return run(name, estimator, **options)

    monkeypatch.setattr(task_study, "_run", interrupted)
    code, stdout, stderr = call(*TASK, "--seeds", "1", "--out", str(tmp_path))
    record = tmp_path / "tasks.json"
    assert (code, stdout) == (130, "")
    assert stderr.splitlines()[-1] == f"stopped; finished runs are in {record}: run the same command to go on"
    assert [run.estimator for run in read_study(record).runs] == ["rloo"]
    monkeypatch.setattr(task_study, "_run", run)
    assert call(*TASK, "--seeds", "1", "--out", str(tmp_path))[0] == 0
    assert begun == ["rloo", "exact"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--estimators", "rloo"], "notation or run must be given, or --tasks, got None"),
        (["gate,rnn"], "study must be given --tasks to train on tasks, got 'gate,rnn'"),
        (["6H-64V", "--seeds", "2"], "seeds must be left out without --tasks, got 2"),
        (["6H-64V", "--steps", "2"], "steps must be left out without --tasks, got 2"),
        (["--tasks", "gate", "--repeats", "9"], "repeats must be left out with --tasks, got 9"),
        (["--tasks", "gate", "--temperature", "1"], "temperature must be left out with --tasks, got '1'"),
        (["--tasks", "gate", "--seeds", "0"], "seeds must be at least 1, got 0"),
        (["--tasks", "gate", "--steps", "0"], "steps must be at least 1, got 0"),
        (["--tasks", "gates"], "unknown task 'gates'; did you mean 'gate'?"),
        (["--tasks", "gate", "--estimators", "vimco"], "estimators must suit one of the tasks, got vimco for gate"),
    ],
)
def test_flags_of_the_other_study_are_refused(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    assert call("study", *arguments, "--out", str(tmp_path / "out")) == (2, "", f"{sentence}\n")
    assert not (tmp_path / "out").exists()


def _retell(run: Path, recipe: str) -> None:
    """Give a run another recipe, also in its checkpoint."""
    (run / "recipe.toml").write_text(recipe)
    last = checkpoint.latest(run)
    assert last is not None
    checkpoint.save(run, last.step, last.tensors, {**last.state, "recipe": read(run / "recipe.toml")})
