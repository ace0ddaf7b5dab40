"""The types and shapes in signatures hold at run time, wherever tests call what has a shape."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOMS = ("law/test_shape.py", "model", "estimator", "kernel", "test_graph.py", "test_trace.py", "test_objective.py")


@pytest.mark.slow
def test_annotations_hold_at_run_time() -> None:
    pytest.importorskip("beartype")
    call = [sys.executable, "-m", "pytest", "--quiet", *(str(TESTS / room) for room in ROOMS)]
    environment = os.environ | {"CONCRETELY_CHECKED": "1"}
    done = subprocess.run(call, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
