"""Of several candidates for a cell, the best on the validation set fills it."""

from pathlib import Path

import numpy as np
import pytest

from concretely.experiment.record import read_record

from .command import call, change, lines

pytestmark = pytest.mark.usefixtures("tables", "unpictured")


def test_a_grid_is_trained_as_one_program_and_the_best_on_the_validation_set_is_taken(trained: list[Path]) -> None:
    grid = ("reproduce", "tiny", "--rows", "nonlinear", "--lr", "1e-6,1e-2,1e-5", "--weight-decay", "0,1e-3")
    code, stdout, stderr = call(*grid)
    assert code == 0, stderr
    assert "6 members of 6H~64V as one program" in stderr
    title = "6H~64V-digits-concrete-m1-seed0-t0.666667"
    assert [folder.name for folder in trained] == [
        f"{title},lr={lr},weight_decay={decay}" for lr in ("1e-06", "0.01", "1e-05") for decay in (0, 0.001)
    ]
    records = {path.parent.name: read_record(path)["metrics"] for path in Path().rglob("record.json")}
    assert sorted(records) == sorted(folder.name for folder in trained)
    assert all(metrics["valid_nll"]["samples"] == 20 for metrics in records.values())
    best = min(records, key=lambda name: records[name]["valid_nll"]["value"])
    assert "lr=0.01" in best
    assert [name for name, metrics in records.items() if "test_nll" in metrics] == [best]
    assert [path.parent.name for path in Path().rglob("report.html")] == [best]  # the others are only compared
    (line,) = lines(stdout)
    assert float(line[1]) == pytest.approx(records[best]["test_nll"]["value"], abs=0.05)
    assert f"{best} is the best of 6 for {title} on the validation set" in stdout
    assert call(*grid)[:2] == (0, stdout)
    assert len(trained) == 6
    call("reproduce", "tiny", "--rows", "nonlinear", "--lr", "1e-2,1e-3")
    assert [folder.name for folder in trained[6:]] == [f"{title},lr=0.001,weight_decay=0"]  # the other is there


def test_a_grid_of_which_some_diverge_has_the_best_of_the_others(trained: list[Path]) -> None:
    grid = ("reproduce", "tiny", "--rows", "nonlinear", "--lr", "1e30,1e-2", "--steps", "30")
    code, stdout, _ = call(*grid)
    assert code == 0
    assert [path.parent.name.partition(",")[2] for path in Path().rglob("diverged.txt")] == ["lr=1e+30,weight_decay=0"]
    assert float(lines(stdout)[0][1]) < 60
    assert "lr=0.01,weight_decay=0 is the best of 2 for" in stdout
    code, stdout, _ = call("reproduce", "tiny", "--rows", "nonlinear", "--lr", "1e30,2e30", "--steps", "30")
    assert (code, lines(stdout)[0][1]) == (0, "diverged")
    assert "is the best of" not in stdout
    assert len(trained) == 3  # that of 1e30 was known


def test_what_is_held_out_is_scored_where_it_is_not_trained_on(trained: list[Path]) -> None:
    call("reproduce", "tiny", "--rows", "nonlinear")
    (record,) = Path().rglob("record.json")
    assert read_record(record)["metrics"]["valid_nll"]["points"] == 250
    np.savez("some.npz", train=np.random.default_rng(0).random((300, 64)) < 0.3, test=np.eye(64, dtype=bool))
    change('data = "digits"', 'data = "some.npz"\ntrain_on = "whole"')
    change("validate = 5", "")
    call("reproduce", "tiny", "--rows", "nonlinear", "--out", "whole")
    (record,) = Path("whole").rglob("record.json")
    assert "valid_nll" not in read_record(record)["metrics"]
    assert call("reproduce", "tiny", "--rows", "nonlinear", "--lr", "1e-3,1e-2") == (
        2,
        "",
        "lr must have one value for 6H~64V-some-concrete-m1-seed0-t0.666667, as it has no validation set to select on: "
        "choose other cells by data, rows or estimator\n",
    )
