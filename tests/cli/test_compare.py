"""Runs are compared by what their records say."""

import json
from pathlib import Path

import pytest

from concretely.experiment.record import read_record, write_record

from .command import call, modules_after

pytestmark = pytest.mark.usefixtures("unpictured")


@pytest.fixture
def scored(run: Path) -> Path:
    """A run with a record."""
    assert call("evaluate", str(run), "--samples", "100")[0] == 0
    return run


def test_a_run_stands_below_independent_pixels_with_the_numbers_of_its_record(scored: Path) -> None:
    code, stdout, stderr = call("compare", str(scored))
    assert (code, stderr) == (0, "")
    metrics = json.loads((scored / "record.json").read_text())["metrics"]
    head, pixels, model = (line.split() for line in stdout.splitlines())
    assert head[:2] == ["model", "data"]
    assert pixels[:3] == ["independent", "pixels", "digits"]
    assert model[:4] == ["6H-64V", "digits", "concrete", "1"]
    for line, name in ((pixels, "test_factorised_nll"), (model, "test_nll")):
        written = f"{metrics[name]['value']:.2f} ± {metrics[name]['standard_error']:.2f}"
        assert written in " ".join(line)


def test_what_is_the_same_for_several_runs_is_said_once(scored: Path) -> None:
    _, stdout, _ = call("compare", str(scored), str(scored))
    table, _, sentence = stdout.strip().rpartition("\n")
    assert table.count("independent pixels") == 1
    assert table.count("6H-64V") == 2
    assert sentence.startswith(f"best: 6H-64V, concrete, m = 1, member {scored}, test NLL ")
    assert "; next +0.00, independent pixels " in sentence


def test_the_best_of_members_that_differ_in_their_seeds_alone_is_named(scored: Path) -> None:
    record = read_record(scored / "record.json")
    worse = scored.with_name("worse")
    worse.mkdir()
    record["metrics"]["test_nll"]["value"] += 1
    write_record(worse / "record.json", record)
    sentence = call("compare", str(worse), str(scored))[1].splitlines()[-1]
    assert sentence.startswith("best: 6H-64V, concrete, m = 1, member run, test NLL ")


def test_none_is_the_best_of_runs_with_different_data(scored: Path) -> None:
    record = read_record(scored / "record.json")
    other = scored.with_name("other")
    other.mkdir()
    write_record(other / "record.json", {**record, "data": "0" * 64})
    said = call("compare", str(scored), str(other))[1].splitlines()
    assert "the runs have different data, so their scores cannot be compared" in said
    assert not any(line.startswith("best: ") for line in said)


def test_runs_that_more_samples_would_improve_are_named(scored: Path) -> None:
    record = read_record(scored / "record.json")
    assert record["metrics"]["test_nll"]["effective_sample_size"] > 10
    loose = scored.with_name("loose")
    loose.mkdir()
    record["metrics"]["test_nll"]["effective_sample_size"] = 9.9
    write_record(loose / "record.json", record)
    sentence = "the NLL of loose would fall with more samples: the mean effective sample size is below 10"
    assert call("compare", str(scored), str(loose))[1].splitlines()[-1] == sentence
    assert call("compare", str(loose))[1].splitlines()[-1] == sentence


def test_a_survey_is_told(scored: Path) -> None:
    record = read_record(scored / "record.json")
    record["metrics"]["test_nll"]["full_points"] = 40
    write_record(scored / "record.json", record)
    assert " 100 for 40 points " in call("compare", str(scored))[1]


def test_folders_without_the_score_are_refused(scored: Path, tmp_path: Path) -> None:
    must = "run must be the folder of a run that has been scored"
    nothing = str(tmp_path / "nothing")
    assert call("compare", nothing) == (2, "", f"{must}, got {nothing!r}, which has no record.json\n")
    runs = scored.parent
    sentence = f"{must}, got {str(runs)!r}, which holds runs: name them, as in {runs}/*\n"
    assert call("compare", str(runs)) == (2, "", sentence)
    sentence = f"'{scored}' has not been scored on 'train'; score it with: concretely evaluate {scored} --split train\n"
    assert call("compare", str(scored), "--split", "train") == (2, "", sentence)
    assert call("compare", str(scored), "--split", "tets") == (2, "", "unknown split 'tets'; did you mean 'test'?\n")
    (scored / "record.json").write_text("{")
    code, stdout, stderr = call("compare", str(scored))
    assert (code, stdout) == (2, "")
    assert stderr.startswith("a record must be JSON, got a damaged file")
    (scored / "record.json").unlink()
    todo = f"got {str(scored)!r}, which has no record.json: score it with: concretely evaluate {scored}\n"
    assert call("compare", str(scored)) == (2, "", f"{must}, {todo}")


def test_comparing_needs_no_torch(scored: Path) -> None:
    assert not {"torch", "numpy", "matplotlib"} & modules_after(("compare", str(scored)))
