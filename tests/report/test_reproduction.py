"""The report says what the records say: best and history are kept, and what is missing is said to be."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from concretely.evaluation.illustration import sampling_traces
from concretely.experiment.history import collect_records, read_history
from concretely.experiment.paper import Experiment, experiment_names, load_experiment
from concretely.experiment.record import write_record
from concretely.experiment.review import Review, review_records
from concretely.report.reproduction import html_report
from concretely.report.reproduction import markdown_report as report
from concretely.report.table import cell_grid
from concretely.training.recipe import resolve

from ..experiment.archived import TITLES, leave, made
from .test_page import Reader

COMMITTED = Path(__file__).parents[2] / "reproduction"
HEADING = "^## (.* budgets?)$"


def page(review: Review) -> str:
    return html_report(review, sampling_traces([2.0, 0.5, 1.0], [0.0, 0.5]))


def test_every_line_is_ours_beside_the_papers(table: Experiment, tmp_path: Path) -> None:
    leave(tmp_path / "runs", table.cells[0], 107.296, train=105.04)  # the paper has 107.3 and 107.5
    leave(tmp_path / "runs", table.cells[1], 108.0, train=104.2, device={"cpu": "E", "matmul_precision": "medium"})
    collect_records(table, tmp_path / "runs", tmp_path / "records")
    text = report(review_records(tmp_path / "records"))
    assert "2 of 112 cells are known; missing are 46 of table-1, 2 of logistic-normal, 14 of structured-" in text
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
    assert second[second.index("--precision") + 1] == "bfloat16"
    given = dict(zip(second[3:-6:2], second[4:-6:2], strict=True))
    wished = {name.removeprefix("--").replace("-", "_"): value for name, value in given.items()}
    assert resolve(notation=second[2], **wished) == table.cells[1].recipe


@pytest.mark.usefixtures("unpictured")
@pytest.mark.parametrize(("steps", "heading"), [(10_000_000, "The paper's budget"), (9_999_999, "Other budgets")])
def test_cells_that_were_made_twice_show_both_budgets_and_what_is_taken_last(
    steps: int, heading: str, table: Experiment, tmp_path: Path
) -> None:
    leave(tmp_path / "runs", table.cells[1], 108.0)
    collect_records(table, tmp_path / "runs", tmp_path / "records")
    assert not re.findall(HEADING, report(review_records(tmp_path / "records")), re.MULTILINE)
    slow = load_experiment("table-1", steps=steps).cells[0]
    for runs, each, test, valid in (("slow", slow, 107.0, 108.0), ("fast", table.cells[0], 106.5, 109.0)):
        leave(tmp_path / runs, each, test, valid=valid)
        collect_records(table, tmp_path / runs, tmp_path / "records")
    text = report(review_records(tmp_path / "records"))
    assert re.findall(HEADING, text, re.MULTILINE) == [heading]
    assert "Of the 2 cells that can be compared, 1 are within 1 nat of the paper's test NLL or better." in text
    about = "`200H-784V` | mnist | concrete | 1 | 1/2 | adam | 64 | 0.0003 | 0"
    rows = text.partition(f"## {heading}")[2].partition("\n## ")[0].splitlines()
    assert [line for line in rows if line.startswith(("| 1 ", "| 2 ", "| 3 "))] == [
        f"| 1 | {about} | 109.00 ± 0.25 | 106.50 ± 0.25 | −0.80 | 30,000 | 1,234.6 |",
        f"| 2 | {about} | 108.00 ± 0.25 | 107.00 ± 0.25 | −0.30 | {steps:,} | 1,234.6 |",
    ]
    shown, found = page(review_records(tmp_path / "records")), review_records(tmp_path / "records")
    assert len([*found.paper_budget, *found.budgets]) == 2
    for row in (line for line in rows if line.startswith(("| 1 ", "| 2 "))):
        assert all(f">{entry.strip(' `')}</td>" in shown for entry in row.strip("| ").split("|"))


@pytest.mark.usefixtures("unpictured")
def test_training_points_that_had_few_samples_are_told_of(table: Experiment, tmp_path: Path) -> None:
    record = made(table.cells[0], 107.0)
    write_record(tmp_path / "runs" / table.cells[0].title / "record.json", record)
    collect_records(table, tmp_path / "runs", tmp_path / "records")
    assert "of the training points" not in report(review_records(tmp_path / "records"))
    record["metrics"]["train_nll"]["full_points"] = 5_000
    record["seconds"] = 9.0
    write_record(tmp_path / "runs" / table.cells[0].title / "record.json", record)
    collect_records(table, tmp_path / "runs", tmp_path / "records")
    told = "In 1 of them 5,000 of the training points had all samples and the others 1,000, corrected by the mean"
    assert told in report(review_records(tmp_path / "records"))
    assert told in page(review_records(tmp_path / "records"))
    record["metrics"]["test_nll"]["full_points"] = 5_000
    write_record(tmp_path / "runs" / table.cells[0].title / "record.json", record)
    _, (sentence,) = collect_records(table, tmp_path / "runs", tmp_path / "records")
    assert sentence.endswith("all points must be scored with all samples on test, got 5,000 of them")


def test_cells_that_are_worse_have_their_reason(table: Experiment, tmp_path: Path) -> None:
    for cell, test in zip(table.cells, (108.3, 105.5, 117.5, 117.0), strict=False):
        leave(tmp_path / "runs", cell, test)
    collect_records(table, tmp_path / "runs", tmp_path / "records")
    assert "trained again" not in report(review_records(tmp_path / "records"))
    leave(tmp_path / "better", table.cells[0], 106.2, seconds=9.0)
    collect_records(table, tmp_path / "better", tmp_path / "records")
    (tmp_path / "reasons.toml").write_text(f'"{TITLES[1]}" = "Few steps, `so far`."\n')
    start, _, text = report(review_records(tmp_path / "records")).partition("## Cells worse by more than 1 nat")
    assert " ".join(start.split()).count(
        "Of the 4 cells that can be compared, 2 are within 1 nat of the paper's test NLL or better, 2 of them better "
        "by more than that. Before 1 of them were trained again, 2 were."
    )
    for row in ("| 1 | `table-1` | concrete | 2 of 2 | −1.15 |", "| 2 | `table-1` | vimco | 0 of 2 | +1.20 |"):
        assert row in start
    assert [line for line in text.splitlines() if line] == [
        "- `200H-784V`, mnist, nvil, m = 1: test 105.50 ± 0.25, the paper's 104.4, +1.10. Reason: Few steps, `so far`.",
        "- `200H-784V`, omniglot, nvil, m = 1: test 117.00 ± 0.25, the paper's 115.7, +1.30. Reason: unknown yet",
    ]
    (tmp_path / "reasons.toml").write_text('"misspelt" = "Few steps."\n')
    with pytest.raises(ValueError, match="reasons must be sentences by the titles of cells, got 'misspelt'"):
        report(review_records(tmp_path / "records"))


def test_findings_are_told_by_the_records(table: Experiment, tmp_path: Path) -> None:
    for cell in table.cells:
        if cell.row == "linear":
            leave(tmp_path / "runs", cell, 100.0 - (cell.heading == "concrete"))
    collect_records(table, tmp_path / "runs", tmp_path / "records")
    text = report(review_records(tmp_path / "records"))
    assert "- **Linear models: not held.** " in text
    assert (
        "−1.00 nats on average, above 0 in 0 of 12 and by more than 2 standard errors in 0, from −1.00 ± 0.36" in text
    )
    assert "In the paper: +6.29 nats on average, above 0 in 12 of 12." in text
    assert "- **Non-linear models: unknown yet.** " in text


def test_temperatures_have_both_objectives_and_a_figure(tmp_path: Path) -> None:
    warm = load_experiment("temperature", steps=20)
    for cell in warm.cells[:8]:
        t = cell.recipe.temperature
        assert isinstance(t, float)
        leave(tmp_path / "runs", cell, 60.0, train=58.0 + t**2, relaxed=58.0 - t, samples=1)
    assert collect_records(warm, tmp_path / "runs", tmp_path / "records") == (8, [])
    text = report(review_records(tmp_path / "records"))
    (row,) = (line for line in text.splitlines() if line.startswith("| 8 "))
    numbers = "60.00 ± 0.25 | 56.00 ± 0.25 | 62.00 ± 0.25 | 56.00 ± 0.25"
    assert row == f"| 8 | `392V-240H-240H-240H-392V` | 2 | {numbers} | 20 | 1,234.6 |"
    assert "- **Integrality gap: held so far.** " in text
    # scored with one sample, they are no numbers of structured prediction
    assert "- **Arity in structured prediction: unknown yet.** " in text
    assert "figure 4, right" in str(Reader(page(review_records(tmp_path / "records"))).all("img")[-1]["alt"])


def test_the_page_is_the_same_and_needs_nothing_else(table: Experiment, tmp_path: Path) -> None:
    leave(tmp_path / "runs", table.cells[0], 109.25)
    collect_records(table, tmp_path / "runs", tmp_path / "records")
    (tmp_path / "reasons.toml").write_text(f'"{TITLES[0]}" = "<b>Few</b> steps & `so on`."\n')
    text = page(review_records(tmp_path / "records"))
    read = Reader(text)
    found = review_records(tmp_path / "records")
    for _, results in found.experiments:
        if any(result.record for result in results):
            assert all(entry in read.text for row in cell_grid(results).rows for entry in row)
    for finding in found.verdicts:
        assert f"{finding.name}: {finding.verdict}." in read.text
        assert finding.summary.replace("`", "") in read.text
    assert "<b>Few</b> steps & so on." in read.text
    assert len(read.all("img")) == 3
    assert all(str(image["src"]).startswith("data:image/svg+xml;base64,") for image in read.all("img"))
    assert not read.all("script")
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert page(review_records(tmp_path / "records")) == text


def test_the_committed_report_is_what_the_committed_records_give() -> None:
    assert (COMMITTED / "README.md").read_text(encoding="utf-8") == report(review_records(COMMITTED / "records"))
    written, made = (COMMITTED / "index.html").read_text(encoding="utf-8"), page(review_records(COMMITTED / "records"))
    assert re.sub("<img [^>]*>", "", written) == re.sub("<img [^>]*>", "", made)  # matplotlib draws each time anew
    assert len(Reader(written).all("img")) == len(Reader(made).all("img")) >= 3
    reasons = tomllib.loads((COMMITTED / "reasons.toml").read_text(encoding="utf-8"))
    found = review_records(COMMITTED / "records")
    assert set(reasons) == {result.cell.title for result, _ in found.deviations}
    for each in map(load_experiment, experiment_names()):
        for title, (best, _) in read_history(each, COMMITTED / "records").items():
            for taken, steps in re.findall("after ([0-9,]+) of ([0-9,]+) steps", reasons.get(title, "")):
                assert (taken, steps) == (f"{best['step']:,}", f"{best['recipe']['steps']:,}")
