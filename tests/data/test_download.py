"""Whatever goes wrong, a download is whole and right or not there, and the next one succeeds."""

import hashlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from concretely.data import download
from concretely.data.download import DownloadError, fetch
from tests.data import server as behaviour
from tests.data.disk import largest_file
from tests.data.server import Server

CONTENT = bytes(range(256)) * 400
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
SIZE = len(CONTENT)
LIMIT = 3 * SIZE
"""The upper limit of a file whose size is not known."""
MANUAL = "fetch it by hand"


@pytest.fixture
def path(folder: Path, server: Server) -> Path:
    server.files["file.bin"] = CONTENT
    return folder / "file.bin"


def part_of(path: Path) -> Path:
    return path.with_name("file.bin.part")


def get(server: Server, path: Path, *, digest: str = SHA256, size: int | None = SIZE, progress: bool = False) -> None:
    bounds: dict[str, Any] = {"size": LIMIT, "exact": False} if size is None else {"size": size}
    fetch(server.url + "some/file.bin", path, digest=digest, **bounds, manual=MANUAL, progress=progress)


def refusal(server: Server, path: Path, *, size: int | None = SIZE) -> str:
    """What is said of a download that fails, of which nothing may have the name of the file."""
    with pytest.raises(DownloadError) as caught:
        get(server, path, size=size)
    assert not path.exists()
    sentence = str(caught.value)
    assert sentence.startswith("'file.bin' could not be downloaded: ")
    assert sentence.endswith(f"; try again, or {MANUAL}")
    return sentence


def assert_downloaded(path: Path) -> None:
    """The file is there and right, and nothing else is."""
    assert path.read_bytes() == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["file.bin"]


@pytest.mark.parametrize("digest", [SHA256, MD5])
@pytest.mark.parametrize("size", [SIZE, None])
def test_file_is_downloaded_once(server: Server, path: Path, digest: str, size: int | None) -> None:
    for _ in range(2):
        get(server, path, digest=digest, size=size)
        assert_downloaded(path)
    assert server.asked == [("file.bin", None)]


CUT = 3 * SIZE // 5
FAILURES: list[tuple[str, Callable[[Server], behaviour.Behaviour], int | None, str, Any]] = [
    ("cut", lambda _: behaviour.cut, SIZE, f"the connection was cut after {CUT} of {SIZE} bytes", CUT),
    ("cut, size unknown", lambda _: behaviour.cut, None, f"the connection was cut after {CUT} of {SIZE} bytes", CUT),
    ("cut in chunks", lambda _: behaviour.cut_in_chunks, None, "the connection was cut (IncompleteRead(0 bytes", CUT),
    ("silence", lambda server: behaviour.silent(server, after=0.0), SIZE, "(timed out)", None),
    ("silence midway", lambda server: behaviour.silent(server, after=0.5), SIZE, "cut (timed out)", SIZE // 2),
    ("hanging up", lambda _: behaviour.hanging_up, SIZE, "could not connect to http://127.0.0.1", None),
    ("404", lambda _: behaviour.status(404), SIZE, "the server answered 404 Not Found", None),
    ("500", lambda _: behaviour.status(500), SIZE, "the server answered 500 Internal Server Error", None),
    ("416 for nothing", lambda _: behaviour.status(416), SIZE, "the server answered 416", None),
    ("login", lambda _: behaviour.login_page, SIZE, f"the server has 20 bytes for it instead of {SIZE}", None),
    ("login, size unknown", lambda _: behaviour.login_page, None, f"must have the {SHA256.replace(':', ' ')}", None),
    ("other content", lambda _: behaviour.other_content, SIZE, f"must have the {SHA256.replace(':', ' ')}", None),
    ("endless", behaviour.endless, SIZE, f"the server sends more than {SIZE} bytes for it", None),
    ("endless, size unknown", behaviour.endless, None, f"the server sends more than {LIMIT} bytes for it", None),
    ("too much", lambda _: behaviour.saying(10**30), None, f"instead of at most {LIMIT}", None),
    ("dripping", behaviour.dripping, SIZE, "it was not complete after 0 seconds; what has arrived is kept", ...),
    ("dripping headers", behaviour.dripping_headers, SIZE, "it was not complete after 0 seconds", None),
    ("endless 100", behaviour.continuing, SIZE, "it was not complete after 0 seconds", None),
    ("another range", lambda _: behaviour.from_elsewhere, SIZE, "the server answers with another range of bytes", None),
    ("escapes", lambda _: behaviour.escaping, SIZE, r"the server answered 404 \x1b[31mred\x07", None),
    ("redirected", lambda _: behaviour.redirecting("http://[::1"), SIZE, "could not connect to", None),
    ("redirected to a file", lambda _: behaviour.redirecting("file:///etc/passwd"), SIZE, "answered 302", None),
]


@pytest.mark.parametrize(("name", "fail", "size", "why", "kept"), FAILURES, ids=[name for name, *_ in FAILURES])
def test_failure_is_told_and_the_next_call_succeeds(
    server: Server,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    name: str,
    fail: Callable[[Server], behaviour.Behaviour],
    size: int | None,
    why: str,
    kept: Any,
) -> None:
    with monkeypatch.context() as patch:
        if "silence" in name:
            patch.setattr(download, "TIMEOUT", 0.2)
        if "0 seconds" in why:
            patch.setattr(download, "DEADLINE", 0.3)
        server.script = [fail(server)]
        assert why in refusal(server, path, size=size)
    assert part_of(path).exists() == (kept is not None)
    if kept is ...:  # as much as had arrived
        kept = part_of(path).stat().st_size
    if kept is not None:
        assert part_of(path).read_bytes() == CONTENT[:kept]
    get(server, path, size=size)
    assert_downloaded(path)
    assert server.asked[1] == ("file.bin", f"bytes={kept}-" if kept else None)


def test_login_page_leaves_what_has_arrived(server: Server, path: Path) -> None:
    server.script = [behaviour.cut, behaviour.login_page]
    refusal(server, path)
    refusal(server, path)
    assert part_of(path).read_bytes() == CONTENT[:CUT]


def test_a_server_that_always_answers_another_range_is_asked_twice(server: Server, path: Path) -> None:
    path.parent.mkdir(parents=True)
    part_of(path).write_bytes(CONTENT[:999])
    server.script = [behaviour.from_elsewhere] * 9
    assert "another range of bytes" in refusal(server, path)
    assert [span for _, span in server.asked] == ["bytes=999-", None]
    assert part_of(path).read_bytes() == CONTENT[:999]


@pytest.mark.skipif(os.name != "posix", reason="there are no such links elsewhere")
def test_a_part_that_is_a_link_is_not_written_through(server: Server, path: Path, tmp_path: Path) -> None:
    path.parent.mkdir(parents=True)
    (tmp_path / "mine").write_bytes(CONTENT[:999])
    part_of(path).symlink_to(tmp_path / "mine")
    assert "cannot be written to" in refusal(server, path)
    assert (tmp_path / "mine").read_bytes() == CONTENT[:999]


STALE = b"x" * (2 * SIZE)
PARTS: list[tuple[str, bytes, int | None, list[behaviour.Behaviour], list[str | None]]] = [
    ("too long", STALE, SIZE, [], [None]),
    ("too long, size unknown", STALE, None, [], [f"bytes={2 * SIZE}-", None]),
    ("whole", CONTENT, SIZE, [], []),
    ("whole, size unknown", CONTENT, None, [], [f"bytes={SIZE}-", None]),
    ("ranges ignored", CONTENT[:999], SIZE, [behaviour.ignoring_ranges], ["bytes=999-"]),
    ("another range", CONTENT[:999], SIZE, [behaviour.from_elsewhere], ["bytes=999-", None]),
    ("empty", b"", SIZE, [], [None]),
]


@pytest.mark.parametrize(("name", "part", "size", "script", "ranges"), PARTS, ids=[name for name, *_ in PARTS])
def test_any_part_is_made_whole(
    server: Server,
    path: Path,
    *,
    name: str,
    part: bytes,
    size: int | None,
    script: list[behaviour.Behaviour],
    ranges: list[str | None],
) -> None:
    path.parent.mkdir(parents=True)
    part_of(path).write_bytes(part)
    server.script = [*script]
    get(server, path, size=size)
    assert_downloaded(path)
    assert [span for _, span in server.asked] == ranges


@pytest.mark.parametrize("stale", [STALE[:999], STALE[:SIZE]])
def test_part_that_is_wrong_is_deleted_so_that_the_next_call_starts_afresh(
    server: Server, path: Path, stale: bytes
) -> None:
    path.parent.mkdir(parents=True)
    part_of(path).write_bytes(stale)
    assert "the content must have the sha256" in refusal(server, path)
    assert not part_of(path).exists()
    get(server, path)
    assert_downloaded(path)


def test_file_of_the_user_that_is_wrong_is_told_and_left_alone(server: Server, path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    with pytest.raises(DownloadError) as caught:
        get(server, path)
    found = hashlib.sha256(b"mine").hexdigest()
    remedy = f"delete it to download it again, or {MANUAL}"
    assert str(caught.value) == f"{path} must have the {SHA256.replace(':', ' ')}, got {found}: {remedy}"
    assert path.read_bytes() == b"mine"
    assert not server.asked


def test_missing_server_is_told(server: Server, path: Path) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
        absent = Server(url=f"http://127.0.0.1:{deaf.getsockname()[1]}/")
        assert "Connection refused" in refusal(absent, path)
    assert "Name or service not known" in refusal(Server(url="http://data.example/"), path)


def test_disk_that_fills_up_is_told_and_the_part_is_kept(server: Server, path: Path) -> None:
    with largest_file(8_192):
        assert f"the disk of {path.parent} is full" in refusal(server, path)
    kept = part_of(path).read_bytes()
    assert 0 < len(kept) <= 8_192
    assert CONTENT.startswith(kept)
    get(server, path)
    assert_downloaded(path)
    assert server.asked[1] == ("file.bin", f"bytes={len(kept)}-")


@pytest.mark.parametrize("size", [SIZE, None])
def test_disk_without_room_is_told_before_it_is_filled(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=SIZE - 1))
        assert f"full ({SIZE} bytes are needed, {SIZE - 1} are free)" in refusal(server, path, size=size)
        assert not part_of(path).exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    part_of(path).write_bytes(CONTENT[:1])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=SIZE - 1))
    get(server, path, size=size)  # only what is missing needs room
    assert_downloaded(path)


def test_folder_that_cannot_be_made_is_told(server: Server, path: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert f"{path.parent} cannot be written to (" in refusal(server, path)


def test_interrupt_keeps_what_has_arrived(server: Server, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def interrupted(*_: object, **__: object) -> Iterator[Callable[[int], None]]:
        def advance(done: int) -> None:
            if done:
                raise KeyboardInterrupt

        yield advance

    with monkeypatch.context() as patch:
        patch.setattr(download, "counting", interrupted)
        with pytest.raises(KeyboardInterrupt):
            get(server, path)
    assert not path.exists()
    kept = part_of(path).read_bytes()
    assert kept
    assert CONTENT.startswith(kept)
    get(server, path)
    assert_downloaded(path)


@pytest.mark.skipif(os.name != "posix", reason="files are held on POSIX only")
@pytest.mark.parametrize("first", [behaviour.properly, behaviour.cut, behaviour.other_content])
def test_several_at_once_take_turns(server: Server, path: Path, first: behaviour.Behaviour) -> None:
    begun = Event()

    def slowly(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        begun.set()
        time.sleep(0.2)  # for the others to come up against it; should they be late, all holds as well
        first(handler, body)

    server.script = [slowly]

    def attempt(_: int) -> bool:
        try:
            get(server, path)
        except DownloadError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        one = pool.submit(attempt, 0)
        assert begun.wait(10)
        others = list(pool.map(attempt, range(3)))
    assert one.result() == (first is behaviour.properly)
    assert all(others)
    assert_downloaded(path)
    ranges = {behaviour.cut: [None, f"bytes={CUT}-"], behaviour.other_content: [None, None]}
    assert [span for _, span in server.asked] == ranges.get(first, [None])


def test_progress_is_shown_on_stderr(server: Server, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    get(server, path, progress=True)
    shown = capfd.readouterr()
    assert "downloading file.bin" in shown.err
    assert "100%" in shown.err
    assert not shown.out
