"""All records of a cell are kept, the best is selected on the validation set, and other runs are left out."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from concretely.experiment import paper
from concretely.experiment.history import collect_records, read_history
from concretely.experiment.paper import Experiment, load_experiment
from concretely.experiment.plan import SMOKE_POINTS
from concretely.experiment.record import read_checked, recipe_settings, write_record
from concretely.training.recipe import resolve

from .archived import TITLES, leave, made


def test_a_run_becomes_the_record_of_its_cell_once(table: Experiment, tmp_path: Path) -> None:
    leave(tmp_path / "runs", table.cells[0], 106.0)
    for number in (1, 0):
        assert collect_records(table, tmp_path / "runs", tmp_path / "records") == (number, [])
    content = read_checked(tmp_path / "records/table-1.json", remedy="")
    record = made(table.cells[0], 106.0)
    assert content == {"experiment": "table-1", "cells": {TITLES[0]: {"best": record, "history": [record]}}}
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["table-1.json"]


def test_cells_are_in_the_order_of_the_table(table: Experiment, tmp_path: Path) -> None:
    for place in (1, 0):
        leave(tmp_path / str(place), table.cells[place], 106.0)
        collect_records(table, tmp_path / str(place), tmp_path / "records")
    assert list(read_history(table, tmp_path / "records")) == TITLES[:2]


def test_without_runs_nothing_is_written(table: Experiment, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert collect_records(table, tmp_path / "runs", tmp_path / "records") == (0, [])
    assert collect_records(table, tmp_path / "nowhere", tmp_path / "records") == (0, [])
    assert not (tmp_path / "records").exists()


OTHER = made(load_experiment("table-1").cells[0], 100.0)
SCORE = {"value": 100.0, "standard_error": 0.2, "samples": 50_000, "points": 10_000}
WARMER, WHOLE = (
    resolve(notation="200H-784V", data="mnist", steps=30_000, **changed)
    for changed in ({"prior_temperature": 5.0}, {"train_on": "whole"})
)
LOOK = {"value": 93.0, "samples": 10}
"""A look at the validation set while a run was trained."""


@pytest.mark.parametrize(
    ("runs", "best"),
    [
        ([{"test": 90.0, "valid": 95.0}, {"test": 99.0, "valid": 94.0}], 1),  # by validation, whatever the test says
        ([{"test": 99.0, "valid": 94.0}, {"test": 90.0, "valid": 95.0}], 0),
        ([{"test": 99.0, "valid": 94.0}, {"test": 90.0, "valid": 94.0}], 1),
        ([{"test": 90.0}, {"test": 99.0}], 1),  # the last, never the better on the test set
        ([{"test": 99.0, "valid": 94.0}, {"test": 90.0}], 0),
        ([{"test": 90.0}, {"test": 99.0, "valid": 94.0}], 1),
        ([{"test": 99.0, "valid": 94.0}, {"test": 90.0, "valid": None}], 0),
        ([{"test": 99.0, "valid": 94.0}, {"test": 90.0}, {"test": 91.0, "valid": 95.0}], 0),
        ([{"test": 99.0, "valid": 94.0}, {"test": 90.0, "look": LOOK}], 0),  # by few samples it is another number
        ([{"test": 90.0, "look": LOOK}, {"test": 99.0, "look": {"value": 92.0, "samples": 10}}], 1),
        ([{"test": 99.0, "valid": 94.0, "look": LOOK}, {"test": 90.0, "valid": 95.0}], 0),
        ([{"test": 99.0, "look": {"value": 89.0, "samples": 60_000}, "valid": 96.0}, {"test": 90.0, "valid": 94.0}], 0),
    ],
)
def test_the_best_is_by_validation_or_the_last_and_all_are_kept(
    runs: list[dict[str, Any]], best: int, table: Experiment, tmp_path: Path
) -> None:
    records = []
    for number, wished in enumerate(runs):
        look = {"valid": wished["look"]} if "look" in wished else {}
        record = made(table.cells[0], **{key: value for key, value in wished.items() if key != "look"}) | look
        records.append(record | {"seconds": float(number)})
        write_record(tmp_path / str(number) / TITLES[0] / "record.json", records[-1])
        assert collect_records(table, tmp_path / str(number), tmp_path / "records") == (1, [])
    found = read_history(table, tmp_path / "records")[TITLES[0]]
    assert found.history == records
    assert found.best == found.history[best]


def test_a_run_that_is_scored_again_is_one_run_with_the_better_of_its_scores(table: Experiment, tmp_path: Path) -> None:
    first, second = made(table.cells[0], 100.0), made(table.cells[0], 99.0, valid=95.0)
    second["metrics"]["test_nll"] |= {"samples": 60_000}
    second["metrics"]["train_nll"] |= {"full_points": 5_000}
    second["metrics"]["valid_nll"] |= {"seconds": 1.0}
    third = made(table.cells[0], 99.0, valid=95.0)  # a copy that was scored as well, in another time
    first["valid"] = LOOK
    for runs, record, new in (("one", first, 1), ("two", second, 1), ("three", third, 0), ("one", first, 0)):
        write_record(tmp_path / runs / TITLES[0] / "record.json", record)
        assert collect_records(table, tmp_path / runs, tmp_path / "records") == (new, [])
    best, history = read_history(table, tmp_path / "records")[TITLES[0]]
    assert history == [best]
    assert best["metrics"] == {**second["metrics"], "train_nll": first["metrics"]["train_nll"]}
    assert best["valid"] == LOOK


@pytest.mark.parametrize(
    "other", [{"commit": {"hash": "4567def", "dirty": False}}, {"data": "fedcba"}, {"seconds": 1.0}, {"step": 29_000}]
)
def test_what_was_trained_otherwise_is_another_run(other: dict[str, Any], table: Experiment, tmp_path: Path) -> None:
    for runs, changed in (("one", {}), ("two", other)):
        leave(tmp_path / runs, table.cells[0], 100.0, finished=True, **changed)
        collect_records(table, tmp_path / runs, tmp_path / "records")
    assert len(read_history(table, tmp_path / "records")[TITLES[0]].history) == 2


def test_numbers_that_are_not_finite_are_not_known(table: Experiment, tmp_path: Path) -> None:
    odd = {**made(table.cells[0], 99.0), "valid": {"value": -math.inf, "samples": 10}}
    write_record(tmp_path / "runs" / "odd" / "record.json", odd)
    leave(tmp_path / "runs", table.cells[0], 100.0, seconds=1.0)
    assert collect_records(table, tmp_path / "runs", tmp_path / "records") == (2, [])
    assert collect_records(table, tmp_path / "runs", tmp_path / "records") == (0, [])


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        (
            {"metrics": {"test_nll": {**SCORE, "samples": 100}}},
            "it must be scored with 50,000 samples on test, got 100",
        ),
        ({"metrics": {"test_nll": {**SCORE, "points": SMOKE_POINTS}}}, "it is a smoke test, scored on 128 points"),
        ({"step": 100}, "it is not finished"),
        ({"step": 100, "finished": False}, "it is not finished"),
        ({"finished": False}, "it is not finished"),
        ({"step": None, "finished": True}, "step of a record must be a whole number, got None"),
        ({"seconds": None}, "seconds of a record must be a number, got None"),
        ({"metrics": None}, "metrics of a record must be a JSON object, got None"),
        ({"device": "x"}, "device of a record must hold text and integers, got 'x'"),
        ({"metrics": {"test_nll": 3.0}}, "test_nll of a record must be a metric, got 3.0"),
        ({"metrics": {"test_nll": {**SCORE, "value": "x"}}}, "test_nll of a record must be a metric, got {"),
        ({"metrics": {"test_nll": {**SCORE, "samples": None}}}, "test_nll of a record must be a metric, got {"),
        ({"look": "x"}, "valid of a record must be a metric, got 'x'"),
        ({"device": {"gpu": [3]}}, "device of a record must hold text and integers, got {'gpu': [3]}"),
        ({"metrics": {"test_nll": {**SCORE, "value": None}}}, "its likelihood on test is not finite"),
        ({"metrics": {}}, "it is not scored on test"),
        ({"metrics": {"test_nll": SCORE}}, "it is not scored on train"),
        ({"metrics": {"test_nll": {**SCORE, "standard_error": None}}}, "its likelihood on test is not finite"),
        (
            {"recipe": recipe_settings(resolve(notation="9H-784V", data="mnist", steps=30_000))},
            "table-1 has no cell",
        ),
        (
            {"recipe": {"notation": "9H-784", "data": "mnist", "estimator": "nvil", "samples": 1, "steps": 30_000}},
            "recipe of the record PATH must be valid, got another: notation must have H or V after the units",
        ),
        ({"recipe": recipe_settings(WARMER)}, "prior_temperature must be 0.5, got 5.0"),
        ({"recipe": recipe_settings(WHOLE)}, "train_on must be 'train', got 'whole'"),
    ],
)
def test_what_is_no_number_of_the_table_is_refused_in_a_sentence(
    others: dict[str, Any], sentence: str, table: Experiment, tmp_path: Path
) -> None:
    record = made(table.cells[0], 100.0) | others
    record |= {"valid": record.pop("look")} if "look" in record else {}
    write_record(tmp_path / TITLES[0] / "record.json", record)
    leave(tmp_path, table.cells[1], 104.0)
    number, (refused,) = collect_records(table, tmp_path, tmp_path / "records")
    assert number == 1
    sentence = sentence.replace("PATH", repr(str(tmp_path / TITLES[0] / "record.json")))
    assert refused.startswith(f"{tmp_path / TITLES[0]} is left out: {sentence}")
    assert list(read_history(table, tmp_path / "records")) == [TITLES[1]]


def test_data_of_the_same_name_in_a_file_are_not_those_of_the_cell(table: Experiment, tmp_path: Path) -> None:
    settings = {**recipe_settings(table.cells[0].recipe), "data": "mnist.npz"}
    leave(tmp_path, table.cells[0], 100.0, recipe=settings)
    assert collect_records(table, tmp_path, tmp_path / "records")[1] == [
        f"{tmp_path / TITLES[0]} is left out: data must be 'mnist', got 'mnist.npz'"
    ]


def test_records_stay_whole_where_writing_fails(
    table: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path / "runs", table.cells[0], 106.0)
    collect_records(table, tmp_path / "runs", tmp_path / "records")
    before = (tmp_path / "records/table-1.json").read_bytes()
    leave(tmp_path / "runs", table.cells[1], 104.0)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="no room"):
            collect_records(table, tmp_path / "runs", tmp_path / "records")
    assert (tmp_path / "records/table-1.json").read_bytes() == before
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["table-1.json"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({}, "records must be those of an experiment, got others"),
        ({"cells": []}, "records must be those of an experiment, got others"),
        ({"cells": {"a": {"best": {}}}}, "records must be those of an experiment, got others"),
        ({"cells": {"a": {"best": {}, "history": []}}}, "records must be of cells of table-1, got 'a'"),
        ({"cells": {TITLES[0]: {"best": {}, "history": []}}}, "records must have the best of a cell's history, got"),
        ({"cells": {TITLES[0]: {"best": {}, "history": 3}}}, "records must be those of an experiment, got others"),
        ({"cells": {TITLES[0]: {"best": {}, "history": [{}]}}}, "a record must have recipe, commit, versions, device"),
        ({"cells": {TITLES[1]: {"best": OTHER, "history": [OTHER]}}}, "records must stand under the title of their"),
    ],
)
def test_other_records_are_refused(content: Any, sentence: str, table: Experiment, tmp_path: Path) -> None:
    write_record(tmp_path / "table-1.json", content)
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        read_history(table, tmp_path)


def test_changed_records_are_refused_with_the_way_on(table: Experiment, tmp_path: Path) -> None:
    leave(tmp_path / "runs", table.cells[0], 106.0)
    collect_records(table, tmp_path / "runs", tmp_path / "records")
    path = tmp_path / "records" / "table-1.json"
    path.write_text(path.read_text().replace("106.0", "105.0"))
    way_on = "restore it, or delete it and collect the runs again with concretely reproduce --report"
    sentence = f"a record must be as it was written, got changes since then in {str(path)!r}: {way_on}"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        read_history(table, tmp_path / "records")


def test_another_than_the_best_is_not_taken_for_it(table: Experiment, tmp_path: Path) -> None:
    records = [made(table.cells[0], 99.0, valid=94.0), made(table.cells[0], 90.0, valid=95.0)]
    write_record(tmp_path / "table-1.json", {"cells": {TITLES[0]: {"best": records[1], "history": records}}})
    with pytest.raises(ValueError, match="records must have the best of a cell's history, got another for 200H-784V"):
        read_history(table, tmp_path)


def test_a_folder_in_the_place_of_a_record_stops_no_other(table: Experiment, tmp_path: Path) -> None:
    (tmp_path / "runs" / "odd" / "record.json").mkdir(parents=True)
    leave(tmp_path / "runs", table.cells[0], 106.0)
    number, (sentence,) = collect_records(table, tmp_path / "runs", tmp_path / "records")
    assert (number, "odd is left out: " in sentence) == (1, True)


def test_an_estimator_that_validates_is_finished_where_its_record_says_so(table: Experiment, tmp_path: Path) -> None:
    leave(tmp_path / "runs", table.cells[1], 104.0, step=600)
    assert collect_records(table, tmp_path / "runs", tmp_path / "records")[1][0].endswith("it is not finished")
    leave(tmp_path / "runs", table.cells[1], 104.0, step=600, finished=True)
    assert collect_records(table, tmp_path / "runs", tmp_path / "records") == (1, [])


def test_temperatures_are_taken_with_both_objectives(tmp_path: Path) -> None:
    warm = load_experiment("temperature", steps=20)
    leave(tmp_path / "runs", warm.cells[0], 60.0, samples=1)
    _, (sentence,) = collect_records(warm, tmp_path / "runs", tmp_path / "records")
    assert sentence.endswith("is left out: its relaxed graph is not scored on test")
    leave(tmp_path / "runs", warm.cells[0], 60.0, samples=1, relaxed=None)
    _, (sentence,) = collect_records(warm, tmp_path / "runs", tmp_path / "records")
    assert sentence.endswith("is left out: the objective of its relaxed graph on test is not finite")
    leave(tmp_path / "runs", warm.cells[0], 60.0, samples=100, relaxed=59.0)
    _, (sentence,) = collect_records(warm, tmp_path / "runs", tmp_path / "records")
    assert sentence.endswith("its discrete graph must be scored with exactly 1 sample on test, got 100")


def test_the_control_may_have_other_temperatures_of_its_prior(tmp_path: Path) -> None:
    control = load_experiment("logistic-normal", steps=20)
    settings = {**recipe_settings(control.cells[0].recipe), "prior_temperature": 0.7}
    leave(tmp_path / "runs", control.cells[0], 90.0, recipe=settings)
    assert collect_records(control, tmp_path / "runs", tmp_path / "records") == (1, [])


def test_candidates_that_have_lost_are_passed_over(table: Experiment, tmp_path: Path) -> None:
    lost = made(table.cells[0], 106.0, valid=107.0)
    del lost["metrics"]["test_nll"], lost["metrics"]["train_nll"]
    write_record(tmp_path / "runs" / "lost" / "record.json", lost)
    assert collect_records(table, tmp_path / "runs", tmp_path / "records") == (0, [])


def test_an_unfinished_or_better_run_is_told_by_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from concretely.data import load_data
    from concretely.experiment.scoring import add_scores, score_split
    from concretely.training.folder import restored
    from concretely.training.loop import train

    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe/tiny.toml").write_text(
        'title = "t"\nplace = "p"\nscore_samples = 2\n[columns]\nsplit = ["test"]\n[recipe]\nsteps = 6\nvalidate = 3\n'
        '[[row]]\nname = "r"\nnotation = "4H-64V"\nnll = [[1, 30.0]]\n'
    )
    monkeypatch.setattr(paper, "FOLDER", tmp_path / "recipe")
    tiny, data = load_experiment("tiny"), load_data("digits")
    (cell,) = tiny.cells
    folder = tmp_path / "runs" / cell.title
    stops = iter([False, False, True])
    train(cell.recipe, folder, data=data, stop=lambda: next(stops, True))
    for refused in (1, 0):
        run, model, _ = restored(folder)
        score = score_split(run.recipe, model, data, split="test", samples=2)
        add_scores(folder, run, model, data=data, scores={"test": score})
        sentences = [f"{folder} is left out: it is not finished"] * refused
        assert collect_records(tiny, tmp_path / "runs", tmp_path / "records")[1] == sentences
        train(cell.recipe, folder, data=data)
        if refused:
            (sentence,) = collect_records(tiny, tmp_path / "runs", tmp_path / "records")[1]
            assert sentence == f"{folder} is left out: it has not been scored since its last training step"
    run = restored(folder)[0]
    assert run.best is not None
    best = read_history(tiny, tmp_path / "records")[cell.title].best
    assert best["valid"] == {"value": run.best[1], "samples": 10}
    assert (best["seconds"], best["finished"]) == (run.seconds, True)
