"""Whatever the surroundings of the command are, it says one sentence, and what was trained is safe."""

import errno
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concretely.cli import terminal
from concretely.experiment.record import read_record, write_record
from concretely.training.folder import restored

from .command import call

pytestmark = pytest.mark.usefixtures("unpictured")

NOBODY = 65_534
TINY = ("train", "4H-64V", "--steps", "3", "--batch", "4", "--score-samples", "1")
LIST = (*TINY, "--seed", "0,1")
SWEEP = ("sweep", "4H-64V", "--steps", "3", "--lr", "1e-3", "--weight-decay", "0")


def sentence_of(*arguments: str, code: int = 2) -> str:
    """The sentence with which the command ends."""
    found, stdout, stderr = call(*arguments)
    assert (found, stdout) == (code, ""), stderr
    assert stderr.endswith("\n")
    return stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("out", (*TINY, "--out", "")),
        ("out", (*LIST, "--out", "")),
        ("out", (*SWEEP, "--out", "")),
        ("resume", ("train", "--resume", "")),
        ("run", ("evaluate", "")),
        ("run", ("compare", "")),
        ("run", ("sample", "")),
        ("out", ("study", "4H-64V", "--out", "")),
        ("out", ("figure", "binary", "--out", "")),
        ("out", ("reproduce", "binary", "--out", "")),
        ("records", ("reproduce", "--report", "--records", "")),
    ],
)
def test_an_empty_path_is_refused(
    name: str, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence_of(*command) == f"{name} must be the path of a folder, got ''"
    assert not list(tmp_path.iterdir())


WRITING: list[tuple[str, ...]] = [TINY, LIST, SWEEP, ("figure", "binary")]
LONG = "x" * 300


@pytest.mark.parametrize("command", WRITING, ids=[" ".join(words[:2]) for words in WRITING])
def test_a_name_that_is_too_long_gets_a_sentence(command: tuple[str, ...], tmp_path: Path) -> None:
    assert "File name too long" in sentence_of(*command, "--out", str(tmp_path / LONG))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [("compare",), ("evaluate",), ("sample",), ("train", "--resume")])
def test_a_run_whose_name_is_too_long_gets_a_sentence(command: tuple[str, ...], tmp_path: Path) -> None:
    sentence = sentence_of(*command, str(tmp_path / LONG))
    assert sentence.endswith("cannot be read or written: File name too long; choose a shorter name")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Act as a user without rights, if the tests run as root."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what the command needs, as another user may not be able to read it."""
    call("figure", "binary", "--out", str(tmp_path_factory.mktemp("figure")))


@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize(
    "command", [*((*words, "--out") for words in WRITING), ("compare",), ("train", "--resume"), ("evaluate",)]
)
def test_a_folder_of_another_user_gets_a_sentence(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o000)
    with as_nobody():
        if os.access(tmp_path / "theirs", os.X_OK, effective_ids=True):
            pytest.skip("this user may read everything")
        sentence = sentence_of(*command, str(tmp_path / "theirs" / "run"))
    assert "Permission denied" in sentence
    (tmp_path / "theirs").chmod(0o700)
    assert not list((tmp_path / "theirs").iterdir())


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """No room for the file of one name."""
    write = Path.write_bytes, Path.write_text

    def fail(own: Callable[..., Any]) -> Callable[..., Any]:
        def written(path: Path, *content: Any, **options: Any) -> Any:
            if path.name == name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return own(path, *content, **options)

        return written

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fail(write[0]))
        patch.setattr(Path, "write_text", fail(write[1]))
        yield


@pytest.mark.parametrize("name", ["record.json", "curve.png", "report.html"])
def test_a_full_disk_is_told_with_the_file_and_the_way_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a run"
    with full_disk(monkeypatch, name):
        code, stdout, stderr = call(*TINY, "--out", str(folder))
    assert (code, stdout.startswith("test NLL ")) == (2, True)
    full = f"{str(folder / name)!r} cannot be read or written: No space left on device"
    way = f"the model is trained and saved; write its report with: concretely evaluate '{folder}'"
    assert stderr.splitlines()[-1] == f"{full}; free some space, then run the command again; {way}"
    with full_disk(monkeypatch, name):
        code, _, stderr = call("evaluate", str(folder), "--samples", "1")
    assert (code, stderr.splitlines()[-1]) == (2, f"{full}; free some space, then run the command again")
    assert call("evaluate", str(folder), "--samples", "1")[0] == 0
    assert (folder / name).exists()


def test_one_changed_digit_is_refused_and_made_again(run: Path) -> None:
    assert call("evaluate", str(run), "--samples", "20")[0] == 0
    sound = read_record(run / "record.json")
    text = (run / "record.json").read_text()
    value = repr(sound["metrics"]["test_nll"]["value"])
    (run / "record.json").write_text(text.replace(value, value.replace(value[0], "1", 1)))
    place = repr(str(run / "record.json"))
    assert sentence_of("compare", str(run)) == (
        f"a record must be as it was written, got changes since then in {place}: make it again with: "
        f"concretely evaluate {run}"
    )
    code, _, stderr = call("evaluate", str(run), "--samples", "20")
    assert code == 0
    assert f"the record {place} is damaged or was changed: it is kept as record.json.damaged" in stderr
    again = read_record(run / "record.json")
    assert again["metrics"]["test_nll"]["value"] == sound["metrics"]["test_nll"]["value"]
    assert call("compare", str(run))[0] == 0


def test_what_a_record_holds_is_shown_as_text(run: Path) -> None:
    assert call("evaluate", str(run), "--samples", "2")[0] == 0
    record = read_record(run / "record.json")
    for data in ("[bold].npz", "[/foo]", "a\x1b[31mred\x07.npz", "a\x9b31m", "λ.npz", "[link=http://x]y[/link]"):
        record["recipe"]["data"] = data
        write_record(run / "record.json", record)
        code, stdout, stderr = call("compare", str(run), str(run))
        assert (code, stderr) == (0, "")
        assert stdout.count(data.replace("\x1b", r"\x1b").replace("\x07", r"\x07").replace("\x9b", r"\x9b")) == 3
        assert all(character.isprintable() for character in stdout.replace("\n", ""))


def test_data_of_a_strange_name_are_shown_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    points = np.random.default_rng(0).integers(0, 2, (30, 64)).astype(np.uint8)
    np.savez(tmp_path / "[bold]\x1b[7m.npz", train=points, test=points[:5])
    code, stdout, stderr = call(*LIST, "--data", "[bold]\x1b[7m.npz")
    assert code == 0, stderr
    assert stdout.count(r"[bold]\x1b[7m.npz") == 3
    assert "\x1b[7m" not in stdout + stderr
    assert r"'[bold]\x1b[7m.npz', bits" in stderr


def test_a_large_array_is_refused_until_the_limit_is_raised(tmp_path: Path) -> None:
    points = np.zeros((40, 64))
    points[::2] = 1
    np.savez_compressed(tmp_path / "own.npz", train=points, test=points[:8])
    size = 48 * 64 * 8
    data = ("--data", str(tmp_path / "own.npz"))
    for command in (TINY, LIST, SWEEP, ("study", "4H-64V", "--repeats", "2")):
        out = ("--out", str(tmp_path / "out" / command[0] / str(len(command))))
        sentence = sentence_of(*command, *data, *out, "--max-bytes", str(size - 1))
        assert sentence.startswith(f"arrays of {data[1]!r} must have at most {size - 1:,} bytes, got {size:,}: raise")
        assert call(*command, *data, *out, "--max-bytes", str(size))[0] == 0
    run = str(tmp_path / "out" / "train" / str(len(TINY)))
    for verb in ("evaluate", "sample"):
        assert f"at most {size - 1:,} bytes" in sentence_of(verb, run, "--max-bytes", str(size - 1))
    assert sentence_of(*TINY, "--max-bytes", "0") == "max-bytes must be at least 1, got 0"


@pytest.mark.parametrize("name", [".lock", ".record.json.lock"])
def test_a_lock_that_is_a_link_empties_nothing(run: Path, name: str, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "precious")
    command = ("train", "--resume", str(run), "--steps", "31") if name == ".lock" else ("evaluate", str(run))
    code, _, stderr = call(*command, *(["--samples", "1"] if name != ".lock" else []))
    where = repr(str(run / name))
    assert (code, stderr.splitlines()[-1]) == (
        2,
        f"a lock must be a regular file, got a link or something else at {where}: remove it",
    )
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["record.json", ".record.json.lock", "checkpoint-000000030.json", "recipe.toml"])
def test_a_pipe_is_not_waited_for(run: Path, name: str) -> None:
    call("evaluate", str(run), "--samples", "1")
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    started = time.monotonic()
    assert sentence_of("compare", str(run)) if name == "record.json" else True
    code, _, stderr = call("evaluate", str(run), "--samples", "1")
    assert (code == 0) == (name == "record.json"), stderr  # a record is made again
    assert time.monotonic() - started < 20


def test_events_are_not_written_through_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (run / "tensorboard").symlink_to(tmp_path / "elsewhere")
    sentence = sentence_of("train", "--resume", str(run), "--steps", "31")
    assert sentence.startswith("events must be written into the folder of the run, got a link ")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_signal_of_a_closing_terminal_asks_to_stop() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with terminal.stop_requested() as stop:
                assert not stop()
                os.kill(os.getpid(), number)
                assert stop()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        with terminal.stop_requested() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_a_closed_terminal_saves_the_run(tmp_path: Path) -> None:
    folder, command = tmp_path / "run", [sys.executable, "-m", "concretely", *TINY[:2], "--steps", "50000"]
    child, descriptor = pty.fork()
    if not child:
        os.execv(sys.executable, [*command, "--batch", "4", "--out", str(folder)])
    shown = b""
    while b"/s bound" not in re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown):
        shown += os.read(descriptor, 4096)
    os.close(descriptor)  # as when a connection is lost
    assert os.waitpid(child, 0)[1] != 0
    assert restored(folder)[0].step > 0


@pytest.mark.slow
def test_plain_text_is_printed_where_the_encoding_has_no_other(run: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    program = [sys.executable, "-m", "concretely"]
    done = subprocess.run(
        [*program, "evaluate", str(run), "--samples", "2"], capture_output=True, env=environment, check=True
    )
    assert re.match(rb"test NLL [0-9.]+ \+/- [0-9.]+ \(", done.stdout)
    done = subprocess.run([*program, "compare", str(run)], capture_output=True, env=environment, check=True)
    assert b" +/- " in done.stdout
    assert done.stderr == b""


@pytest.mark.slow
@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_its_packages_the_command_names_what_installs_them(package: str, tmp_path: Path) -> None:
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('no', name={package!r})")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    program = [sys.executable, "-m", "concretely", "--help"]
    done = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    start = f"the command needs {package}, which is not installed: {sys.executable} -m pip install "
    assert done.stderr.startswith(start)
    assert done.stderr.count("\n") == 1
    for each in ("typer", "rich", "matplotlib", "jinja2", "platformdirs", "scikit-learn", "scipy"):
        assert re.search(rf"[ ']{each}>=[0-9.]+'", done.stderr)


def test_json_is_plain(run: Path) -> None:
    code, stdout, _ = call("evaluate", str(run), "--samples", "1", "--json")
    assert code == 0
    assert stdout.isascii()
    assert json.loads(stdout)["samples"] == 1
