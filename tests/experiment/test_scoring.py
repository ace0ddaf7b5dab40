"""Scores are those of the last parameters, and the more precise ones stay in the record."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from concretely.evaluation.likelihood import Likelihood, evaluate
from concretely.experiment.picture import report_pictures
from concretely.experiment.record import KEYS
from concretely.experiment.scoring import add_scores, independent_pixels, likelihood_metric, score_split
from concretely.report.page import page, write_report
from concretely.training.folder import restored
from concretely.training.loop import train
from concretely.training.rng import Purpose, generator_of

from ..training.example import data, recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, to be read only."""
    folder = tmp_path_factory.mktemp("run")
    train(recipe(), folder, data=data())
    return folder


def found(nll: float, samples: int, full_points: int = 10) -> Likelihood:
    """A likelihood of ten data points that was found with so many samples for some of them."""
    values, sizes = torch.full((10,), -nll, dtype=torch.float64), torch.ones(full_points, dtype=torch.float64)
    return Likelihood(values, sizes, samples, 0.5)


def test_a_score_follows_from_the_seed_and_is_that_of_the_part(folder: Path) -> None:
    run, model, _ = restored(folder)
    for part in ("train", "valid", "test"):
        bits, generator = data().split(part)[:], generator_of(3, Purpose.EVALUATION)
        true = evaluate(model, bits, samples=9, generator=generator)
        again = score_split(run.recipe, model, data(), split=part, samples=9)
        assert again.log_likelihood.equal(true.log_likelihood)


def test_a_metric_has_its_standard_error_its_samples_and_its_points() -> None:
    likelihood = Likelihood(
        torch.tensor([-1.0, -3.0], dtype=torch.float64), torch.tensor([2.0, 4.0], dtype=torch.float64), 7, 0.5
    )
    assert likelihood_metric(likelihood) == {
        "value": 2.0,
        "standard_error": 1.0,
        "samples": 7,
        "points": 2,
        "full_points": 2,
        "effective_sample_size": 3.0,
        "seconds": 0.5,
    }


def test_all_parts_are_written_and_can_be_opened(folder: Path, tmp_path: Path) -> None:
    run, model, _ = restored(folder)
    record = add_scores(tmp_path, run, model, data=data(), scores={"test": found(3.0, 10)})
    written = write_report(tmp_path, run, record, report_pictures(run.recipe, model, data()))
    names = {"record.json", "samples.png", "reconstructions.png", "curve.png", "report.html"}
    assert ({path.name for path in tmp_path.iterdir()}, written.name) == (names, "report.html")
    record = json.loads((tmp_path / "record.json").read_text())
    assert set(KEYS) < set(record)
    assert record["recipe"] == run.recipe.settings
    assert (record["seed"], record["step"], record["seconds"]) == (3, 30, run.seconds)
    assert record["metrics"]["test_nll"]["value"] == 3.0


def test_structured_prediction_is_pictured_by_completions(tmp_path: Path) -> None:
    train(recipe(notation="4V-4H-8V", steps=3), tmp_path, data=data())
    run, model, _ = restored(tmp_path)
    assert list(report_pictures(run.recipe, model, data())) == ["completions"]


@pytest.mark.parametrize("notation", ["4H-12V", "4V-4H-8V"])
def test_a_score_stands_beside_that_of_independent_pixels(notation: str) -> None:
    units = 12 if notation == "4H-12V" else 8
    rate = data().train[:][:, -units:].double().mean(0).clamp(1e-3, 1 - 1e-3)
    nll = -torch.distributions.Bernoulli(rate).log_prob(data().test[:][:, -units:].double()).sum(-1)
    beside = independent_pixels(recipe(notation=notation), data(), split="test")
    assert beside is not None
    assert beside["value"] == pytest.approx(nll.mean().item(), rel=1e-6)
    assert beside["standard_error"] == pytest.approx(nll.std().item() / 10**0.5, rel=1e-6)


def metrics(folder: Path) -> dict[str, tuple[float, int]]:
    """The value of every metric, and its samples."""
    record = json.loads((folder / "record.json").read_text())
    return {name: (entry["value"], entry["samples"]) for name, entry in record["metrics"].items() if "samples" in entry}


def test_of_two_scores_of_a_part_that_from_more_samples_stays(folder: Path, tmp_path: Path) -> None:
    run, model, _ = restored(folder)
    for part, nll, samples, expected in (
        ("test", 3.0, 10, {"test_nll": (3.0, 10)}),
        ("valid", 4.0, 5, {"test_nll": (3.0, 10), "valid_nll": (4.0, 5)}),
        ("test", 5.0, 9, {"test_nll": (3.0, 10), "valid_nll": (4.0, 5)}),
        ("test", 6.0, 10, {"test_nll": (6.0, 10), "valid_nll": (4.0, 5)}),
        ("test", 2.0, 99, {"test_nll": (2.0, 99), "valid_nll": (4.0, 5)}),
    ):
        add_scores(tmp_path, run, model, data=data(), scores={part: found(nll, samples)})
        assert metrics(tmp_path) == expected


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        ((20, 10), (20, 4), 0),  # fewer data points tell less
        ((20, 4), (20, 10), 1),
        ((20, 4), (10, 10), 0),  # and so do fewer samples
        ((20, 4), (10, 4), 0),
        ((20, 4), (20, 4), 1),
    ],
)
def test_of_two_scores_of_a_part_that_which_tells_more_stays(
    first: tuple[int, int], second: tuple[int, int], stays: int, folder: Path, tmp_path: Path
) -> None:
    run, model, _ = restored(folder)
    for nll, (samples, full_points) in enumerate((first, second)):
        add_scores(tmp_path, run, model, data=data(), scores={"test": found(nll, samples, full_points)})
    samples, full_points = (first, second)[stays]
    assert metrics(tmp_path) == {"test_nll": (stays, samples)}
    metric = json.loads((tmp_path / "record.json").read_text())["metrics"]["test_nll"]
    assert metric["full_points"] == full_points
    told = "samples of the latents" + " for 4 of 10 data points" * (full_points == 4)
    assert f"{samples} {told}. The mean effective sample size is " in page({"metrics": {"test_nll": metric}})


def test_scores_of_other_parameters_are_dropped(folder: Path, tmp_path: Path) -> None:
    run, model, _ = restored(folder)
    add_scores(tmp_path, run, model, data=data(), scores={"test": found(3.0, 100), "valid": found(3.5, 100)})
    add_scores(tmp_path, replace(run, step=40), model, data=data(), scores={"test": found(2.0, 10)})
    assert metrics(tmp_path) == {"test_nll": (2.0, 10)}
    add_scores(tmp_path, replace(run, step=50, best=(40, 1.0)), model, data=data(), scores={"valid": found(2.5, 10)})
    assert metrics(tmp_path) == {"test_nll": (2.0, 10), "valid_nll": (2.5, 10)}
    assert json.loads((tmp_path / "record.json").read_text())["step"] == 40


def test_pictures_are_the_same_every_time(folder: Path, tmp_path: Path) -> None:
    run, model, _ = restored(folder)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_report(tmp_path / name, run, {}, report_pictures(run.recipe, model, data()))
    for picture in ("samples.png", "reconstructions.png", "curve.png"):
        assert (tmp_path / "a" / picture).read_bytes() == (tmp_path / "b" / picture).read_bytes()


def test_the_curve_is_that_of_the_run(folder: Path) -> None:
    run, _, _ = restored(folder)
    with (folder / "curve.csv").open(newline="") as file:
        assert [float(row["objective"]) for row in csv.DictReader(file)] == [row.objective for row in run.rows]
