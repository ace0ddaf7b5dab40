"""A server on this machine, and none else."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.data.server import Server, serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that can be told how to fail."""
    monkeypatch.setenv("no_proxy", "*")
    with serving() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, which is yet to be made."""
    path = tmp_path / "cache" / "data"
    monkeypatch.setenv("CONCRETELY_DATA", str(path))
    return path


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test reach beyond this machine."""
    look_up = socket.getaddrinfo

    def local(host: Any, *rest: Any, **named: Any) -> Any:
        if host != "127.0.0.1":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", local)
