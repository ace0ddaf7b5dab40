"""The report says what the records say: best and history are kept, and what is missing is said to be."""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from concretely import recipe
from concretely.cli.reproduce import POINTS
from concretely.recipe import Cell, Experiment, experiment, names
from concretely.report.archive import FEW, collected, kept
from concretely.report.record import write
from concretely.report.reproduction import gathered, page, report
from concretely.report.run import settings_of
from concretely.training.recipe import resolve

from .test_page import Reader

COMMITTED = Path(__file__).parents[2] / "reproduction"
HEADING = "^## (.* budgets?)$"
TITLES = [cell.title for cell in experiment("table-1").cells]


def made(cell: Cell, test: float | None, train: float = 100.0, **others: Any) -> dict[str, Any]:
    """The record of a run of a cell."""
    scored = {"standard_error": 0.254, "samples": others.pop("samples", 50_000), "points": others.pop("points", 10_000)}
    metrics = {"test_nll": {"value": test, **scored}, "train_nll": {"value": train, **scored}}
    if "valid" in others:
        metrics["valid_nll"] = {"value": others.pop("valid"), **scored}
    if "relaxed" in others:
        relaxed = {"value": others.pop("relaxed"), **scored}
        metrics |= {"test_relaxed": {**relaxed, "value": relaxed["value"] + 1}, "train_relaxed": relaxed}
    return {
        "recipe": settings_of(cell.recipe),
        "commit": {"hash": "0123abc", "dirty": False},
        "versions": {"python": "3.11.7"},
        "device": {"cpu": "EPYC", "cores": 2, "gpu": "H200"},
        "seed": 0,
        "metrics": metrics,
        "seconds": 1234.56,
        "step": cell.recipe.steps,
        **others,
    }


def leave(runs: Path, cell: Cell, test: float | None, **others: Any) -> None:
    write(runs / cell.title / "record.json", made(cell, test, **others))


@pytest.fixture
def table() -> Experiment:
    """A table with another number of steps than the paper's."""
    return experiment("table-1", steps=30_000)


def test_a_run_becomes_the_record_of_its_cell_once(table: Experiment, tmp_path: Path) -> None:
    leave(tmp_path / "runs", table.cells[0], 106.0)
    for number in (1, 0):
        assert collected(table, tmp_path / "runs", tmp_path / "records") == (number, [])
    content = json.loads((tmp_path / "records/table-1.json").read_text())
    record = made(table.cells[0], 106.0)
    assert content == {"experiment": "table-1", "cells": {TITLES[0]: {"best": record, "history": [record]}}}
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["table-1.json"]


def test_without_runs_nothing_is_written(table: Experiment, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert collected(table, tmp_path / "runs", tmp_path / "records") == (0, [])
    assert collected(table, tmp_path / "nowhere", tmp_path / "records") == (0, [])
    assert not (tmp_path / "records").exists()


@pytest.mark.parametrize(
    ("first", "second", "best"),
    [
        ({"test": 90.0, "valid": 95.0}, {"test": 99.0, "valid": 94.0}, 1),  # by validation, whatever the test says
        ({"test": 99.0, "valid": 94.0}, {"test": 90.0, "valid": 95.0}, 0),
        ({"test": 90.0}, {"test": 99.0}, 1),  # the last, never the better on the test set
        ({"test": 90.0, "valid": 94.0}, {"test": 99.0}, 1),
    ],
)
def test_the_best_is_by_validation_or_the_last_and_all_are_kept(
    first: dict[str, Any], second: dict[str, Any], best: int, table: Experiment, tmp_path: Path
) -> None:
    for runs, record in (("one", first), ("two", second)):
        leave(tmp_path / runs, table.cells[0], **record)
        collected(table, tmp_path / runs, tmp_path / "records")
    found = kept(table, tmp_path / "records")[TITLES[0]]
    assert found.history == [made(table.cells[0], **first), made(table.cells[0], **second)]
    assert found.best == found.history[best]


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ({"samples": 100}, "it must be scored with 50,000 samples on test, got 100"),
        ({"points": FEW}, "it is a smoke test, scored on 128 points"),
        ({"step": 100}, "it is not finished"),
        ({"test": None}, "its likelihood on test is not finite"),
        ({"metrics": {}}, "it is not scored on test"),
        ({"recipe": settings_of(resolve(notation="9H-784V", data="mnist", steps=30_000))}, "table-1 has no cell 9H-"),
        ({"recipe": {"notation": "9H-784", "steps": 30_000}}, "notation must have H or V after the units"),
    ],
)
def test_what_is_no_number_of_the_table_is_refused_in_a_sentence(
    others: dict[str, Any], sentence: str, table: Experiment, tmp_path: Path
) -> None:
    leave(tmp_path, table.cells[0], **{"test": 100.0, **others})
    leave(tmp_path, table.cells[1], 104.0)
    number, (refused,) = collected(table, tmp_path, tmp_path / "records")
    assert number == 1
    assert refused.startswith(f"{tmp_path / TITLES[0]} is left out: {sentence}")
    assert list(kept(table, tmp_path / "records")) == [TITLES[1]]


def test_data_of_the_same_name_in_a_file_are_not_those_of_the_cell(table: Experiment, tmp_path: Path) -> None:
    settings = {**settings_of(table.cells[0].recipe), "data": "mnist.npz"}
    leave(tmp_path, table.cells[0], 100.0, recipe=settings)
    assert collected(table, tmp_path, tmp_path / "records")[1] == [
        f"{tmp_path / TITLES[0]} is left out: data must be 'mnist', got 'mnist.npz'"
    ]


def test_smoke_tests_have_no_more_points_than_are_refused() -> None:
    assert POINTS <= FEW


def test_records_stay_whole_where_writing_fails(
    table: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path / "runs", table.cells[0], 106.0)
    collected(table, tmp_path / "runs", tmp_path / "records")
    before = (tmp_path / "records/table-1.json").read_bytes()
    leave(tmp_path / "runs", table.cells[1], 104.0)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="no room"):
            collected(table, tmp_path / "runs", tmp_path / "records")
    assert (tmp_path / "records/table-1.json").read_bytes() == before
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["table-1.json"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "records must be those of an experiment, got a damaged file"),
        ("[]", "records must be those of an experiment, got a damaged file"),
        ('{"cells": {"a": {"best": {}}}}', "records must be those of an experiment, got a damaged file"),
        ('{"cells": {"a": {"best": {}, "history": []}}}', "records must be of cells of table-1, got 'a'"),
    ],
)
def test_damaged_records_are_refused(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "table-1.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        report(tmp_path)


def test_every_line_is_ours_beside_the_papers(table: Experiment, tmp_path: Path) -> None:
    leave(tmp_path / "runs", table.cells[0], 107.296, train=105.04)  # the paper has 107.3 and 107.5
    leave(tmp_path / "runs", table.cells[1], 108.0, train=104.2, device={"cpu": "E", "float32_products": "high"})
    collected(table, tmp_path / "runs", tmp_path / "records")
    text = report(tmp_path / "records")
    assert "2 of 112 cells are known" in text
    assert "In the paper: table 1. 2 of 48 cells, scored with 50,000 samples, trained on E and H200." in text
    assert [line for line in text.splitlines() if line.startswith(("| 1 ", "| 2 ", "| 3 "))] == [
        "| 1 | `table-1` | concrete | 1 of 1 | +0.00 | −2.46 |",
        "| 2 | `table-1` | vimco | 0 of 1 | +3.60 | +0.00 |",
        "| 1 | `200H-784V` | mnist | concrete | 1 | 107.30 ± 0.25 | 107.3 | +0.00 | 105.04 ± 0.25 | 107.5 | −2.46 "
        "| 30,000 | 1,234.6 |",
        "| 2 | `200H-784V` | mnist | nvil | 1 | 108.00 ± 0.25 | 104.4 | +3.60 | 104.20 ± 0.25 | 104.2 | +0.00 "
        "| 30,000 | 1,234.6 |",
        "| 3 | `200H-784V` | omniglot | concrete | 1 | – | 118.7 | – | – | 117.0 | – | – | – |",
    ]
    assert "structured" not in text.partition("## Density")[2].lower()
    first, second = (shlex.split(line) for line in text.splitlines() if line.startswith("concretely train"))
    assert first[:3] == ["concretely", "train", "200H-784V"]
    assert first[-4:] == ["--score-samples", "50000", "--out", f"out/reproduce/table-1/{TITLES[0]}"]
    assert second[second.index("--products") + 1] == "tf32"
    given = dict(zip(second[3:-6:2], second[4:-6:2], strict=True))
    wished = {name.removeprefix("--").replace("-", "_"): value for name, value in given.items()}
    assert resolve(notation=second[2], **wished) == table.cells[1].recipe


@pytest.mark.parametrize(("steps", "heading"), [(10_000_000, "The paper's budget"), (9_999_999, "Other budgets")])
def test_cells_that_were_made_twice_show_both_budgets_and_what_is_taken_last(
    steps: int, heading: str, table: Experiment, tmp_path: Path
) -> None:
    leave(tmp_path / "runs", table.cells[1], 108.0)
    collected(table, tmp_path / "runs", tmp_path / "records")
    assert not re.findall(HEADING, report(tmp_path / "records"), re.MULTILINE)
    slow = experiment("table-1", steps=steps).cells[0]
    for runs, each, test, valid in (("slow", slow, 107.0, 108.0), ("fast", table.cells[0], 106.5, 109.0)):
        leave(tmp_path / runs, each, test, valid=valid)
        collected(table, tmp_path / runs, tmp_path / "records")
    text = report(tmp_path / "records")
    assert re.findall(HEADING, text, re.MULTILINE) == [heading]
    assert "Of the 2 cells that can be compared, 1 are within 1 nat of the paper's test NLL or better." in text
    about = "`200H-784V` | mnist | concrete | 1 | 1/2 | adam | 64 | 0.0003 | 0"
    rows = text.partition(f"## {heading}")[2].partition("\n## ")[0].splitlines()
    assert [line for line in rows if line.startswith(("| 1 ", "| 2 ", "| 3 "))] == [
        f"| 1 | {about} | 109.00 ± 0.25 | 106.50 ± 0.25 | −0.80 | 30,000 | 1,234.6 |",
        f"| 2 | {about} | 108.00 ± 0.25 | 107.00 ± 0.25 | −0.30 | {steps:,} | 1,234.6 |",
    ]
    shown, found = page(tmp_path / "records"), gathered(tmp_path / "records")
    for entry in (entry for row in (*found.paper_budget.rows, *found.budgets.rows) for entry in row):
        assert f">{entry}</td>" in shown


def test_candidates_that_have_lost_are_passed_over(table: Experiment, tmp_path: Path) -> None:
    lost = made(table.cells[0], 106.0, valid=107.0)
    del lost["metrics"]["test_nll"], lost["metrics"]["train_nll"]
    write(tmp_path / "runs" / "lost" / "record.json", lost)
    assert collected(table, tmp_path / "runs", tmp_path / "records") == (0, [])


def test_training_points_that_had_few_samples_are_told_of(table: Experiment, tmp_path: Path) -> None:
    record = made(table.cells[0], 107.0)
    write(tmp_path / "runs" / table.cells[0].title / "record.json", record)
    collected(table, tmp_path / "runs", tmp_path / "records")
    assert "of the training points" not in report(tmp_path / "records")
    record["metrics"]["train_nll"]["thorough"] = 5_000
    write(tmp_path / "runs" / table.cells[0].title / "record.json", record)
    collected(table, tmp_path / "runs", tmp_path / "records")
    told = "In 1 of them 5,000 of the training points had all samples and the others 1,000, to which is added what"
    assert told in report(tmp_path / "records")
    assert told in page(tmp_path / "records")
    record["metrics"]["test_nll"]["thorough"] = 5_000
    write(tmp_path / "runs" / table.cells[0].title / "record.json", record)
    _, (sentence,) = collected(table, tmp_path / "runs", tmp_path / "records")
    assert sentence.endswith("all of its points must be scored thoroughly on test, got 5,000 of them")


def test_cells_that_are_worse_have_their_reason(table: Experiment, tmp_path: Path) -> None:
    for cell, test in zip(table.cells, (108.3, 105.5, 117.5, 117.0), strict=False):
        leave(tmp_path / "runs", cell, test)
    collected(table, tmp_path / "runs", tmp_path / "records")
    assert "first made" not in report(tmp_path / "records")
    leave(tmp_path / "better", table.cells[0], 106.2)
    collected(table, tmp_path / "better", tmp_path / "records")
    (tmp_path / "reasons.toml").write_text(f'"{TITLES[1]}" = "Few steps, `so far`."\n')
    start, _, text = report(tmp_path / "records").partition("## Cells worse by more than 1 nat")
    assert " ".join(start.split()).count(
        "Of the 4 cells that can be compared, 2 are within 1 nat of the paper's test NLL or better, 2 of them better "
        "by more than that. When they were first made, by other recipes, 2 were."
    )
    for row in ("| 1 | `table-1` | concrete | 2 of 2 | −1.15 |", "| 2 | `table-1` | vimco | 0 of 2 | +1.20 |"):
        assert row in start
    assert [line for line in text.splitlines() if line] == [
        "- `200H-784V`, mnist, nvil, m = 1: test 105.50 ± 0.25, the paper's 104.4, +1.10. Reason: Few steps, `so far`.",
        "- `200H-784V`, omniglot, nvil, m = 1: test 117.00 ± 0.25, the paper's 115.7, +1.30. Reason: unknown yet",
    ]
    (tmp_path / "reasons.toml").write_text('"misspelt" = "Few steps."\n')
    with pytest.raises(ValueError, match="reasons must be sentences by the titles of cells, got 'misspelt'"):
        report(tmp_path / "records")


def test_findings_are_told_by_the_records(table: Experiment, tmp_path: Path) -> None:
    for cell in table.cells:
        if cell.row == "linear":
            leave(tmp_path / "runs", cell, 100.0 - (cell.heading == "concrete"))
    collected(table, tmp_path / "runs", tmp_path / "records")
    text = report(tmp_path / "records")
    assert "- **Linear models: not held.** " in text
    assert (
        "−1.00 nats on average, above 0 in 0 of 12 and by more than 2 standard errors in 0, from −1.00 ± 0.36" in text
    )
    assert "In the paper: +6.29 nats on average, above 0 in 12 of 12." in text
    assert "- **Non-linear models: not known yet.** " in text


def test_temperatures_have_both_objectives_and_a_figure(tmp_path: Path) -> None:
    warm = experiment("temperature", steps=20)
    for cell in warm.cells[:8]:
        t = cell.recipe.temperature
        assert isinstance(t, float)
        leave(tmp_path / "runs", cell, 60.0, train=58.0 + t**2, relaxed=58.0 - t, samples=1)
    assert collected(warm, tmp_path / "runs", tmp_path / "records") == (8, [])
    text = report(tmp_path / "records")
    (row,) = (line for line in text.splitlines() if line.startswith("| 8 "))
    numbers = "60.00 ± 0.25 | 57.00 ± 0.25 | 62.00 ± 0.25 | 56.00 ± 0.25"
    assert row == f"| 8 | `392V-240H-240H-240H-392V` | 2 | {numbers} | 20 | 1,234.6 |"
    assert "- **Integrality gap: held so far.** " in text
    # scored with one sample, they are no numbers of structured prediction
    assert "- **Arity in structured prediction: not known yet.** " in text
    assert "figure 4, right" in str(Reader(page(tmp_path / "records")).all("img")[-1]["alt"])


def test_the_page_is_the_same_and_needs_nothing_else(table: Experiment, tmp_path: Path) -> None:
    leave(tmp_path / "runs", table.cells[0], 109.25)
    collected(table, tmp_path / "runs", tmp_path / "records")
    (tmp_path / "reasons.toml").write_text(f'"{TITLES[0]}" = "<b>Few</b> steps & `so on`."\n')
    text = page(tmp_path / "records")
    read = Reader(text)
    found = gathered(tmp_path / "records")
    for entry in (entry for section in found.sections for row in section.grid.rows for entry in row):
        assert entry in read.text
    for finding in found.findings:
        assert f"{finding.name}: {finding.verdict}." in read.text
        assert finding.found.replace("`", "") in read.text
    assert "<b>Few</b> steps & so on." in read.text
    assert len(read.all("img")) == 3
    assert all(str(image["src"]).startswith("data:image/svg+xml;base64,") for image in read.all("img"))
    assert not read.all("script")
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert page(tmp_path / "records") == text


def test_an_unfinished_or_better_run_is_told_by_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from concretely.data import load
    from concretely.report.run import leave as left
    from concretely.report.run import scored
    from concretely.training.loop import train
    from concretely.training.run import restored

    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe/tiny.toml").write_text(
        'title = "t"\nplace = "p"\nscore_samples = 2\n[columns]\npart = ["test"]\n[recipe]\nsteps = 6\nvalidate = 3\n'
        '[[row]]\nname = "r"\nnotation = "4H-64V"\nnll = [[1, 30.0]]\n'
    )
    monkeypatch.setattr(recipe, "FOLDER", tmp_path / "recipe")
    tiny, data = experiment("tiny"), load("digits")
    (cell,) = tiny.cells
    folder = tmp_path / "runs" / cell.title
    stops = iter([False, False, True])
    train(cell.recipe, folder, data=data, stop=lambda: next(stops, True))
    for refused in (1, 0):
        run, model, _ = restored(folder)
        left(folder, run, model, data=data, found={"test": scored(run.recipe, model, data, part="test", samples=2)})
        sentences = [f"{folder} is left out: it is not finished"] * refused
        assert collected(tiny, tmp_path / "runs", tmp_path / "records")[1] == sentences
        train(cell.recipe, folder, data=data)
    run = restored(folder)[0]
    assert run.best is not None
    assert kept(tiny, tmp_path / "records")[cell.title].best["valid"] == {"value": run.best[1], "samples": 10}


def test_the_committed_report_is_what_the_committed_records_give() -> None:
    if not any((COMMITTED / "records").glob("*.json")):
        pytest.skip("there are no records yet")
    assert (COMMITTED / "README.md").read_text(encoding="utf-8") == report(COMMITTED / "records")
    written, made = (COMMITTED / "index.html").read_text(encoding="utf-8"), page(COMMITTED / "records")
    assert re.sub("<img [^>]*>", "", written) == re.sub("<img [^>]*>", "", made)  # matplotlib draws each time anew
    assert len(Reader(written).all("img")) == len(Reader(made).all("img")) >= 3
    reasons = tomllib.loads((COMMITTED / "reasons.toml").read_text(encoding="utf-8"))
    found = gathered(COMMITTED / "records")
    assert set(reasons) == {each.title for each in found.deviations}
    for each in map(experiment, names()):
        for title, (best, _) in kept(each, COMMITTED / "records").items():
            for taken, steps in re.findall("after ([0-9,]+) of ([0-9,]+) steps", reasons.get(title, "")):
                assert (taken, steps) == (f"{best['step']:,}", f"{best['recipe']['steps']:,}")
