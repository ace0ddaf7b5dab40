"""The score is that of the library on the discrete graph, and it stays with the run."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from concretely.data import load_data
from concretely.evaluation import likelihood
from concretely.experiment import scoring
from concretely.experiment.scoring import relaxed_objective, score_split
from concretely.report import page
from concretely.training import checkpoint
from concretely.training.folder import restored
from concretely.training.loop import train
from concretely.training.recipe import resolve
from concretely.training.rng import Purpose, generator_of

from .command import call
from .conftest import STEPS

pytestmark = pytest.mark.usefixtures("unpictured")


def files(folder: Path) -> dict[str, bytes]:
    """What a folder holds."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_one_line_is_printed_and_the_bar_is_not_in_it(run: Path) -> None:
    code, stdout, stderr = call("evaluate", str(run), "--samples", "20")
    assert code == 0
    assert stdout.startswith("test NLL ")
    assert stdout.count("\n") == 1
    assert "20 samples" in stdout
    assert stderr.startswith("log-likelihood ")
    assert stderr.endswith(f"added to {run / 'report.html'}\n")


def test_a_report_that_keeps_a_score_from_more_samples_says_so(run: Path) -> None:
    for samples, end in (("30", "added to {}"), ("20", "{} keeps the score with 30 samples")):
        code, _, stderr = call("evaluate", str(run), "--samples", samples)
        assert (code, stderr.splitlines()[-1]) == (0, end.format(run / "report.html"))


def test_json_is_one_object_that_the_record_agrees_with(run: Path) -> None:
    code, stdout, _ = call("evaluate", str(run), "--samples", "20", "--split", "valid", "--json")
    assert code == 0
    found = json.loads(stdout)
    described = {"notation": "6H-64V", "data": "digits", "estimator": "concrete", "step": STEPS, "split": "valid"}
    numbers = ["nll", "standard_error", "samples", "points", "full_points", "effective_sample_size", "seconds"]
    assert list(found) == [*described, *numbers]
    assert {name: found[name] for name in described} == described
    assert (found["samples"], found["points"]) == (20, 250)
    metric = json.loads((run / "record.json").read_text())["metrics"]["valid_nll"]
    assert metric == {"value" if name == "nll" else name: found[name] for name in numbers}
    assert f"{found['nll']:.2f}" in (run / "report.html").read_text()


def test_a_loose_score_says_so_and_leaves_the_json_alone(run: Path) -> None:
    sentence = "The NLL would fall with more samples: the mean effective sample size is below 10."
    for samples, is_loose in (("5", True), ("100", False)):
        code, stdout, stderr = call("evaluate", str(run), "--samples", samples, "--json")
        assert (code, json.loads(stdout)["effective_sample_size"] < 10) == (0, is_loose)
        assert (sentence in stderr.splitlines()) == is_loose
        assert (sentence in (run / "report.html").read_text()) == is_loose
    assert call("evaluate", str(run), "--samples", "5")[1].endswith(f" s). {sentence}\n")


def test_some_points_may_have_all_samples_and_the_others_few(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "FEW", 3)
    code, stdout, _ = call("evaluate", str(run), "--samples", "20", "--full-points", "40")
    assert code == 0
    assert "(20 samples for 40 of 250 data points, " in stdout
    metric = json.loads((run / "record.json").read_text())["metrics"]["test_nll"]
    assert (metric["samples"], metric["points"], metric["full_points"]) == (20, 250, 40)


@pytest.fixture
def unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores stay out of the report, which takes its time."""
    monkeypatch.setattr(page, "write_report", lambda folder, *arguments: folder / page.FILE)
    monkeypatch.setattr(scoring, "add_scores", lambda *arguments, **options: {})


@pytest.mark.usefixtures("unreported")
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_the_score_is_that_of_the_library_from_the_seed_of_the_run(split: str, density: Path) -> None:
    run, model, _ = restored(density)
    found = score_split(run.recipe, model, load_data("digits"), split=split, samples=20)
    _, stdout, _ = call("evaluate", str(density), "--samples", "20", "--split", split, "--json")
    assert json.loads(stdout)["nll"] == found.nll


@pytest.mark.usefixtures("unreported")
def test_halves_of_the_data_are_given_to_a_model_with_a_context(prediction: Path) -> None:
    _, model, _ = restored(prediction)
    upper, lower = load_data("digits").test[:].split(32, dim=-1)
    generator = generator_of(0, Purpose.EVALUATION)
    found = likelihood.evaluate(model, upper, lower, samples=20, chunk=64, generator=generator)
    _, stdout, _ = call("evaluate", str(prediction), "--samples", "20", "--chunk", "64", "--json")
    assert json.loads(stdout)["nll"] == found.nll


@pytest.mark.parametrize(("kind", "samples"), [("density", 50_000), ("prediction", 100)])
def test_the_number_of_samples_is_the_papers_unless_it_is_given(
    kind: str, samples: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()

    def noted(*arguments: object, samples: int, **options: object) -> None:
        asked.append(samples)
        raise ValueError("enough")

    monkeypatch.setattr(scoring, "evaluate", noted)
    assert call("evaluate", str(request.getfixturevalue(kind))) == (2, "", "enough\n")
    assert asked == [samples]


@pytest.mark.usefixtures("unreported")
def test_a_standard_error_that_is_not_known_is_null(density: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood.Likelihood, "standard_error", math.inf)
    _, stdout, _ = call("evaluate", str(density), "--samples", "2", "--json")
    assert json.loads(stdout)["standard_error"] is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--split", "tset"], "unknown split 'tset'; did you mean 'test'?"),
        (["--split", "all"], "unknown split 'all'; choose from 'test', 'train', 'valid'"),
        (["--samples", "0"], "samples must be at least 1, got 0"),
        (["--full-points", "0"], "full-points must be at least 1, got 0"),
        (["--chunk", "-3"], "chunk must be at least 1, got -3"),
        (["--device", "abacus"], "device must be available to torch, such as 'cpu', got 'abacus'"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="the sentence names the best device")
def test_bad_options_get_one_sentence(options: list[str], sentence: str, density: Path) -> None:
    assert call("evaluate", str(density), *options) == (2, "", f"{sentence}\n")


def test_the_relaxed_graph_is_scored_by_the_objective_of_training(run: Path) -> None:
    code, stdout, stderr = call("evaluate", str(run), "--samples", "20", "--relaxed")
    assert code == 0
    assert "relaxed graph " in stderr
    metrics = json.loads((run / "record.json").read_text())["metrics"]
    found = metrics["test_relaxed"]
    assert (found["samples"], found["points"], metrics["test_nll"]["samples"]) == (1, 250, 20)
    shown = f"{found['value']:.2f} ± {found['standard_error']:.2f}"
    assert stdout.splitlines()[1] == f"test objective of the relaxed graph {shown} (m = 1)"
    assert "The objective of training; the NLL is that of the discrete graph" in (run / "report.html").read_text()
    past, model, _ = restored(run)
    assert relaxed_objective(past.recipe, model, load_data("digits"), split="test", samples=1, step=STEPS) == found
    _, stdout, _ = call("evaluate", str(run), "--samples", "20", "--relaxed", "--json", "--chunk", "5000")
    assert json.loads(stdout)["test_relaxed"] == found


def test_a_graph_that_was_not_relaxed_has_no_relaxed_score(tmp_path: Path) -> None:
    train(resolve(notation="6H-64V", estimator="vimco", steps=2), tmp_path / "run", data=load_data("digits"))
    sentence = "relaxed must be left out, as estimator 'vimco' trains the discrete graph\n"
    assert call("evaluate", str(tmp_path / "run"), "--relaxed") == (2, "", sentence)


@pytest.mark.parametrize("name", ["missing", "file"])
def test_what_is_no_run_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / name)
    sentence = f"run must be the folder of a run, got {path!r}, which has no recipe.toml\n"
    assert call("evaluate", path) == (2, "", sentence)


def test_a_run_without_a_whole_checkpoint_is_refused(run: Path) -> None:
    for path in run.glob("checkpoint-*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    code, stdout, stderr = call("evaluate", str(run))
    assert (code, stdout) == (2, "")
    assert (
        stderr
        == f"no checkpoint of {str(run)!r} can be read: the checkpoint of step {STEPS} is damaged; start a new run\n"
    )
    for path in run.glob("checkpoint-*"):
        path.unlink()
    sentence = f"run must have a checkpoint, got {str(run)!r}, which has none yet: train it first\n"
    assert call("evaluate", str(run)) == (2, "", sentence)


def test_a_damaged_checkpoint_gives_way_to_the_one_before_with_a_word(run: Path) -> None:
    last = checkpoint.latest(run)
    assert last is not None
    (path,) = run.glob("checkpoint-*.json")
    checkpoint.save(run, 20, last.tensors, {**last.state, "finished": False})
    path.write_bytes(b"")
    code, stdout, stderr = call("evaluate", str(run), "--samples", "2", "--json")
    assert (code, json.loads(stdout)["step"]) == (0, 20)
    assert stderr.splitlines()[:2] == [
        f"the checkpoint of step {STEPS} is damaged; using the one of step 20",
        f"the run is not finished; using its model after step 20 of {STEPS}",
    ]


def test_an_interruption_leaves_the_run_as_it_was(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    before = files(run)
    monkeypatch.setattr(likelihood, "_estimated", interrupted)
    code, stdout, _ = call("evaluate", str(run))
    assert (code, stdout) == (130, "")
    assert files(run) == before


def test_a_score_from_more_samples_stays_in_the_record(run: Path) -> None:
    for samples in ("20", "5"):
        call("evaluate", str(run), "--samples", samples)
    assert json.loads((run / "record.json").read_text())["metrics"]["test_nll"]["samples"] == 20


def test_a_damaged_record_is_put_aside_for_a_new_one(run: Path) -> None:
    (run / "record.json").write_text("{")
    code, stdout, stderr = call("evaluate", str(run), "--samples", "2")
    assert code == 0
    assert stdout.startswith("test NLL ")
    way = "it is kept as record.json.damaged, and a new one is made from the checkpoint"
    assert f"the record {str(run / 'record.json')!r} is damaged or was changed: {way}\n" in stderr
    assert (run / "record.json.damaged").read_text() == "{"
    assert json.loads((run / "record.json").read_text())["metrics"]["test_nll"]["samples"] == 2


def test_the_score_is_printed_even_if_it_cannot_be_kept(run: Path) -> None:
    (run / "report.html").mkdir()
    code, stdout, stderr = call("evaluate", str(run), "--samples", "2")
    assert code == 2
    assert stdout.startswith("test NLL ")
    assert "report.html" in stderr.splitlines()[-1]


def test_a_record_keeps_where_a_run_was_trained_wherever_it_is_scored(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("evaluate", str(run), "--samples", "2")
    before = json.loads((run / "record.json").read_text())
    elsewhere = {"commit": None, "versions": {}, "device": {"cpu": "another", "cores": 1}}
    monkeypatch.setattr(scoring, "describe_environment", lambda on: elsewhere)
    call("evaluate", str(run), "--samples", "3")
    after = json.loads((run / "record.json").read_text())
    assert {key: after[key] for key in elsewhere} == {key: before[key] for key in elsewhere}
    assert after["metrics"]["test_nll"]["environment"] == elsewhere
    assert "environment" not in before["metrics"]["test_nll"]


def archive(path: Path, *, seed: int) -> Path:
    generator = np.random.default_rng(seed)
    np.savez(path, **{part: generator.integers(2, size=(20, 6)) for part in ("train", "valid", "test")})
    return path


def test_a_run_keeps_its_data_and_tells_their_name_but_not_their_place(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    data, folder = archive(tmp_path / "deep" / "mine.npz", seed=0), tmp_path / "run"
    assert call("train", "2H-6V", "--data", str(data), "--steps", "3", "--out", str(folder))[0] == 0
    for file in ("record.json", "report.html"):
        text = (folder / file).read_text()
        assert "mine.npz" in text
        assert str(tmp_path) not in text
    moved = data.rename(tmp_path / "moved.npz")
    code, _, stderr = call("evaluate", str(folder))
    assert code == 2
    assert stderr.endswith(f"data file {str(data)!r} does not exist: pass the new path as --data\n")
    for verb in ("evaluate", "sample"):
        assert call(verb, str(folder), "--data", str(moved), *(["--out", str(tmp_path)] * (verb == "sample")))[0] == 0
    resumed = ("train", "--resume", str(folder), "--steps", "5", "--data", str(moved))
    assert call(*resumed)[0] == 0
    archive(moved, seed=1)
    sentence = f"data must be those that the run was trained on, got others in {str(moved)!r}"
    for words in (("evaluate", str(folder), "--data", str(moved)), resumed):
        code, stdout, stderr = call(*words)
        assert (code, stdout) == (2, "")
        assert sentence in stderr
