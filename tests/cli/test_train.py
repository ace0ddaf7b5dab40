"""The verb trains what it is asked for, shows it, leaves it in a folder, and goes on from there."""

import csv
import errno
import json
import math
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from shutil import copytree
from threading import Thread

import pytest
from rich.console import Console

from concretely.cli.terminal import console, describe_rows, training_progress
from concretely.experiment import scoring
from concretely.experiment.record import KEYS
from concretely.training import checkpoint
from concretely.training import folder as training
from concretely.training.folder import restored
from concretely.training.own_recipe import OwnRecipe
from concretely.training.recipe import read, resolve
from concretely.training.train_state import Row, TrainState

from .command import call

TINY = ("train", "4H-64V", "--steps", "20", "--batch", "8", "--score-samples", "3")
PNG = b"\x89PNG\r\n\x1a\n"


def same(one: Path, other: Path) -> bool:
    """Whether the last checkpoints of two runs hold the same bits."""
    found = [checkpoint.latest(folder).tensors for folder in (one, other)]
    return found[0].keys() == found[1].keys() and all(found[0][name].equal(found[1][name]) for name in found[0])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A run, to be read only, and what the command has said about it."""
    folder = tmp_path_factory.mktemp("train") / "a run [bold] :smile:"
    code, stdout, stderr = call(*TINY, "--lr", "1/100", "--out", str(folder), "--tensorboard", "--validate", "10")
    assert code == 0, stderr
    return folder, stdout, stderr


def test_the_recipe_is_printed_and_saved_with_all_that_was_not_said(finished: tuple[Path, str, str]) -> None:
    folder, _, stderr = finished
    recipe = resolve(notation="4H-64V", steps=20, batch=8, lr=0.01, validate=10)
    assert resolve(**read(folder / "recipe.toml")) == recipe
    assert stderr.startswith(f"{recipe.toml()}# ")


def test_the_score_and_the_page_are_printed(finished: tuple[Path, str, str]) -> None:
    folder, stdout, _ = finished
    score, page = stdout.splitlines()
    likelihood, loose = score.split(". ")
    number = r"\d+\.\d"
    expected = rf"test NLL {number}\d ± {number}\d \(3 samples, mean effective sample size {number}, {number} s\)"
    assert re.fullmatch(expected, likelihood)
    assert loose == "The NLL would fall with more samples: the mean effective sample size is below 10."
    assert page == str(folder / "report.html")


def test_without_a_terminal_there_are_lines(finished: tuple[Path, str, str]) -> None:
    lines = [line for line in finished[2].splitlines() if line.startswith("step ")]
    number = r"[+-]?\d+\.\d\d"
    pattern = rf"step 20 of 20  \d+/s  bound {number}  discrete {number}  gap {number}  "
    assert len(lines) == 2
    assert re.fullmatch(pattern + rf"validation NLL {number}, best {number}", lines[-1])


def test_everything_that_a_run_leaves_is_there_and_opens(finished: tuple[Path, str, str]) -> None:
    folder = finished[0]
    record = json.loads((folder / "record.json").read_text())
    assert set(KEYS) < set(record)
    assert record["metrics"]["test_nll"].keys() >= {"value", "standard_error", "samples", "seconds"}
    with (folder / "curve.csv").open(newline="") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["10", "20"]
    for name in ("samples", "reconstructions", "curve"):
        assert (folder / f"{name}.png").read_bytes().startswith(PNG)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "4H-64V" in page
    assert page.count("data:image/png;base64,") + page.count("<svg") >= 3
    assert restored(folder)[0].finished


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what tensorboard imports
def test_event_files_are_there_and_can_be_read(finished: tuple[Path, str, str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished[0] / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"objective", "discrete", "gap", "valid", "lr", "temperature"}
    rows = restored(finished[0])[0].rows
    assert [event.step for event in events.Scalars("objective")] == [10, 20]
    assert [event.value for event in events.Scalars("objective")] == pytest.approx([row.objective for row in rows])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what tensorboard imports
def test_a_run_that_goes_on_goes_on_with_its_event_files(finished: tuple[Path, str, str], tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = copytree(finished[0], tmp_path / "run")
    assert call("train", "--resume", str(folder), "--steps", "40", "--score-samples", "1")[0] == 0
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("objective")] == [row.step for row in restored(folder)[0].rows]


def test_structured_prediction_leaves_completions(tmp_path: Path) -> None:
    code, _, stderr = call(
        "train", "32V-4H-32V", "--steps", "3", "--score-samples", "2", "--out", str(tmp_path / "run")
    )
    assert code == 0, stderr
    assert (tmp_path / "run" / "completions.png").read_bytes().startswith(PNG)


@pytest.mark.usefixtures("unpictured")
def test_flags_go_before_the_file_and_the_file_before_the_paper(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('notation = "6H~64V"\nlr = 0.5\nbatch = 4\narity = 4\nsteps = 2\n')
    out = tmp_path / "run"
    options = ("--recipe", str(tmp_path / "mine.toml"), "--lr", "0.25", "--score-samples", "1", "--out", str(out))
    code, _, stderr = call("train", *options)
    assert code == 0, stderr
    recipe = resolve(**read(out / "recipe.toml"))
    assert (recipe.notation, recipe.lr, recipe.batch, recipe.temperature) == ("6H:4~64V", 0.25, 4, 1.0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["4H-64V", "--estimator", "vimcoo"], "unknown estimator 'vimcoo'; did you mean 'vimco'?"),
        (["4H-64X"], "notation must have H or V after the units, got 'X' at column 6\n4H-64X\n     ^"),
        (["--steps", "3"], "notation must be given, such as 200H~784V, got none"),
        (["4H-64V", "--lr", "-1"], "lr must be positive, got -1.0"),
        (["4H-64V", "--steps", "1.5"], "steps must be a whole number, got '1.5'"),
        (["4H-64V", "--data", "minst"], "data must be a data set name or the path of an .npz file, got 'minst'; "),
        (["4H-65V"], "data must have 65 bits for each point, like the model, got 64 in 'digits'"),
        (["4H-64V", "--device", "cude"], "device must be available to torch, such as "),
        (["4H-64V", "--checkpoint-seconds", "-1"], "checkpoint-seconds must not be negative, got -1.0"),
        (["4H-64V", "--checkpoint-seconds", "nan"], "checkpoint-seconds must not be negative, got nan"),
        (["4H-64V", "--score-samples", "0"], "score-samples must be at least 1, got 0"),
        (
            ["4H-64V", "--recipe", "none.toml"],
            "recipe must be fast or paper, or a file that can be read, got 'none.toml': ",
        ),
        (
            ["30H-64V", "--estimator", "exact", "--tensorboard"],
            "a graph must have at most 2^20 states to be enumerated, got 2^30 up to node 'h1'",
        ),
        (["--resume", "none"], "run must be the folder of a run, got 'none', which has no recipe.toml"),
    ],
)
def test_bad_input_gets_one_sentence_and_leaves_nothing(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, stdout, stderr = call("train", *arguments)
    assert (code, stdout) == (2, "")
    assert stderr.startswith(sentence)
    assert "Traceback" not in stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_a_run_is_not_trained_in_again(finished: tuple[Path, str, str]) -> None:
    folder = finished[0]
    code, stdout, stderr = call(*TINY, "--out", str(folder))
    assert (code, stdout) == (2, "")
    assert stderr == (
        f"{str(folder)!r} already holds a run: resume it with --resume, replace it with --overwrite, or choose another "
        "folder with --out\n"
    )


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("kept")
    code, _, stderr = call(*TINY, "--out", str(tmp_path / "taken"))
    assert code == 2
    assert stderr.splitlines()[-1].endswith(f"got {str(tmp_path / 'taken')!r}: File exists")


@pytest.mark.usefixtures("unpictured")
def test_a_finished_run_goes_on_for_more_steps(finished: tuple[Path, str, str], tmp_path: Path) -> None:
    longer = copytree(finished[0], tmp_path / "longer")
    code, _, stderr = call("train", "--resume", str(longer), "--steps", "30", "--score-samples", "2")
    assert code == 0, stderr
    options = ("--lr", "1/100", "--steps", "30", "--score-samples", "2", "--validate", "10")
    assert call(*TINY, *options, "--out", str(tmp_path / "straight"))[0] == 0
    assert same(longer, tmp_path / "straight")
    record = json.loads((longer / "record.json").read_text())
    best = restored(longer)[0].best
    assert best is not None
    assert record["step"] == best[0]
    assert record["recipe"]["steps"] == 30


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "19"], "steps must be at least 20, which the run has taken, got 19"),
        (["--lr", "1"], "a resumed run keeps its recipe except for steps and the path of its data, got lr"),
        (
            ["--steps", "30", "--seed", "1"],
            "a resumed run keeps its recipe except for steps and the path of its data, got ",
        ),
        (["5H-64V"], "a resumed run keeps its recipe except for steps and the path of its data, got notation"),
        (["--out", "x"], "a resumed run keeps its recipe except for steps and the path of its data, got out"),
    ],
)
def test_a_run_that_goes_on_keeps_its_recipe(
    arguments: list[str], sentence: str, finished: tuple[Path, str, str]
) -> None:
    before = (finished[0] / "recipe.toml").read_bytes()
    code, stdout, stderr = call("train", "--resume", str(finished[0]), *arguments)
    assert (code, stdout) == (2, "")
    assert sentence in stderr
    assert (finished[0] / "recipe.toml").read_bytes() == before


def test_a_changed_recipe_is_refused_with_the_key(finished: tuple[Path, str, str], tmp_path: Path) -> None:
    folder = copytree(finished[0], tmp_path / "changed")
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text(text.replace("batch = 8", "batch = 9"))
    code, _, stderr = call("train", "--resume", str(folder))
    assert code == 2
    assert stderr.endswith(
        "got other values of batch: restore them, or start a new run in another folder or with overwrite\n"
    )


def test_divergence_is_told_in_a_sentence(tmp_path: Path) -> None:
    code, stdout, stderr = call(*TINY, "--lr", "1e30", "--out", str(tmp_path / "run"))
    assert (code, stdout) == (1, "")
    way = r"start a new run with a smaller lr in another folder, such as by: concretely (.*)"
    told = re.search(rf"\n(training has diverged|the (gradient|parameters)) .*: {way}\n$", stderr)
    assert told
    command = shlex.split(told[3])
    assert command[3:5] == ["--lr", "1e+29"]
    command[4] = "1e-3"  # what is far too large needs more than one step down
    assert call(*command, "--steps", "2", "--score-samples", "1")[0] == 0
    assert resolve(**read(tmp_path / "run-lr1e+29" / "recipe.toml")).lr == 1e-3


@pytest.mark.slow
@pytest.mark.usefixtures("unpictured")
def test_an_interrupted_command_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder, options = tmp_path / "it's mine", ("--steps", "300", "--batch", "8", "--score-samples", "2")
    command = [sys.executable, "-m", "concretely", "train", "4H-64V", "--estimator", "vimco", *options]
    with subprocess.Popen([*command, "--out", str(folder)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("step "):
                process.send_signal(signal.SIGINT)
                break
        said += process.stderr.readlines()
    assert process.returncode == 130
    found = re.fullmatch(r"stopped after step (\d+) and saved; resume with: concretely (.*)\n", said[-1])
    assert found is not None
    assert 30 <= int(found[1]) < 300
    assert checkpoint.latest(folder).step == int(found[1])
    assert not (folder / "report.html").exists()
    assert found[2].endswith(" --score-samples 2")
    code, _, stderr = call(*shlex.split(found[2]))  # as a shell reads the sentence
    assert code == 0, stderr
    assert call("train", "4H-64V", "--estimator", "vimco", *options, "--out", str(tmp_path / "straight"))[0] == 0
    assert same(folder, tmp_path / "straight")
    assert (folder / "report.html").exists()


def rows() -> list[Row]:
    """Rows of a run that has looked at the validation set once."""
    values = {"lr": 0.1, "temperature": 0.5}
    return [
        Row(step=10, seconds=1.0, objective=-5.0, discrete=-6.0, valid=7.0, **values),
        Row(step=20, seconds=2.0, objective=-3.0, discrete=-5.0, **values),
    ]


def test_the_gap_between_the_relaxed_and_the_discrete_bound_is_shown_where_there_is_one() -> None:
    relaxed, discrete = (resolve(notation="4H-6V", estimator=name) for name in ("concrete", "reinforce"))
    assert describe_rows(relaxed, rows()) == "bound -4.00  discrete -5.50  gap +1.50  validation NLL 7.00, best 7.00"
    assert describe_rows(discrete, rows()[1:]) == "bound -3.00"
    scored = [replace(rows()[1], valid=score) for score in (math.nan, 7.0, math.nan)]
    assert describe_rows(discrete, scored[:1]) == "bound -3.00  validation NLL nan"
    assert describe_rows(discrete, scored) == "bound -3.00  validation NLL nan, best 7.00"


def test_the_loss_of_a_model_of_ones_own_has_the_sign_of_its_validation() -> None:
    shown = "loss 4.00  discrete 5.50  gap +1.50  validation 7.00, best 7.00"
    assert describe_rows(OwnRecipe(model="package.module:build"), rows()) == shown


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    pieces: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # which is how a terminal says that all writers are gone
            while piece := os.read(outer, 4096):
                pieces.append(piece)

    reader = Thread(target=read)
    reader.start()
    with os.fdopen(inner, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        with training_progress(resolve(notation="4H-6V", steps=20), console(err=True), None) as watch:
            watch.step(16)
            for row in rows():
                watch.mean_row(row)
            watch.note("a word [bold]")
    reader.join()
    os.close(outer)
    shown = b"".join(pieces).decode()
    assert "━" in shown
    assert "20/20" in shown
    assert "gap +1.50" in shown
    assert "a word [bold]" in shown


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_shows_the_step_and_the_loss(width: int) -> None:
    screen = StringIO()
    narrow = Console(file=screen, width=width, force_terminal=True, color_system=None)
    with training_progress(resolve(notation="4H-6V", steps=20_000), narrow, None) as watch:
        for row in rows():
            watch.mean_row(replace(row, valid=27.11))
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()).split()
    assert "20/20000" in shown
    assert {"bound", "-4.00"} <= set(shown)


@pytest.mark.parametrize("raised", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_what_does_not_fit_into_memory_is_refused_in_a_sentence(
    raised: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trainer: TrainState) -> float:
        raise raised

    monkeypatch.setattr(TrainState, "dry_run", fail)
    found = call("train", "4H-64V", "--out", str(tmp_path / "run"))
    assert found == (2, "", "this does not fit into memory: lower samples, batch or chunk\n")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "save", fail)
    folder = tmp_path / "run"
    code, _, stderr = call("train", "4H-64V", "--steps", "5", "--out", str(folder))
    way = f"free some space, then resume with: concretely train --resume {folder}"
    assert (code, stderr.splitlines()[-1]) == (
        2,
        f"{str(folder)!r} cannot be written to: No space left on device; {way}",
    )


def test_who_interrupts_the_scoring_is_told_that_the_model_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scoring, "evaluate", interrupt)
    folder = tmp_path / "run"
    code, _, stderr = call("train", "4H-64V", "--steps", "5", "--out", str(folder))
    assert code == 130
    assert stderr.splitlines()[-1].endswith(f"but not scored; score it with: concretely evaluate {folder}")
    assert (folder / "model.safetensors").exists()


def test_who_interrupts_before_the_data_are_there_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "load_data", interrupt)
    found = call("train", "4H-64V", "--out", str(tmp_path / "run"))
    assert found == (130, "", "stopped before the data were complete; downloaded files are kept\n")
