"""A run on the disk ends the same however often it is stopped, and stops where it must."""

import csv
import math
import os
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from concretely.evaluation.likelihood import evaluate
from concretely.training import checkpoint
from concretely.training import loop as running
from concretely.training.folder import Run, load_recipe, restored, save_checkpoint
from concretely.training.loop import Callbacks, train
from concretely.training.recipe import ESTIMATORS
from concretely.training.rng import Purpose, generator_of
from concretely.training.train_state import Row, TrainState

from .example import assert_alike, assert_same, data, recipe, tensors, timeless, trained

RECIPES: dict[str, dict[str, Any]] = {
    **{estimator: {"estimator": estimator} for estimator in ESTIMATORS},
    "annealed": {"temperature": "2:1/2:20", "prior_temperature": "1:1/4:15"},
    "n-ary": {"notation": "6H:8~12V", "estimator": "nvil", "samples": 2},
    "two layers": {"notation": "4H~4H-12V", "samples": 3},
    "two layers of NVIL": {"notation": "4H-4H-12V", "estimator": "nvil"},
    "prediction": {"notation": "4V-4H-8V", "weight_decay": 5.0},
    "validated": {"validate": 4, "validation_samples": 3},
    "patient": {"notation": "4H-4H-12V", "validate": 3, "patience": 1, "lr": 0.5},
    "linear": {"lr_schedule": "linear", "weight_decay": 3.0},
    "cosine": {"lr_schedule": "cosine", "batch": 64},
    "muon": {"optimizer": "muon", "weight_decay": 3.0},
    "muon of NVIL": {"optimizer": "muon", "estimator": "nvil"},
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_that_is_stopped_again_and_again_ends_as_if_it_never_was(name: str, tmp_path: Path) -> None:
    straight = trained(tmp_path / "straight", **RECIPES[name])
    assert straight.finished
    for stop in (7, 3, 10, 1):  # inside rows and at their ends
        run = trained(tmp_path / "stopped", stop=stop, **RECIPES[name])
        assert run.finished or run.step in (7, 10, 20, 21)
    run = trained(tmp_path / "stopped", seconds=0.0, **RECIPES[name])
    assert_alike(run, straight)
    assert_same(tensors(tmp_path / "stopped"), tensors(tmp_path / "straight"))
    parameters = [load_file(tmp_path / folder / "model.safetensors") for folder in ("stopped", "straight")]
    assert_same(*parameters)
    if name == "patient":
        assert straight.step < 30


def test_a_finished_run_that_goes_on_does_nothing_more(tmp_path: Path) -> None:
    first = trained(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    steps: list[int] = []
    again = train(recipe(), tmp_path, data=data(), callbacks=Callbacks(step=steps.append))
    assert again == first
    assert not steps
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_a_run_leaves_its_recipe_its_curve_its_parameters_and_two_checkpoints(tmp_path: Path) -> None:
    run = trained(tmp_path / "a" / "b", seconds=0.0, validate=20)
    folder = tmp_path / "a" / "b"
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock",
        "checkpoint-000000029.json",
        "checkpoint-000000029.safetensors",
        "checkpoint-000000030.json",
        "checkpoint-000000030.safetensors",
        "curve.csv",
        "model.safetensors",
        "recipe.toml",
    ]
    assert load_recipe(folder) == run.recipe == recipe(validate=20)
    with (folder / "curve.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == [field.name for field in fields(Row) if field.name not in ("metrics", "run")]
    assert [int(row["step"]) for row in table] == [row.step for row in run.rows] == [10, 20, 30]
    assert [float(row["objective"]) for row in table] == [row.objective for row in run.rows]
    assert [row["valid"] != "" for row in table] == [False, True, False]
    assert_same(load_file(folder / "model.safetensors"), restored(folder)[1].state_dict())


@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (10, 1), (11, 2), (5000, 500), (5001, 251), (20_000, 500)])
def test_a_curve_has_at_most_five_hundred_rows_and_ends_with_the_last_step(steps: int, rows: int) -> None:
    assert math.ceil(steps / running._interval(recipe(steps=steps))) == rows <= running.ROWS


def test_a_run_of_an_earlier_version_goes_on_with_its_rows(tmp_path: Path) -> None:
    trained(tmp_path / "old", stop=17)
    last = checkpoint.latest(tmp_path / "old")
    assert last is not None
    rows = [
        {"bound" if name == "objective" else name: value for name, value in row.items()} for row in last.state["rows"]
    ]
    checkpoint.save(tmp_path / "old", last.step, last.tensors, {**last.state, "rows": rows})
    assert [row.objective for row in restored(tmp_path / "old")[0].rows] == [row["bound"] for row in rows]
    assert_alike(trained(tmp_path / "old"), trained(tmp_path / "new"))


def test_a_run_that_has_taken_no_step_yet_starts_from_the_start(tmp_path: Path) -> None:
    tmp_path.joinpath("recipe.toml").write_text(recipe().toml())
    with pytest.raises(ValueError, match=r"^run must have a checkpoint, got '.*', which has none yet: train it first$"):
        restored(tmp_path)
    assert trained(tmp_path).finished


def test_what_is_watched_is_every_step_and_every_row(tmp_path: Path) -> None:
    steps: list[int] = []
    rows: list[Row] = []
    run = train(recipe(validate=12), tmp_path, data=data(), callbacks=Callbacks(step=steps.append, row=rows.append))
    assert steps == list(range(1, 31))
    assert tuple(rows) == run.rows
    assert [(row.step, row.valid is not None) for row in rows] == [
        (10, False),
        (12, True),
        (20, False),
        (24, True),
        (30, False),
    ]


def scores(monkeypatch: pytest.MonkeyPatch, values: list[float]) -> list[int]:
    """Have validations find these values; the steps after which there was one."""
    steps: list[int] = []

    def validate(state: TrainState) -> float:
        steps.append(state.step)
        return values[len(steps) - 1]

    monkeypatch.setattr(TrainState, "validate", validate)
    return steps


@pytest.mark.parametrize(
    ("values", "patience", "validations", "best"),
    [
        ([5.0, 4.0, 4.0, 4.5, 3.0], 3, 5, 5),
        ([5.0, 4.0, 4.0, 4.5, 3.0], 2, 4, 2),
        ([5.0, 4.0, 4.0, 4.5, 3.0], 1, 3, 2),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0, 6, 1),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 4, 5, 1),
    ],
)
def test_patience_is_so_many_validations_without_a_better_one(
    values: list[float], patience: int, validations: int, best: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = scores(monkeypatch, [*values, 9.0])
    run = trained(tmp_path, validate=5, patience=patience, steps=5 * max(len(values), validations))
    assert steps == [5 * k for k in range(1, validations + 1)]
    assert (run.step, run.best, run.finished) == (5 * validations, (5 * best, values[best - 1]), True)


def test_the_best_parameters_are_kept_and_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores(monkeypatch, [3.0, 1.0, 2.0])
    trained(tmp_path / "long", validate=10)
    scores(monkeypatch, [3.0, 1.0])
    trained(tmp_path / "short", validate=10, steps=20)
    run, model, damaged = restored(tmp_path / "long")
    assert (run.step, run.best, damaged) == (30, (20, 1.0), ())
    assert not model.training
    best = {name.removeprefix("model/"): t for name, t in tensors(tmp_path / "short").items() if "model/" in name}
    assert_same(dict(model.state_dict()), best)
    assert_same(load_file(tmp_path / "long" / "model.safetensors"), best)
    last = {name.removeprefix("model/"): t for name, t in tensors(tmp_path / "long").items() if "model/" in name}
    assert any(not last[name].equal(best[name]) for name in best)


def test_a_best_score_that_is_not_a_number_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_earlier_versions(run: Run, *given: Any) -> None:
        save_checkpoint(replace(run, best=(10, math.nan)), *given)

    scores(monkeypatch, [math.nan, 2.0, 3.0])
    with monkeypatch.context() as earlier:
        earlier.setattr(running, "save_checkpoint", as_earlier_versions)
        assert trained(tmp_path, validate=10, stop=13).step == 13
    run = trained(tmp_path, validate=10)
    assert (run.best, run.finished) == ((20, 2.0), True)


def test_a_validation_is_the_likelihood_of_the_validation_set(tmp_path: Path) -> None:
    run = trained(tmp_path, validate=30, validation_samples=7)
    _, model, _ = restored(tmp_path)
    generator = generator_of(3, Purpose.VALIDATION)
    assert run.best == (30, evaluate(model, data().valid[:], samples=7, generator=generator).nll)


def test_without_validations_the_last_parameters_are_restored(tmp_path: Path) -> None:
    trained(tmp_path, stop=13)
    run, model, _ = restored(tmp_path)
    assert (run.step, run.finished, run.best) == (13, False, None)
    assert_same(
        {f"model/{n}": t for n, t in model.state_dict().items()},
        {name: tensor for name, tensor in tensors(tmp_path).items() if name.startswith("model/")},
    )


# Going on for longer


@pytest.mark.parametrize("name", ["concrete", "nvil", "annealed", "two layers"])
@pytest.mark.parametrize("first", [20, 23])
def test_a_finished_run_goes_on_for_more_steps_as_if_it_had_been_of_that_length(
    name: str, first: int, tmp_path: Path
) -> None:
    trained(tmp_path / "short", **RECIPES[name], steps=first)
    run = trained(tmp_path / "short", **RECIPES[name], steps=34)
    straight = trained(tmp_path / "long", **RECIPES[name], steps=34)
    assert (run.step, run.finished) == (34, True)
    assert_same(tensors(tmp_path / "short"), tensors(tmp_path / "long"))
    assert load_recipe(tmp_path / "short").steps == 34
    if first == 20:
        assert_alike(run, straight)


@pytest.mark.parametrize("stop", [10, 13])
def test_a_run_may_end_where_it_was_stopped(stop: int, tmp_path: Path) -> None:
    trained(tmp_path / "stopped", stop=stop, validate=20)
    run = trained(tmp_path / "stopped", steps=stop, validate=20)
    straight = trained(tmp_path / "straight", steps=stop, validate=20)
    assert_alike(run, straight)
    assert_same(tensors(tmp_path / "stopped"), tensors(tmp_path / "straight"))


def test_a_run_that_ran_out_of_patience_has_some_again_with_more_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores(monkeypatch, [1.0, 2.0])
    assert trained(tmp_path, validate=5, patience=1).step == 10
    scores(monkeypatch, [0.5, 0.4, 0.3, 0.2, 0.1, 0.0])
    assert trained(tmp_path, validate=5, patience=1, steps=40).step == 40


def kept(names: str) -> str:
    """What is said if these keys of a recipe have changed."""
    must = "a resumed run must keep its recipe except for steps"
    return f"{must}, got other values of {names}: restore them, or start a new run in another folder or with overwrite"


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"steps": 12}, "steps must be at least 13, which the run has taken, got 12"),
        (
            {"lr": 0.5},
            kept("lr"),
        ),
        (
            {"lr": 0.5, "seed": 9, "steps": 99},
            kept("lr, seed"),
        ),
        (
            {"notation": "5H-12V"},
            kept("notation"),
        ),
        (
            {"temperature": "1:1/2:9"},
            kept("temperature"),
        ),
    ],
)
def test_another_recipe_is_refused_and_the_run_stays_as_it_was(
    wishes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    trained(tmp_path, stop=13)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        trained(tmp_path, **wishes)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert trained(tmp_path).finished


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_learning_rate_that_falls_keeps_its_steps(schedule: str, tmp_path: Path) -> None:
    trained(tmp_path, stop=13, lr_schedule=schedule)
    sentence = "steps must stay 30, as the schedule of lr may depend on them, got 40"
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        trained(tmp_path, lr_schedule=schedule, steps=40)


def test_a_recipe_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, stop=3)
    path = tmp_path / "recipe.toml"
    path.write_text(path.read_text().replace("batch = 16", "batch = 17"))
    for act in (lambda: train(load_recipe(tmp_path), tmp_path, data=data()), lambda: restored(tmp_path)):
        with pytest.raises(
            ValueError,
            match=f"^{kept('batch')}$",
        ):
            act()


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        sentence = f"run must be the folder of a run, got {str(folder)!r}, which has no recipe.toml"
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            load_recipe(folder)


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"notation": "4H-13V"}, "base_rate must have shape"),
        ({"notation": "30H-12V", "estimator": "exact"}, "^a graph must have at most "),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    wishes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, RuntimeError), match=sentence):
        trained(tmp_path / "run", **wishes)
    assert not list(tmp_path.iterdir())


# What goes wrong


def test_a_folder_in_use_by_another_process_is_refused(tmp_path: Path) -> None:
    program = (
        "import fcntl, sys; lock = open(sys.argv[1], 'w'); fcntl.flock(lock, fcntl.LOCK_EX); "
        "print('held', flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        sentence = f"{str(tmp_path)!r} is in use by another process: wait for it, or choose another folder"
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            trained(tmp_path)
        assert not (tmp_path / "recipe.toml").exists()
        holder.kill()
    assert trained(tmp_path).finished


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before_and_a_word(tmp_path: Path) -> None:
    straight = trained(tmp_path / "straight")
    for stop in (13, 8):
        trained(tmp_path / "damaged", stop=stop)
    (tmp_path / "damaged" / "checkpoint-000000021.safetensors").write_bytes(b"")
    assert restored(tmp_path / "damaged")[0].step == 13
    assert restored(tmp_path / "damaged")[2] == ("the checkpoint of step 21 is damaged",)
    notes: list[str] = []
    steps: list[int] = []
    callbacks = Callbacks(step=steps.append, note=notes.append)
    run = train(recipe(), tmp_path / "damaged", data=data(), callbacks=callbacks)
    assert notes == ["the checkpoint of step 21 is damaged; going on from step 13"]
    assert steps == list(range(14, 31))
    assert_alike(run, straight)
    assert_same(tensors(tmp_path / "damaged"), tensors(tmp_path / "straight"))


def test_a_run_is_stopped_while_it_validates_only_after_the_next_step(tmp_path: Path) -> None:
    run = trained(tmp_path, stop=20, validate=20)
    assert (run.step, run.best is not None, timeless(run)[-1].step) == (20, True, 20)
    assert isinstance(run, Run)
    assert replace(run, rows=()).stale == 0


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="Permission denied"):
        trained(tmp_path)
    tmp_path.chmod(0o700)
