"""Flags that share work among processes, place it on Ray, or stop members early."""

import sys
from pathlib import Path

import pytest

from concretely import file

from .command import call, lines

pytestmark = pytest.mark.usefixtures("unpictured")

SWEEP = ("sweep", "6H-64V", "--steps", "8", "--score-samples", "2", "--lr", "1e-3,3e-2", "--weight-decay", "0")
LIST = ("train", "4H-64V", "--steps", "8", "--batch", "8", "--score-samples", "2", "--seed", "0..1")


def test_a_shared_sweep_is_printed_like_another(tmp_path: Path, trained: list[Path]) -> None:
    command = (*SWEEP, "--out", str(tmp_path / "out"))
    code, stdout, stderr = call(*command, "--share", "--members-per-program", "2")
    assert code == 0, stderr
    assert "2 members of 6H-64V as one program" in stderr
    assert call(*command)[1] == stdout
    assert len(trained) == 2


def test_a_shared_list_is_printed_like_another(tmp_path: Path, trained: list[Path]) -> None:
    code, stdout, stderr = call(*LIST, "--share", "--out", str(tmp_path))
    assert code == 0, stderr
    assert (tmp_path / "seed=1" / "report.html").exists()
    assert call(*LIST, "--out", str(tmp_path))[1] == stdout
    assert len(trained) == 2


@pytest.mark.usefixtures("tables")
def test_a_shared_table_selects_like_another(trained: list[Path]) -> None:
    command = ("reproduce", "tiny", "--rows", "linear", "--samples", "1", "--lr", "1e-3,1e-2", "--steps", "4")
    code, stdout, stderr = call(*command, "--share")
    assert code == 0, stderr
    assert len(lines(stdout)) == 2
    assert "is the best of 2 for" in stdout
    assert len(trained) == 4
    assert call(*command) == (0, stdout, "")


def test_a_halved_sweep_says_what_it_saved_before_the_path(tmp_path: Path) -> None:
    code, stdout, _ = call(*SWEEP, "--halving", "2", "--out", str(tmp_path))
    assert code == 0
    saved = "halving has stopped 1 of 2 members early, which saved 4 of 16 steps, 25%"
    assert stdout.splitlines()[-2:] == [saved, str(tmp_path / "best.toml")]
    assert [line.split()[-1] for line in stdout.splitlines() if "±" in line][:2] == ["best", "stopped"]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ((*SWEEP, "--halving", "1"), "halving must be at least 2, the factor by which the members are reduced, got 1"),
        ((*SWEEP, "--halving", "3"), "halving must be at most the number of members, 2, got 3"),
        ((*SWEEP, "--share", "--on", "ray"), "share must be left out with --on ray, which places all members itself"),
        ((*SWEEP, "--on", "rey"), "unknown place 'rey'; did you mean 'ray'?"),
        ((*SWEEP, "--address", "auto"), "address must be left out without --on ray, got 'auto'"),
        ((*SWEEP, "--programs-per-gpu", "2"), "programs-per-gpu must be left out without --on ray, got 2"),
        ((*SWEEP, "--members-per-program", "0"), "members-per-program must be at least 1, got 0"),
        (
            (*SWEEP, "--members-per-program", "2"),
            "members-per-program must be left out without --share or --on ray, got 2",
        ),
        (
            (*LIST, "--share", "--overwrite"),
            "overwrite must be left out with --share, as it would delete what other processes train",
        ),
        (
            (*LIST[:-1], "0", "--share"),
            "share must be left out for a single run, which one process trains: pass a list such as --seed 0..7",
        ),
        (
            ("reproduce", "table-1", "--on", "ray", "--programs", "2"),
            "programs must be left out with --on ray, which has programs-per-gpu instead, got 2",
        ),
        (
            ("reproduce", "table-1", "--share", "--dry-run"),
            "share must be left out for --dry-run, which needs no training, got True",
        ),
        (("reproduce", "simplex", "--share"), "share must be left out for simplex, which needs no training, got True"),
        (("reproduce", "--share"), "name must be given with share, such as table-1, got none"),
    ],
)
def test_flags_that_contradict_each_other_get_one_sentence(
    command: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    code, stdout, stderr = call(*command, "--out", str(tmp_path / "out"))
    assert (code, stdout, stderr) == (2, "", f"{sentence}\n")
    assert not (tmp_path / "out").exists()


def test_a_missing_ray_gets_one_sentence_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, stdout, stderr = call(*SWEEP, "--on", "ray", "--out", str(tmp_path / "out"))
    assert (code, stdout) == (2, "")
    assert stderr.startswith("ray is not installed: ")
    assert stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_system_without_locks_gets_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "fcntl", None)
    code, _, stderr = call(*SWEEP, "--share", "--out", str(tmp_path / "out"))
    kinds = "such as NFSv4, or Lustre that is mounted with flock"
    sentence = f"{str(tmp_path / 'out')!r} must be on a file system with locks, {kinds}, got one without"
    assert (code, stderr.splitlines()[-1]) == (2, sentence)
