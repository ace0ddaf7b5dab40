"""The examples run as they are written, if only for a few steps."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("name", [path.name for path in sorted(EXAMPLES.glob("*.py"))])
def test_example_runs_and_prints_a_likelihood(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / name))["main"](steps=2)
    assert capsys.readouterr().out.count("NLL") == 2
