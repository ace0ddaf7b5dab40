"""The types and shapes of signatures hold at run time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import exhaustive

ROOT = Path(__file__).parents[1]
SHAPES = (
    "tests/law/test_shape.py",
    "tests/distribution/test_moment.py",
    *(f"tests/estimator/test_{name}.py" for name in ("bound", "exact", "fused", "nvil", "vimco")),
    "tests/model",
    "tests/kernel",
    "--ignore=tests/kernel/test_operator.py",  # whose operators are made up
    *(f"tests/test_{name}.py" for name in ("graph", "noise", "objective", "program", "rows", "trace")),
    "tests/report/test_image.py",
)
"""Tests that call all that has a shape, in little time."""


@pytest.mark.slow
@pytest.mark.parametrize("paths", [SHAPES, *exhaustive(("--ignore=tests/cli",))], ids=["shapes", "all"])
def test_arguments_and_results_have_the_annotated_types_and_shapes(paths: tuple[str, ...]) -> None:
    pytest.importorskip("beartype")
    call = [sys.executable, "-m", "pytest", "--quiet", *paths, "--deselect", "tests/test_annotation.py"]
    environment = os.environ | {"CONCRETELY_CHECKED": "1"}
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
