"""A record is read as it was written."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import record as benchmark
from concretely import environment
from concretely.experiment import record

NLL = {"value": 98.7654321, "standard_error": 0.5, "samples": 1000}
RECIPE = {
    "notation": "200H~784V",
    "data": "chiffres écrits",
    "estimator": "concrete",
    "samples": 1,
    "temperature": 2 / 3,
    "validate": None,
}


def example(**changes: Any) -> dict[str, Any]:
    made = {"recipe": RECIPE, **environment.describe_environment(), "seed": 3}
    return {**made, "metrics": {"test_nll": NLL}, "seconds": 1.5, **changes}


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    path, written = tmp_path / "new" / "record.json", example()
    assert tuple(written) == record.KEYS
    record.write_record(path, written)
    assert record.read_record(path) == written
    assert [file.name for file in path.parent.iterdir()] == ["record.json"]


@pytest.mark.parametrize("unknown", [math.inf, -math.inf, math.nan])
def test_numbers_that_are_not_finite_are_null(unknown: float, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record.write_record(path, example(metrics={"nll": {"value": 1.0, "standard_error": unknown, "all": (1, unknown)}}))
    text = path.read_text()
    assert not any(word in text for word in ("Infinity", "NaN"))
    assert record.read_record(path)["metrics"] == {"nll": {"value": 1.0, "standard_error": None, "all": [1, None]}}


def test_a_failed_write_keeps_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, before = tmp_path / "record.json", example()
    record.write_record(path, before)
    whole = Path.write_text

    def fail(self: Path, text: str, **options: Any) -> None:
        whole(self, text[:20], **options)
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="no space left"):
        record.write_record(path, example(seed=4))
    assert record.read_record(path) == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"recipe": {', r"a record must be JSON, got a damaged file PATH \(Expecting property name .*\)"),
        (b"\x00\x00", r"a record must be JSON, got a damaged file PATH \(.*\)"),
        (b"\xff\xfe", r"a record must be JSON, got a damaged file PATH \(it holds text that is not valid Unicode\)"),
        (b'{"a": "\\ud800"}', r"a record must be JSON, .* \(it holds text that is not valid Unicode\)"),
        (b"[" * 10**6, r"a record must be JSON, got a damaged file PATH \(it is nested too deeply\)"),
        (b"9" * 5_000, r"a record must be JSON, got a damaged file PATH \(it holds an integer of more than 64 bits\)"),
        (b'{"a": 1e999, "seconds": 1%b}' % (b"0" * 400), r".* \(it holds an integer of more than 64 bits\)"),
        (b"[1]", r"a record must be a JSON object, got list in PATH"),
        (b"{}", r"a record must have a checksum, got none in PATH"),
        (b'{"checksum": 3}', r"a record must be as it was written, got changes since then in PATH"),
    ],
)
def test_a_damaged_record_raises_one_sentence(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{sentence.replace('PATH', re.escape(repr(str(path))))}: restore it$"):
        record.read_record(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(
        ValueError, match=r"^a record must be JSON, got a damaged file .* \(Is a directory\): restore it$"
    ):
        record.read_record(path)


def test_every_changed_digit_is_noticed_and_the_way_on_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a run" / "record.json"
    record.write_record(path, example())
    text = path.read_text()
    places = [index for index, character in enumerate(text) if character.isdecimal()]
    assert len(places) > 90
    for place in places:
        digit = str((int(text[place]) + 1) % 10)
        path.write_text(text[:place] + digit + text[place + 1 :])
        with pytest.raises(ValueError, match=r"got changes since then|must be JSON"):
            record.read_record(path)
    (path.parent / "checkpoint-000000001.json").touch()
    with pytest.raises(ValueError, match=r": make it again with: concretely evaluate '[^']*/a run'$"):
        record.read_record(path)


def test_the_layout_of_the_file_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record.write_record(path, example())
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert record.read_record(path) == example()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"recipe": []},
            r"recipe of a record must have the texts notation or model, data, estimator, and samples, got",
        ),
        ({"recipe": RECIPE | {"notation": None}}, r"recipe of a record must have the texts"),
        ({"recipe": RECIPE | {"arguments": 3}}, r"recipe of a record must have the texts"),
        ({"recipe": RECIPE | {"samples": True}}, r"recipe of a record must have the texts"),
        ({"commit": "abc"}, r"commit of a record must be a hash and whether there were changes, got 'abc'"),
        ({"commit": {"hash": "abc"}}, r"commit of a record must be a hash"),
        ({"versions": {"torch": 2.13}}, r"versions of a record must hold text, got"),
        ({"device": {"cpu": ["EPYC"]}}, r"device of a record must hold text and integers, got"),
        ({"seed": -1}, r"seed of a record must be a whole number, got -1"),
        ({"step": "last"}, r"step of a record must be a whole number, got 'last'"),
        ({"seconds": None}, r"seconds of a record must be a number, got None"),
        ({"metrics": [NLL]}, r"metrics of a record must be a JSON object, got"),
        ({"metrics": {"test_nll": 98.7}}, r"test_nll of a record must be a metric, got 98.7"),
        ({"metrics": {"test_nll": {"value": "98.7"}}}, r"test_nll of a record must be a metric, got"),
        ({"metrics": {"test_nll": NLL | {"samples": -1}}}, r"test_nll of a record must be a metric, got"),
        ({"metrics": {"test_nll": NLL | {"title": 7}}}, r"test_nll of a record must be a metric, got"),
        ({"valid": "98.7"}, r"valid of a record must be a metric, got '98.7'"),
    ],
)
def test_what_is_shown_is_checked_when_read(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record.write_record(path, example(**changes))
    with pytest.raises(ValueError, match=f"^{sentence}.* in {re.escape(repr(str(path)))}$"):
        record.read_record(path)


@pytest.mark.parametrize("key", record.KEYS)
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    path, changed = tmp_path / "record.json", example()
    del changed[key]
    record.write_record(path, changed)
    with pytest.raises(ValueError, match=rf" must have recipe, .*, got no {key} in .*"):
        record.read_record(path)


def test_a_benchmark_records_the_same_environment(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    benchmark.write(path, {"benchmark": "none"}, seed=1, results=[1.5])
    found = json.loads(path.read_text())
    assert list(found) == ["recipe", "commit", "versions", "device", "seed", "results", "checksum"]
    made = {key: found[key] for key in ("commit", "device")}
    assert made == {key: environment.describe_environment()[key] for key in made}
    assert environment.versions().items() <= found["versions"].items()


def test_records_are_read_without_torch_and_matplotlib() -> None:
    program = "import sys, concretely.experiment.record; assert not {'torch', 'matplotlib', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
