"""A study of tasks selects on the validation set, keeps what is finished, and repeats itself."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import concretely as c
from concretely.experiment import task_study
from concretely.experiment.task import TASKS, Gates, Task
from concretely.experiment.task_study import Score, TaskRun, TaskStudy, read_study, study_tasks


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the gates have few states."""
    monkeypatch.setitem(TASKS, "gate", replace(TASKS["gate"], build=lambda: Gates(blocks=2, width=2)))


ONE = {"tasks": ["gate"], "estimators": ["rloo", "exact"], "steps": 5}


def without_seconds(study: TaskStudy) -> list[TaskRun]:
    return [replace(run, seconds=0.0) for run in study.runs]


def test_a_seed_repeats_itself_and_another_differs() -> None:
    first, again = (without_seconds(study_tasks(**ONE, seeds=[0, 1])) for _ in range(2))
    assert first == again
    assert [(run.estimator, run.seed) for run in first] == [("rloo", 0), ("rloo", 1), ("exact", 0), ("exact", 1)]
    assert len({run.test for run in first}) == 4


def test_an_estimator_that_suits_one_task_only_is_left_out_of_the_others_with_a_note() -> None:
    notes = list[str]()
    study = study_tasks(["gate", "prediction"], estimators=["exact"], seeds=[0], steps=1, note=notes.append)
    assert [run.task for run in study.runs] == ["gate"]
    assert notes[0] == "estimator 'exact' does not suit task 'prediction' and is left out"


def test_a_study_that_was_stopped_goes_on_from_its_record(tmp_path: Path) -> None:
    record, notes, steps = tmp_path / "tasks.json", list[str](), iter(range(8))
    with pytest.raises(KeyboardInterrupt):
        study_tasks(**ONE, seeds=[0], record=record, stop=lambda: next(steps) == 7, note=notes.append)
    assert [run.estimator for run in read_study(record).runs] == ["rloo"]
    study = study_tasks(**ONE, seeds=[0], record=record, note=notes.append)
    assert without_seconds(study) == without_seconds(study_tasks(**ONE, seeds=[0]))
    assert [note.partition(": ")[0] for note in notes] == ["gate, rloo, seed 0", "gate, exact, seed 0"]
    assert read_study(record) == study


def test_a_record_has_what_a_number_in_the_documentation_needs(tmp_path: Path) -> None:
    record = tmp_path / "tasks.json"
    study = study_tasks(**ONE, seeds=[3, 4], record=record)
    content = json.loads(record.read_text())
    assert {"recipe", "commit", "versions", "device", "seed", "summary", "results", "checksum"} == set(content)
    assert content["seed"] == [3, 4]
    assert content["recipe"]["tasks"] == {"gate": TASKS["gate"].description}
    for row in content["summary"]:
        score = study.score(row["task"], row["estimator"])
        assert (row["test"], row["standard_error"], row["seeds"]) == score


def test_a_record_of_another_study_is_left_alone(tmp_path: Path) -> None:
    record = tmp_path / "tasks.json"
    study_tasks(**ONE, seeds=[0], record=record)
    before = record.read_text()
    message = rf"the record {record} must be of the same study, got other settings: move it, or name another folder"
    with pytest.raises(ValueError, match=f"^{message}$"):
        study_tasks(**{**ONE, "steps": 6}, seeds=[0], record=record)
    assert record.read_text() == before
    for text, sentence in (("{", "a record must be JSON"), ("{}", "the record of a study must have its runs")):
        record.write_text(text)
        with pytest.raises(ValueError, match=sentence):
            study_tasks(**ONE, seeds=[0], record=record)


class Walk(nn.Module):
    """A program whose parameter moves by steps of the optimizer, whatever is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(()))

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        """Return a cost that falls with the place."""
        draw("b", c.Bernoulli(logits=0 * x))
        return -self.place.expand(len(x) * 4)


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Make a task of a walk, in which the best validation is near a place; return the splits that were scored."""

    def arrange(build: Callable[[], nn.Module], best: float) -> list[str]:
        scored, splits = list[str](), {"train": 0.0, "valid": 1.0, "test": 2.0}

        def score(program: Walk, x: Tensor, **options: object) -> Tensor:
            scored.append({value: split for split, value in splits.items()}[x[0].item()])
            return (program.place.detach() - best).abs().expand(len(x)).double()

        task = Task("a walk", build, lambda split: (torch.full((64,), splits[split]),), score, ("rloo",), 20)
        monkeypatch.setitem(TASKS, "walk", task)
        return scored

    return arrange


def test_parameters_are_selected_on_validation_and_the_test_set_is_scored_once(
    walked: Callable[..., list[str]],
) -> None:
    scored = walked(Walk, 8 * task_study.LR)
    (run,) = study_tasks(["walk"], seeds=[0]).runs
    assert (run.steps, run.step) == (20, 8)
    assert scored == ["valid"] * 10 + ["test"]
    assert run.test == pytest.approx(0, abs=1e-3)


class Leap(Walk):
    """A program whose cost is infinite from the first step on."""

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        """Return a cost that is not finite."""
        return super().forward(draw, x) / 0


def test_a_run_that_diverges_has_no_score(walked: Callable[..., list[str]]) -> None:
    scored = walked(Leap, 0.0)
    study = study_tasks(["walk"], seeds=[0])
    assert [(run.step, run.valid, run.test) for run in study.runs] == [(0, None, None)]
    assert scored == []
    assert study.score("walk", "rloo") == Score(math.inf, None, 1)


def test_a_score_is_the_mean_over_seeds_with_its_standard_error() -> None:
    runs = [TaskRun("gate", name, seed, 5, 5, 0.0, test, 1.0) for name, seed, test in (
        ("rloo", 0, 1.0), ("rloo", 1, 3.0), ("exact", 0, 1.5), ("nvil", 0, None), ("nvil", 1, 1.0),
    )]  # fmt: skip
    study = TaskStudy(runs)
    assert study.score("gate", "rloo") == Score(2.0, 1.0, 2)
    assert study.score("gate", "exact") == Score(1.5, None, 1)
    assert study.score("gate", "nvil") == Score(math.inf, None, 2)
    assert study.score("rnn", "rloo") is None
    assert (study.tasks, study.best("gate")) == (["gate"], "exact")
    assert study.estimators == ["rloo", "nvil", "exact"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ["gates"]}, "unknown task 'gates'; did you mean 'gate'?"),
        ({"estimators": ["rlo"]}, "unknown estimator 'rlo'; did you mean 'rloo'?"),
        ({"steps": 0}, "steps must be a positive whole number, got 0"),
        ({"tasks": ["gate"], "estimators": ["vimco"]}, "estimators must suit one of the tasks, got vimco for gate"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 (compared below)
        study_tasks(**options)  # type: ignore[arg-type]
    assert str(raised.value) == message
