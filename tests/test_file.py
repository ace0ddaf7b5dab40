"""A file is whole or not there, and a folder has one process that works in it."""

import errno
import os
import re
import socket
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from concretely import file, mount
from concretely.file import atomic_write, exclusive_dir, file_lock, open_append, read_bytes, write_text


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


def test_locking_leaves_what_others_are_writing(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "note.txt") as place:
        place.write_text("whole")
        with exclusive_dir(tmp_path):
            assert place.read_text() == "whole"
    assert names(tmp_path) == [".lock", "note.txt"]


def test_a_draft_that_is_taken_for_a_leftover_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, try_lock = list[Path](), file._try_lock

    def overtaken(folder: Path) -> Any:
        made.append(folder)
        if len(made) == 1:
            folder.rmdir()
        return try_lock(folder)

    monkeypatch.setattr(file, "_try_lock", overtaken)
    write_text(tmp_path / "note.txt", "whole")
    assert len(set(made)) == 2
    assert names(tmp_path) == ["note.txt"]


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


def test_the_lock_file_stays_the_same_on_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / {tmp_path} rw,relatime - nfs4 server:/ rw,vers=4.2,local_lock=none\n")
    monkeypatch.setattr(mount, "MOUNTS", mounts)
    files = set[int]()
    for _ in range(3):
        with file_lock(tmp_path / "lock"):
            assert (tmp_path / "lock").read_bytes() == b""
        files.add((tmp_path / "lock").stat().st_ino)
    assert len(files) == 1


@pytest.mark.parametrize("call", ["fstat", "flock", "read"])
def test_a_file_that_another_machine_has_replaced_on_nfs_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    fcntl, calls = pytest.importorskip("fcntl"), 0

    def stale(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError(errno.ESTALE, "Stale file handle")
        return kept(*given)

    write_text(tmp_path / "note.txt", "whole")
    module, name = (fcntl, call) if call == "flock" else (os, "fstat")
    kept = getattr(module, name)
    monkeypatch.setattr(module, name, stale)
    if call == "read":
        assert read_bytes(tmp_path / "note.txt") == b"whole"
        assert calls > 1
        return
    with file_lock(tmp_path / "lock"), file.try_file_lock(tmp_path / "lock") as is_free:
        assert not is_free
    assert calls > 2


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


def irregular(path: Path, kind: str) -> None:
    """Put something else than a regular file at a path."""
    match kind:
        case "link":
            path.with_name("mine.txt").write_text("mine")
            path.symlink_to(path.with_name("mine.txt"))
        case "dangling link":
            path.symlink_to(path.with_name("nowhere"))
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as server, chdir(path.parent):  # a socket has a short name
                server.bind(path.name)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()


KINDS = ("link", "dangling link", "pipe", "socket", "device", "folder")


@pytest.mark.skipif(os.name != "posix", reason="there are no such files elsewhere")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lock", [lambda path: exclusive_dir(path.parent), file_lock])
def test_a_lock_is_a_regular_file_or_refused_at_once(tmp_path: Path, kind: str, lock: Any) -> None:
    irregular(tmp_path / ".lock", kind)
    sentence = f"a lock must be a regular file, got a link or something else at {str(tmp_path / '.lock')!r}: remove it"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"), lock(tmp_path / ".lock"):
        pass
    assert not (tmp_path / "nowhere").exists()
    assert kind != "link" or (tmp_path / "mine.txt").read_text() == "mine"


def test_a_lock_keeps_the_content_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / ".lock").hardlink_to(tmp_path / "mine.txt")
    with exclusive_dir(tmp_path), file_lock(tmp_path / "other"):
        pass
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.skipif(os.name != "posix", reason="there are no such files elsewhere")
@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_read_and_none_is_waited_for(tmp_path: Path, kind: str) -> None:
    irregular(tmp_path / "note", kind)
    if kind == "link":
        assert read_bytes(tmp_path / "note", most=4) == b"mine"
        return
    with pytest.raises(OSError, match=r"not a regular file|No such|Is a directory"):
        read_bytes(tmp_path / "note", most=4)


def test_a_file_above_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "note").write_bytes(b"whole")
    assert read_bytes(tmp_path / "note", most=5) == b"whole"
    with pytest.raises(ValueError, match=r"must have at most 4 bytes, got more$"):
        read_bytes(tmp_path / "note", most=4)


def test_a_failed_write_names_the_file_and_not_the_draft(tmp_path: Path) -> None:
    (tmp_path / "note.txt").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_text(tmp_path / "note.txt", "whole")
    assert caught.value.filename == str(tmp_path / "note.txt")


def test_appending_follows_no_link(tmp_path: Path) -> None:
    irregular(tmp_path / "note", "link")
    with pytest.raises(OSError, match=r"Too many levels|symbolic"), open_append(tmp_path / "note"):
        pass
    assert (tmp_path / "mine.txt").read_text() == "mine"
