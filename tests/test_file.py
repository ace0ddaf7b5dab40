"""A file is whole or not there, and a folder has one process that works in it."""

import errno
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from concretely import file
from concretely.file import alone, claimed, draft


def names(folder: Path) -> list[str]:
    """What a folder holds."""
    return sorted(path.name for path in folder.iterdir())


def test_a_draft_takes_the_place_of_its_file_only_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    path.write_text("old")
    with draft(path) as place:
        place.write_text("new")
        assert path.read_text() == "old"
        assert place.parent.parent == tmp_path
    assert path.read_text() == "new"
    assert names(tmp_path) == ["note.txt"]


def test_a_draft_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("old")
    for name in ("note.txt", "other.txt"):
        with pytest.raises(TypeError), draft(tmp_path / name) as place, place.open("w") as file:
            file.writelines(["ne", None])
    assert names(tmp_path) == ["note.txt"]
    assert (tmp_path / "note.txt").read_text() == "old"


def test_a_draft_that_was_never_written_is_an_error_and_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("old")
    with pytest.raises(FileNotFoundError), draft(tmp_path / "note.txt"):
        pass
    assert (tmp_path / "note.txt").read_text() == "old"


def test_a_folder_is_claimed_by_one_at_a_time(tmp_path: Path) -> None:
    sentence = f"{str(tmp_path)!r} is being worked in by another process: wait for it, or choose another folder"
    for _ in range(2):
        with claimed(tmp_path), pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"), claimed(tmp_path):
            pass


def test_a_claim_ends_with_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^halfway$"), claimed(tmp_path):
        raise RuntimeError("halfway")
    with claimed(tmp_path):
        pass


def test_a_claim_clears_away_the_drafts_of_the_dead_and_nothing_else(tmp_path: Path) -> None:
    with draft(tmp_path / "note.txt") as place:
        place.write_text("whole")
    place.parent.mkdir()  # as if the process had died meanwhile
    place.write_text("half")
    (tmp_path / "my.draft").write_text("mine")
    (tmp_path / ".note-abcdefgh.draft").write_text("mine, of a name that a draft could have")
    for name in (".hidden", ".my.draft", ".my-plot.draft", ".my-DRAWINGS.draft", "-abcdefgh.draft"):
        (tmp_path / name).mkdir()
    (tmp_path / ".link-abcdefgh.draft").symlink_to(tmp_path / ".hidden")
    mine = {*names(tmp_path)} - {place.parent.name}
    with claimed(tmp_path):
        assert {*names(tmp_path)} == mine | {".lock"}


def test_a_claim_lets_errors_of_its_work_through(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match=r"^a pipe$"), claimed(tmp_path):
        raise BlockingIOError("a pipe")


def test_a_path_is_empty_and_there_while_one_is_alone_at_it(tmp_path: Path) -> None:
    for _ in range(2):
        with alone(tmp_path / "lock"):
            assert (tmp_path / "lock").read_bytes() == b""
        assert names(tmp_path) == []
    with pytest.raises(RuntimeError, match=r"^halfway$"), alone(tmp_path / "lock"):
        raise RuntimeError("halfway")
    assert names(tmp_path) == []


def refusing(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize("locks", [None, SimpleNamespace(flock=refusing, LOCK_EX=2, LOCK_NB=4)])
def test_where_files_cannot_be_locked_nobody_waits_and_nothing_is_cleared_away(
    tmp_path: Path, locks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "fcntl", locks)
    for _ in range(2):
        with claimed(tmp_path), claimed(tmp_path), draft(tmp_path / "note.txt") as place, claimed(tmp_path):
            place.write_text("whole")
        with alone(tmp_path / "lock"):
            assert (tmp_path / "lock").exists() == (locks is not None)
            with alone(tmp_path / "lock"):
                pass
    assert {*names(tmp_path)} - {".lock"} == {"note.txt"}
