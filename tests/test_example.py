"""The examples run as they are written, if only for a few steps, and their pages quote their code and their record."""

import json
import math
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from benchmarks import examples

PAGES = Path(__file__).parent.parent / "docs" / "examples"
RESULTS: dict[str, Any] = {
    result["example"]: result for result in json.loads(examples.OUT.read_text(encoding="utf-8"))["results"]
}
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def stripped(code: str) -> str:
    """Code without indentation and empty lines."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())


@pytest.mark.slow
@pytest.mark.parametrize("name", examples.names())
def test_an_example_runs_and_prints_numbers_of_the_record(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name in examples.NEEDS:
        pytest.importorskip(examples.NEEDS[name], reason=f"the example {name} needs {examples.NEEDS[name]}")
    found = examples.load(name)(steps=2)
    assert all(math.isfinite(value) for value in found.values())
    assert re.search(r"\d", capsys.readouterr().out)
    assert name in examples.NEEDS or found.keys() == RESULTS[name]["found"].keys()


def test_all_examples_have_a_page_that_the_list_leads_to() -> None:
    listed = (PAGES.parent / "examples.md").read_text(encoding="utf-8")
    assert sorted(path.stem for path in PAGES.glob("*.md")) == examples.names()
    assert all(f"](examples/{name}.md)" in listed for name in examples.names())


@pytest.mark.parametrize("name", examples.names())
def test_the_code_of_a_page_is_that_of_its_example(name: str) -> None:
    source = stripped((examples.FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    blocks = FENCE.findall(page(name))
    assert any(kind == "python" for kind, _ in blocks)
    for kind, code in blocks:
        if kind == "python":
            assert stripped(code) in source
        elif kind == "diff":
            assert all(line[1:].strip() in source for line in code.splitlines() if line.startswith("+"))
        else:
            assert (kind, f"python examples/{name}.py" in code) == ("console", True)


@pytest.mark.parametrize("name", RESULTS)
def test_a_page_quotes_the_record(name: str) -> None:
    rows = re.findall(r"^\| ([^|]*) \| ([\d.,]+) \|$", page(name), re.MULTILINE)
    assert rows == [(key, f"{value:.4g}") for key, value in RESULTS[name]["found"].items()]
    assert f"after {RESULTS[name]['steps']:,} steps" in " ".join(page(name).split())


def test_all_examples_that_need_no_other_library_are_recorded() -> None:
    assert {*RESULTS} - {*examples.NEEDS} == {*examples.names()} - {*examples.NEEDS}


def test_the_time_of_an_example_is_below_that_of_the_list() -> None:
    assert "takes less than half a minute of one core" in (PAGES.parent / "examples.md").read_text(encoding="utf-8")
    assert all(result["cpu_seconds"] < 30 for result in RESULTS.values())


def test_a_module_for_hugging_face_returns_a_loss_with_gradients_and_is_deterministic_in_evaluation() -> None:
    parts = runpy.run_path(str(examples.FOLDER / "hugging_face.py"))
    model, rows = parts["RoutedClassifier"](), parts["Rows"](32, seed=0)
    loss, classes = model(**{name: getattr(rows, name) for name in rows[0]})
    loss.backward()
    assert classes.shape == (32, parts["CLASSES"])
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    one, other = (model.eval()(rows.x, rows.labels)[1] for _ in range(2))
    assert one.equal(other)
