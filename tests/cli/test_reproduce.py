"""The paper's tables and figures are made from their recipes: what is missing is trained, and nothing twice."""

import json
import os
import shlex
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from concretely.evaluation import likelihood
from concretely.experiment import paper, scoring
from concretely.experiment.record import read_record
from concretely.training.folder import restored

from ..cases import exhaustive
from .command import call, change, lines
from .conftest import Interrupt

pytestmark = pytest.mark.usefixtures("tables", "unpictured")


def test_every_cell_is_trained_scored_and_shown_beside_the_papers(trained: list[Path]) -> None:
    code, stdout, stderr = call("reproduce", "tiny")
    assert code == 0, stderr
    assert stdout.splitlines()[0] == "A tiny table (nowhere)"
    assert stdout.splitlines()[-1] == "NLL in nats from 20 samples ± standard error"
    shown = lines(stdout)
    assert [line[:3] for line in shown] == [
        ["6H-64V", "concrete", "1"],
        ["6H-64V", "nvil", "1"],
        ["6H-64V", "concrete", "5"],
        ["6H-64V", "vimco", "5"],
        ["6H~64V", "concrete", "1"],
    ]
    folder = Path("out/reproduce/tiny")
    assert sorted(trained) == sorted(folder.iterdir())
    assert trained[1].name == "6H-64V-digits-nvil-m1-seed0"
    metrics = read_record(trained[1] / "record.json")["metrics"]
    test, train = metrics["test_nll"], metrics["train_nll"]
    assert (test["samples"], test["points"], train["points"]) == (20, 250, 1297)
    assert shown[1][4] == "±"
    assert float(shown[1][3]) == pytest.approx(test["value"], abs=0.05)
    assert float(shown[1][5]) == pytest.approx(test["standard_error"], rel=0.05)
    assert shown[1][6:8] == ["31.0", f"{test['value'] - 31:+.2f}".replace("-", "−")]
    assert float(shown[1][8]) == pytest.approx(train["value"], abs=0.05)
    assert shown[1][11:13] == ["30.0", f"{train['value'] - 30:+.2f}".replace("-", "−")]


def test_a_second_call_trains_and_scores_nothing(trained: list[Path]) -> None:
    _, first, _ = call("reproduce", "tiny", "--rows", "linear", "--samples", "1")
    assert len(trained) == 2
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("record.json")}
    code, second, stderr = call("reproduce", "tiny", "--rows", "linear", "--samples", "1")
    assert (code, second, stderr) == (0, first, "")
    assert len(trained) == 2
    assert before == {path: path.stat().st_mtime_ns for path in Path().rglob("record.json")}


def test_more_steps_go_on_and_fewer_are_taken_as_done(trained: list[Path]) -> None:
    one = ("reproduce", "tiny", "--rows", "linear", "--samples", "1", "--estimator", "concrete")
    call(*one)
    code, stdout, _ = call(*one, "--steps", "20")
    assert (code, lines(stdout)[0][-2]) == (0, "20")
    assert restored(trained[0])[0].step == 20
    assert len(trained) == 2
    assert call(*one)[1] == call(*one, "--steps", "20")[1]
    assert len(trained) == 2


def test_more_samples_score_again_without_training(trained: list[Path]) -> None:
    one = ("reproduce", "tiny", "--rows", "nonlinear")
    call(*one)
    call(*one, "--score-samples", "30")
    call(*one)
    (record,) = Path().rglob("record.json")
    assert read_record(record)["metrics"]["test_nll"]["samples"] == 30
    assert len(trained) == 1


def test_only_some_training_points_may_get_all_samples(trained: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "FEW", 3)
    one = ("reproduce", "tiny", "--rows", "nonlinear")
    for flags, full_points in (
        (["--full-points", "40"], 40),
        (["--full-points", "30"], 40),  # that was enough
        (["--full-points", "50"], 50),
        ([], 1297),
        (["--full-points", "50"], 1297),
    ):
        call(*one, *flags)
        (record,) = Path().rglob("record.json")
        test, train = (read_record(record)["metrics"][f"{part}_nll"] for part in ("test", "train"))
        assert (test["full_points"], train["full_points"], train["points"]) == (250, full_points, 1297)
    assert len(trained) == 1


@pytest.mark.parametrize(
    ("flags", "number"),
    [
        ("--rows linear", 4),
        ("--rows nonlinear,6H-64V", 5),
        ("--rows 6H~64V", 1),
        ("--samples 5", 2),
        ("--estimator vimco", 2),
        ("--estimator nvil", 1),
        ("--estimator concrete --samples 1", 2),
        ("--data digits", 5),
    ],
)
def test_filters_choose_cells(flags: str, number: int, trained: list[Path]) -> None:
    code, stdout, stderr = call("reproduce", "tiny", "--dry-run", *flags.split())
    assert (code, len(stdout.splitlines()), stderr) == (0, number, "")
    assert trained == []
    assert not Path("out").exists()


def test_a_dry_run_names_commands_that_make_the_cells(trained: list[Path]) -> None:
    _, stdout, _ = call("reproduce", "tiny", "--dry-run", "--estimator", "nvil")
    program, *words = shlex.split(stdout)
    assert program == "concretely"
    assert "--score-samples 20" in stdout
    code, _, stderr = call(*words)
    assert code == 0, stderr
    trained.clear()
    call("reproduce", "tiny", "--estimator", "nvil")
    assert trained == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tinny"], "unknown table or figure 'tinny'; did you mean 'tiny'?"),
        (["zzz"], "unknown table or figure 'zzz'; choose from 'binary', 'graph', 'simplex', 'tiny', 'warm'"),
        (["tiny", "--rows", "linaer"], "unknown row 'linaer' in tiny; did you mean 'linear'?"),
        (["tiny", "--data", "mnist"], "unknown data 'mnist' in tiny; choose from 'digits'"),
        (["tiny", "--samples", "1,2"], "unknown samples '2' in tiny; choose from '1', '5'"),
        (["tiny", "--estimator", "vimcoo"], "unknown estimator 'vimcoo' in tiny; did you mean 'vimco'?"),
        (
            ["tiny", "--rows", "nonlinear", "--estimator", "vimco"],
            "tiny has no cell with rows nonlinear and estimator vimco",
        ),
        (["tiny", "--steps", "0"], "steps must be at least 1, got 0"),
        (["tiny", "--steps", "many"], "steps must be a number, got 'many'"),
        (["tiny", "--score-samples", "0"], "score-samples must be at least 1, got 0"),
        (["tiny", "--full-points", "0"], "full-points must be at least 1, got 0"),
        (["tiny", "--lr", "1e-3,,1e-2"], "lr must be a number, got ''"),
        (["tiny", "--lr", "-1"], "lr must be positive, got -1.0"),
        (["simplex", "--steps", "5"], "steps must be left out for simplex, which needs no training, got '5'"),
        (["simplex", "--recipe", "fast"], "recipe must be left out for simplex, which needs no training, got 'fast'"),
        (["tiny", "--report"], "name must be left out for --report, which needs no training, got 'tiny'"),
        (["--report", "--steps", "5"], "steps must be left out for --report, which needs no training, got '5'"),
        (["--report", "--list"], "list must be left out for --report, which needs no training, got True"),
        (["--report", "--device", "cpu"], "device must be left out for --report, which needs no training, got 'cpu'"),
        (["--report", "--smoke"], "smoke must be left out for --report, which needs no training, got True"),
        (["--list", "--rows", "4-ary"], "rows must be left out for --list, which needs no training, got '4-ary'"),
        (["--rows", "4-ary"], "name must be given with rows, such as tiny, got none"),
        (["--dry-run"], "name must be given with dry-run, such as tiny, got none"),
        (["tiny", "--dry-run", "--precision", "tf23"], "unknown precision 'tf23'; did you mean 'tf32'?"),
        (
            ["--report"],
            "out must hold finished runs, got none of a cell in 'out/reproduce' and no records in "
            "'reproduction/records': train some with concretely reproduce NAME",
        ),
        (
            ["tiny", "--recipe", "slow"],
            "recipe must be fast or paper, or a file that can be read, got 'slow': No such file or directory",
        ),
    ],
)
def test_what_is_wrong_is_refused_in_a_sentence(arguments: list[str], sentence: str) -> None:
    assert call("reproduce", *arguments) == (2, "", f"{sentence}\n")
    assert not Path("out").exists()


def test_missing_data_is_said_before_any_training(trained: list[Path]) -> None:
    change('data = "digits"', 'data = "nowhere.npz"')
    code, stdout, stderr = call("reproduce", "tiny")
    assert (code, stdout, stderr) == (2, "", "data file 'nowhere.npz' does not exist\n")
    assert trained == []
    assert not Path("out").exists()


def test_an_interrupted_table_shows_what_there_is_and_goes_on(trained: list[Path], interrupt: Interrupt) -> None:
    interrupt(lambda: len(trained) == 3)
    code, stdout, stderr = call("reproduce", "tiny")
    assert code == 130
    assert stderr.splitlines()[-1] == "stopped and saved; run the same command to go on"
    shown = lines(stdout)
    assert ["–" in line for line in shown] == [False, False, False, True, True]
    assert shown[4] == ["6H~64V", "concrete", "1", "–", "26.1", "–", "–", "25.9", "–", "–", "–"]
    code, stdout, _ = call("reproduce", "tiny")
    assert code == 0
    assert not any("–" in line for line in lines(stdout))
    assert trained.count(trained[0]) == 1


def test_an_interruption_while_scoring_keeps_what_was_trained(
    trained: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def scored(*arguments: Any, **others: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(scoring, "score_split", scored)
        code, stdout, _ = call("reproduce", "tiny", "--rows", "nonlinear")
        assert (code, lines(stdout)[0][3]) == (130, "–")
    code, stdout, _ = call("reproduce", "tiny", "--rows", "nonlinear")
    assert (code, len(trained)) == (0, 1)
    assert "–" not in lines(stdout)[0]


def test_what_was_scored_before_an_interruption_is_kept(trained: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    score, parts = scoring.score_split, list[str]()

    def interrupted(*inputs: Any, split: str, **others: Any) -> Any:
        parts.append(split)
        if split == "train":
            os.kill(os.getpid(), signal.SIGINT)
        return score(*inputs, split=split, **others)

    monkeypatch.setattr(scoring, "score_split", interrupted)
    one = ("reproduce", "tiny", "--rows", "nonlinear")
    assert call(*one)[0] == 130
    metrics = read_record(trained[0] / "record.json")["metrics"]
    assert [name for name in metrics if name.count("_") == 1] == ["test_nll", "valid_nll"]
    monkeypatch.setattr(scoring, "score_split", score)
    assert call(*one)[0] == 0
    assert parts == ["valid", "test", "train"]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["tiny", "--samples", "1", "--rows", "linear"], "score_split"),
        (["tiny", "--samples", "1", "--rows", "linear", "--programs", "2"], "score_split"),
        (["warm"], "relaxed_objective"),
    ],
)
def test_scoring_is_interrupted_in_the_middle(arguments: list[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    score, begun, ended = getattr(scoring, name), list[str](), list[str]()
    with monkeypatch.context() as patch:

        def interrupted(*inputs: Any, **others: Any) -> Any:
            if not begun:
                begun.append(name)
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)  # until the main thread has heard of it
            found = score(*inputs, **others)
            ended.append(name)
            return found

        patch.setattr(scoring, name, interrupted)
        code, _, stderr = call("reproduce", *arguments)
    assert (code, begun, ended) == (130, [name], [])
    assert stderr.splitlines()[-1] == "stopped and saved; run the same command to go on"
    code, stdout, _ = call("reproduce", *arguments)
    assert (code, any("–" in line[:4] for line in lines(stdout))) == (0, False)


def test_a_record_of_fewer_steps_is_not_taken_for_that_of_all(trained: list[Path], interrupt: Interrupt) -> None:
    from concretely.data import load_data

    interrupt(lambda: not trained)
    call("reproduce", "tiny", "--rows", "nonlinear")
    folder, data = trained[0], load_data("digits")
    begun, model, _ = restored(folder)
    parts = {part: scoring.score_split(begun.recipe, model, data, split=part, samples=20) for part in paper.SPLITS}
    scoring.add_scores(folder, begun, model, data=data, scores=parts)
    early = read_record(folder / "record.json")
    call("reproduce", "tiny", "--rows", "nonlinear")
    late = read_record(folder / "record.json")
    assert (early["step"], late["step"]) == (1, 12)
    assert early["metrics"]["test_nll"]["value"] != late["metrics"]["test_nll"]["value"]


def test_a_cell_that_diverges_says_so_and_stops_no_other(trained: list[Path]) -> None:
    change("[estimator.nvil]", "[estimator.concrete]\nlr = 1e9\n\n[estimator.nvil]")
    for _ in range(2):
        code, stdout, _ = call("reproduce", "tiny", "--samples", "1", "--rows", "linear")
        assert code == 0
        bad, good = lines(stdout)
        assert bad == ["6H-64V", "concrete", "diverged", "30.0", "–", "diverged", "29.0", "–", "–", "–"]
        assert "diverged" not in good
    assert len(trained) == 2


def test_a_temperature_figure_is_drawn_from_the_records(trained: list[Path]) -> None:
    code, stdout, stderr = call("reproduce", "warm")
    assert code == 0, stderr
    half, two = lines(stdout)
    assert half[:2] == ["32V-6H-32V", "1/2"]
    files = [Path("out/reproduce/warm") / f"temperature.{kind}" for kind in ("png", "svg")]
    assert stdout.splitlines()[-2:] == [str(file) for file in files]
    assert all(file.exists() for file in files)
    for line, title in zip((half, two), trained, strict=True):
        metrics = read_record(title / "record.json")["metrics"]
        names = ("test_nll", "test_relaxed", "train_nll", "train_relaxed")
        assert all(metrics[name]["samples"] == 1 for name in names)
        shown = [float(line[index]) for index in (2, 5, 8, 11)]
        assert shown == pytest.approx([metrics[name]["value"] for name in names], abs=0.05)
    before = files[1].read_bytes()
    call("reproduce", "warm")
    assert (len(trained), files[1].read_bytes()) == (2, before)


@pytest.mark.parametrize("name", [*exhaustive("simplex"), "binary", "graph"])
def test_figures_without_training_are_those_of_the_figure_verb(name: str) -> None:
    code, stdout, _ = call("reproduce", name)
    files = [Path(f"out/reproduce/{name}/{name}.{kind}") for kind in ("png", "svg")]
    assert (code, stdout.splitlines()) == (0, [str(file) for file in files])
    call("figure", name)
    for file in files:
        assert file.read_bytes() == Path("out/figure", file.name).read_bytes()


@pytest.mark.parametrize("arguments", [[], ["--list"], ["tiny", "--list"]])
def test_without_a_name_all_are_listed(arguments: list[str]) -> None:
    code, stdout, _ = call("reproduce", *arguments)
    assert code == 0
    listed = [line.split() for line in stdout.splitlines() if line.strip() and "─" not in line]
    assert [line[0] for line in listed] == ["name", "tiny", "warm", "graph", "simplex", "binary"]
    assert listed[1] == ["tiny", "nowhere", "5", "A", "tiny", "table"]


def test_recipes_of_the_package_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "FOLDER", Path(paper.__file__).parent / "table")
    _, stdout, _ = call("reproduce")
    for name in ("table-1", "structured-prediction", "table-3", "temperature"):
        assert f" {name} " in stdout
    _, stdout, _ = call("reproduce", "table-1", "--dry-run")
    assert len(set(stdout.splitlines())) == 48


def test_a_folder_of_another_recipe_is_left_alone(trained: list[Path]) -> None:
    call("reproduce", "tiny", "--rows", "nonlinear")
    change("steps = 12", "steps = 12\nbatch = 32")
    code, _, stderr = call("reproduce", "tiny")
    folder = trained[0]
    assert (code, len(trained)) == (2, 1)
    assert stderr == f"{str(folder)!r} holds a run with another batch: choose another folder\n"
    assert json.loads((folder / "record.json").read_text())["recipe"]["batch"] == 64


def test_a_recipe_changes_how_all_cells_are_trained() -> None:
    Path("mine.toml").write_text("steps = 7\nbatch = 16\n")
    Path("some.toml").write_text("steps = 9\n[when.linear]\nlr = 0.1\n")
    for given, words in (
        (["mine.toml"], ["--steps 7 ", "--batch 16 "]),
        (["mine.toml", "--steps", "5"], ["--steps 5 ", "--batch 16 "]),
        (["mine.toml", "--lr", "0.02"], ["--steps 7 ", "--lr 0.02 "]),
        (["some.toml", "--lr", "0.02"], ["--steps 9 ", "--lr 0.02 "]),
        (["fast"], ["--batch 2048 ", "--optimizer muon "]),
    ):
        code, stdout, stderr = call("reproduce", "tiny", "--dry-run", "--recipe", *given)
        assert (code, len(stdout.splitlines()), stderr) == (0, 5, "")
        assert all(word in line for line in stdout.splitlines() for word in words)
    for line in stdout.splitlines():
        assert ("--steps 30000 " if "--estimator concrete " in line else "--steps 50000 ") in line


@pytest.mark.parametrize(
    "line", ['estimator = "vimco"', "samples = 5", "seed = 1", 'notation = "6H-64V"', 'data = "mnist"', "arity = 4"]
)
def test_a_recipe_leaves_the_cells_what_they_are(line: str) -> None:
    Path("mine.toml").write_text(f"steps = 7\n{line}\n")
    key, _, value = line.partition(" = ")
    found = value.replace('"', "'")
    sentence = f"recipe must leave {key} to the cells, got {found} in 'mine.toml'\n"
    assert call("reproduce", "tiny", "--recipe", "mine.toml") == (2, "", sentence)
    for section in ("linear", "nvil.linear") if key == "data" else ():
        Path("mine.toml").write_text(f"steps = 7\n[when.{section}]\n{line}\n")
        assert call("reproduce", "tiny", "--recipe", "mine.toml") == (2, "", sentence)
