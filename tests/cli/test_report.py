"""`reproduce --report` is of all that is finished, wherever it was made."""

import shlex
from pathlib import Path

import pytest

from concretely.experiment import paper
from concretely.experiment.record import read_record

from .command import call

pytestmark = pytest.mark.usefixtures("tables", "unpictured")


def test_a_folder_of_runs_is_the_same_for_training_and_for_the_report() -> None:
    code, _, stderr = call("reproduce", "tiny", "--rows", "nonlinear", "--out", "my runs")
    assert code == 0, stderr
    assert not Path("out").exists()
    code, stdout, stderr = call("reproduce", "--report", "--out", "my runs")
    assert (code, stdout.splitlines()[-1], stderr) == (0, "1 of 7 cells", "")


def test_a_temperature_that_is_made_by_the_commands_of_the_report_is_a_cell() -> None:
    code, stdout, stderr = call("reproduce", "warm", "--dry-run")
    assert code == 0, stderr
    for line in stdout.splitlines():
        command = shlex.split(line)[1:]
        assert call(*command)[0] == 0
        folder = command[command.index("--out") + 1]
        call("evaluate", folder, "--split", "train", "--samples", "1")
        assert "its relaxed graph is not scored on test" in call("reproduce", "--report")[2]
        for split in paper.SPLITS:
            call("evaluate", folder, "--split", split, "--samples", "1", "--relaxed")
    code, stdout, stderr = call("reproduce", "--report")
    assert (code, stdout.splitlines()[-1], stderr) == (0, "2 of 7 cells", "")


def test_the_report_is_of_what_is_finished_and_keeps_what_it_had() -> None:
    call("reproduce", "tiny", "--rows", "nonlinear", "--smoke")
    assert call("reproduce", "--report")[0] == 2
    assert not Path("reproduction").exists()
    call("reproduce", "tiny", "--rows", "nonlinear")
    call("reproduce", "tiny", "--rows", "linear", "--samples", "1", "--score-samples", "3")
    code, stdout, stderr = call("reproduce", "--report")
    assert (code, stdout.splitlines()) == (0, ["reproduction/README.md", "reproduction/index.html", "1 of 7 cells"])
    assert len(stderr.splitlines()) == 2
    assert all("it must be scored with 20 samples on test, got 3" in line for line in stderr.splitlines())
    (record,) = Path("out/reproduce/tiny").glob("6H~64V-*/record.json")
    nll = read_record(record)["metrics"]["test_nll"]
    text = Path("reproduction/README.md").read_text()
    assert f"| {nll['value']:.2f} ± {nll['standard_error']:.2f} | 26.1 |" in text
    assert "concretely train '6H~64V'" in text or "concretely train 6H~64V" in text
    code, stdout, stderr = call("reproduce", "--report", "--out", "nowhere")
    assert (code, stdout.splitlines()[-1], stderr) == (0, "1 of 7 cells", "")
    assert Path("reproduction/README.md").read_text() == text
