"""The environment of a run says where numbers come from, and nothing about the user or the host."""

import getpass
import json
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch

from concretely import environment

ROOT = Path(__file__).parent.parent


def test_versions_are_of_python_and_of_what_is_installed() -> None:
    found = environment.versions()
    assert list(found) == ["python", *environment.PACKAGES]
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__
    assert "nowhere" not in environment.versions(["nowhere"])


def test_a_device_is_a_processor_and_beside_it_a_graphics_card_if_one_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = environment.device("cpu")
    assert set(plain) == {"cpu", "cores"}
    assert plain["cores"] == os.cpu_count()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda name: f"card {name}")
    products = torch.get_float32_matmul_precision()
    assert environment.device("cuda:1") == {**plain, "gpu": "card cuda:1", "matmul_precision": products}


def test_nothing_identifies_the_user_or_the_host() -> None:
    text = json.dumps(environment.describe_environment())
    assert str(Path.home()) not in text
    assert str(ROOT) not in text
    for name in {socket.gethostname(), getpass.getuser()}:
        assert name not in text.replace("/", " ").split()
        assert f'"{name}"' not in text


@pytest.mark.parametrize(("told", "dirty"), [("abc", False), ("abc+", True)])
def test_a_variable_names_the_commit_of_a_tree_without_history(
    told: str, dirty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.COMMIT, told)
    assert environment.commit() == {"hash": "abc", "dirty": dirty}


@pytest.mark.parametrize("extra", ["command", "tensorboard"])
@pytest.mark.parametrize("installed", [True, False])
def test_packages_are_installed_by_name_into_this_environment(
    extra: str, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(name: str) -> None:
        raise PackageNotFoundError(name)

    if not installed:
        monkeypatch.setattr(environment, "requires", nowhere)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    words = shlex.split(environment.install_command(extra))
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    assert sorted(words[4:]) == sorted(project[extra])
    monkeypatch.setattr(environment, "version", nowhere)
    words = shlex.split(environment.install_command(extra))
    assert words[:5] == ["uv", "pip", "install", "--python", sys.executable]
    assert sorted(words[5:]) == sorted(project[extra])


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git to ask")
def test_the_commit_is_that_of_the_package_and_not_of_a_repository_it_is_installed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(environment.COMMIT)
    package = tmp_path / "lib" / "concretely"
    package.mkdir(parents=True)
    for name in ("__init__.py", "environment.py"):
        shutil.copy(ROOT / "src" / "concretely" / name, package / name)

    def commit() -> Any:
        program = "import json; from concretely import environment; print(json.dumps(environment.commit()))"
        variables = {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", program]
        return json.loads(subprocess.run(command, env=variables, check=True, capture_output=True).stdout)

    assert commit() is None
    git(tmp_path, "init")
    (tmp_path / "other.txt").write_text("of somebody else")
    git(tmp_path, "add", "other.txt")
    git(tmp_path, "commit", "-m", "other")
    assert commit() is None
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "ours")
    found = commit()
    assert len(found["hash"]) == 40
    assert found["dirty"] is False
    (package / "more.py").write_text("")
    assert commit() == {**found, "dirty": True}
