"""A server that misbehaves again and again gives the file or one sentence, and no byte or request too many."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from concretely.data import download
from concretely.data.download import DownloadError, fetch

from ..data import server as behaviour
from ..data.server import Server, serving
from .conftest import Attack

CONTENT = bytes(range(256)) * 40
BEHAVIOURS: list[Callable[[Server], behaviour.Behaviour]] = [
    *(
        lambda server, act=act: act  # type: ignore[misc]
        for act in (
            behaviour.properly,
            behaviour.ignoring_ranges,
            behaviour.from_elsewhere,
            behaviour.cut,
            behaviour.cut_in_chunks,
            behaviour.other_content,
            behaviour.login_page,
            behaviour.hanging_up,
            behaviour.escaping,
            behaviour.status(404),
            behaviour.status(416),
            behaviour.status(503),
            behaviour.saying(10**30),
            behaviour.saying(0),
            behaviour.redirecting("http://[::1"),
            behaviour.redirecting("/\x1b[31m"),
            behaviour.redirecting("file:///etc/passwd"),
        )
    ),
    behaviour.endless,
    behaviour.dripping,
    behaviour.dripping_headers,
    behaviour.continuing,
    lambda server: behaviour.silent(server, after=0.5),
]


WEIGHTS = [10, *[1] * (len(BEHAVIOURS) - 1)]
"""Some servers behave."""


def test_servers_that_misbehave(attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.1)
    monkeypatch.setattr(download, "DEADLINE", 0.2)
    for number, random in enumerate(attack.trials(short=25, full=400)):
        with serving() as server:
            server.files["file.bin"] = CONTENT
            server.script = [act(server) for act in random.choices(BEHAVIOURS, WEIGHTS, k=4)]
            path = tmp_path / str(number) / "file.bin"
            size, exact = random.choice([(len(CONTENT), True), (2 * len(CONTENT), False)])
            for _ in range(2):
                before = len(server.asked)
                try:
                    digest = f"sha256:{sha256(CONTENT).hexdigest()}"
                    fetch(f"{server.url}file.bin", path, digest=digest, size=size, exact=exact, manual="go there")
                except DownloadError as error:
                    said = str(error)
                else:
                    said = ""
                attack.count("refused" if said else "downloaded")
                assert said.isprintable()
                assert path.exists() == (not said)
                assert not said or said.endswith("go there")
                assert len(server.asked) - before <= 13  # two requests, or one and the redirections that urllib follows
                part = path.with_name("file.bin.part")
                assert not part.exists() or part.stat().st_size <= size
            if path.exists():
                assert path.read_bytes() == CONTENT
