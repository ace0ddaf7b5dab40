"""A record is read as it was written, tells where its numbers come from, and nothing of whose machine it was."""

import getpass
import json
import math
import os
import platform
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import record as benchmark
from concretely.report import record

ROOT = Path(__file__).parent.parent.parent
NLL = {"value": 98.7654321, "standard_error": 0.5, "samples": 1000}
RECIPE = {"notation": "200H~784V", "temperature": 2 / 3, "data": "chiffres écrits", "validate": None}


def example(**changes: Any) -> dict[str, Any]:
    return {**record.record(RECIPE, {"test_nll": NLL}, seed=3, seconds=1.5), **changes}


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    path, written = tmp_path / "new" / "record.json", example()
    assert tuple(written) == record.PARTS
    record.write(path, written)
    assert record.read(path) == written
    assert [file.name for file in path.parent.iterdir()] == ["record.json"]


@pytest.mark.parametrize("unknown", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_null_so_that_anyone_can_read_the_rest(unknown: float, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record.write(path, example(metrics={"nll": {"value": 1.0, "standard_error": unknown, "all": (1, unknown)}}))
    text = path.read_text()
    assert not any(word in text for word in ("Infinity", "NaN"))
    assert record.read(path)["metrics"] == {"nll": {"value": 1.0, "standard_error": None, "all": [1, None]}}


def test_a_record_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, before = tmp_path / "record.json", example()
    record.write(path, before)
    whole = Path.write_text

    def fail(self: Path, text: str, **options: Any) -> None:
        whole(self, text[:20], **options)
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="no space left"):
        record.write(path, example(seed=4))
    assert record.read(path) == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"recipe": {', r"a record must be JSON, got a damaged file .*record.json: .*line 1 column 13.*"),
        ("\x00\x00", r"a record must be JSON, got a damaged file .*record.json: .*"),
        ("[1]", r"a record must be a JSON object, got list in .*record.json"),
        (
            json.dumps(dict.fromkeys(record.PARTS[:5])),
            r"a record must have recipe.*, got no metrics and no seconds in .*",
        ),
    ],
)
def test_a_damaged_record_is_refused_in_a_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        record.read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"^a record must be JSON, got a damaged file"):
        record.read(path)


def test_versions_are_of_python_and_of_what_is_installed() -> None:
    found = record.versions()
    assert list(found) == ["python", *record.PACKAGES]
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__
    assert "nowhere" not in record.versions(["nowhere"])


def test_a_device_is_a_processor_and_beside_it_a_graphics_card_if_one_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = record.device("cpu")
    assert set(plain) == {"cpu", "cores"}
    assert plain["cores"] == os.cpu_count()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda name: f"card {name}")
    assert record.device("cuda:1") == {**plain, "gpu": "card cuda:1"}


def test_a_record_does_not_tell_whose_machine_it_was() -> None:
    text = json.dumps(record.circumstances())
    assert str(Path.home()) not in text
    assert str(ROOT) not in text
    for name in {socket.gethostname(), getpass.getuser()}:
        assert name not in text.replace("/", " ").split()
        assert f'"{name}"' not in text


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git to ask")
def test_the_commit_is_that_of_the_package_and_not_of_a_repository_it_is_installed_in(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "concretely"
    (package / "report").mkdir(parents=True)
    for name in ("__init__.py", "file.py", "report/__init__.py", "report/record.py"):
        shutil.copy(ROOT / "src" / "concretely" / name, package / name)

    def commit() -> Any:
        program = "import json; from concretely.report import record; print(json.dumps(record.commit()))"
        environment = {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", program]
        return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)

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
    (package / "file.py").write_text("")
    with pytest.raises(subprocess.CalledProcessError):
        commit()  # the changed file is the one that was imported
    (package / "more.py").write_text("")
    git(tmp_path, "checkout", "lib/concretely/file.py")
    assert commit() == {**found, "dirty": True}


def test_a_benchmark_leaves_the_same_circumstances(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    benchmark.write(path, {"benchmark": "none"}, seed=1, results=[1.5])
    found = json.loads(path.read_text())
    assert list(found) == ["recipe", "commit", "versions", "device", "seed", "results"]
    circumstances = {key: found[key] for key in ("commit", "device")}
    assert circumstances == {key: record.circumstances()[key] for key in circumstances}
    assert record.versions().items() <= found["versions"].items()


def test_records_are_read_without_torch_and_matplotlib() -> None:
    program = "import sys, concretely.report.record; assert not {'torch', 'matplotlib', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
