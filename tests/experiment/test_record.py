"""A record is read as it was written."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import record as benchmark
from concretely import environment
from concretely.experiment import record

NLL = {"value": 98.7654321, "standard_error": 0.5, "samples": 1000}
RECIPE = {"notation": "200H~784V", "temperature": 2 / 3, "data": "chiffres écrits", "validate": None}


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
    ("text", "sentence"),
    [
        ('{"recipe": {', r"a record must be JSON, got a damaged file .*record.json: .*line 1 column 13.*"),
        ("\x00\x00", r"a record must be JSON, got a damaged file .*record.json: .*"),
        ("[1]", r"a record must be a JSON object, got list in .*record.json"),
        (
            json.dumps(dict.fromkeys(record.KEYS[:5])),
            r"a record must have recipe.*, got no metrics and no seconds in .*",
        ),
    ],
)
def test_a_damaged_record_raises_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        record.read_record(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"^a record must be JSON, got a damaged file"):
        record.read_record(path)


def test_a_benchmark_records_the_same_environment(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    benchmark.write(path, {"benchmark": "none"}, seed=1, results=[1.5])
    found = json.loads(path.read_text())
    assert list(found) == ["recipe", "commit", "versions", "device", "seed", "results"]
    made = {key: found[key] for key in ("commit", "device")}
    assert made == {key: environment.describe_environment()[key] for key in made}
    assert environment.versions().items() <= found["versions"].items()


def test_records_are_read_without_torch_and_matplotlib() -> None:
    program = "import sys, concretely.experiment.record; assert not {'torch', 'matplotlib', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
