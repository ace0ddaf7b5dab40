"""A file is whole or not there, and a folder has one process that works in it."""

import errno
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from concretely import file
from concretely.file import atomic_write, exclusive_dir, file_lock


def names(folder: Path) -> list[str]:
    """What a folder holds."""
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_only_once_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    path.write_text("old")
    with atomic_write(path) as place:
        place.write_text("new")
        assert path.read_text() == "old"
        assert place.parent.parent == tmp_path
    assert path.read_text() == "new"
    assert names(tmp_path) == ["note.txt"]


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("old")
    for name in ("note.txt", "other.txt"):
        with pytest.raises(TypeError), atomic_write(tmp_path / name) as place, place.open("w") as file:
            file.writelines(["ne", None])
    assert names(tmp_path) == ["note.txt"]
    assert (tmp_path / "note.txt").read_text() == "old"


def test_writing_nothing_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("old")
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "note.txt"):
        pass
    assert (tmp_path / "note.txt").read_text() == "old"


def test_a_directory_is_locked_by_one_process_at_a_time(tmp_path: Path) -> None:
    sentence = f"{str(tmp_path)!r} is in use by another process: wait for it, or choose another folder"
    for _ in range(2):
        with (
            exclusive_dir(tmp_path),
            pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"),
            exclusive_dir(tmp_path),
        ):
            pass


def test_an_error_releases_the_directory(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^halfway$"), exclusive_dir(tmp_path):
        raise RuntimeError("halfway")
    with exclusive_dir(tmp_path):
        pass


def test_locking_removes_what_dead_processes_left_and_nothing_else(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "note.txt") as place:
        place.write_text("whole")
    place.parent.mkdir()  # as if the process had died meanwhile
    place.write_text("half")
    (tmp_path / "my.draft").write_text("mine")
    (tmp_path / ".note-abcdefgh.draft").write_text("mine, of a name that a draft could have")
    for name in (".hidden", ".my.draft", ".my-plot.draft", ".my-DRAWINGS.draft", "-abcdefgh.draft"):
        (tmp_path / name).mkdir()
    (tmp_path / ".link-abcdefgh.draft").symlink_to(tmp_path / ".hidden")
    mine = {*names(tmp_path)} - {place.parent.name}
    with exclusive_dir(tmp_path):
        assert {*names(tmp_path)} == mine | {".lock"}


def test_errors_inside_the_lock_are_raised(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match=r"^a pipe$"), exclusive_dir(tmp_path):
        raise BlockingIOError("a pipe")


def test_the_lock_file_is_empty_and_removed_on_release(tmp_path: Path) -> None:
    for _ in range(2):
        with file_lock(tmp_path / "lock"):
            assert (tmp_path / "lock").read_bytes() == b""
        assert names(tmp_path) == []
    with pytest.raises(RuntimeError, match=r"^halfway$"), file_lock(tmp_path / "lock"):
        raise RuntimeError("halfway")
    assert names(tmp_path) == []


def no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize("locks", [None, SimpleNamespace(flock=no_locks, LOCK_EX=2, LOCK_NB=4)])
def test_without_file_locks_nothing_waits_and_nothing_is_removed(
    tmp_path: Path, locks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "fcntl", locks)
    for _ in range(2):
        with (
            exclusive_dir(tmp_path),
            exclusive_dir(tmp_path),
            atomic_write(tmp_path / "note.txt") as place,
            exclusive_dir(tmp_path),
        ):
            place.write_text("whole")
        with file_lock(tmp_path / "lock"):
            assert (tmp_path / "lock").exists() == (locks is not None)
            with file_lock(tmp_path / "lock"):
                pass
    assert {*names(tmp_path)} - {".lock"} == {"note.txt"}
