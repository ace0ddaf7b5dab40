"""A run that is killed at any moment loses no step whose checkpoint was complete, and ends as if it never was."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from concretely.training import checkpoint
from concretely.training.folder import restored

from ..process import forked
from .child import work
from .example import assert_alike, assert_same, tensors, trained

pytestmark = pytest.mark.slow

KILLS, STEPS = 20, 300
WISHES: dict[str, Any] = {"notation": "4H-4H-12V", "estimator": "nvil", "steps": STEPS, "validate": 25}


@pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL elsewhere")
def test_a_run_that_is_killed_at_random_moments_ends_in_the_same_bits(tmp_path: Path) -> None:
    context, rng, complete = forked(), random.Random(0), 0
    started = []
    for kill in range(KILLS + 1):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(tmp_path / "killed", theirs, WISHES))
        process.start()
        theirs.close()
        seen = 0
        if kill < KILLS:
            for _ in range(rng.randrange(1, 12) if kill % 4 else 0):
                seen = ours.recv()
            started.append(seen > 0)
            # from a moment to as long as it takes to start, or to take some steps and write them down
            time.sleep(rng.random() ** 2 * (0.02 if seen else 0.3))
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        try:
            while True:
                seen = ours.recv()
        except EOFError:
            process.join()
        assert process.exitcode == (-signal.SIGKILL if kill < KILLS else 0)
        complete = max(seen, complete)
        last = checkpoint.latest(tmp_path / "killed") if (tmp_path / "killed").exists() else None
        assert complete == 0 or last is not None
        if last is not None:
            assert last.damaged == ()
            assert last.step in (complete, complete + 1), "at most one more was complete before it could say so"
            complete = last.step
    assert set(started) == {True, False}
    straight = trained(tmp_path / "straight", **WISHES)
    assert_same(tensors(tmp_path / "killed"), tensors(tmp_path / "straight"))
    assert_alike(restored(tmp_path / "killed")[0], straight)
    names = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("killed", "straight")]
    assert set(names[0]) - set(names[1]) == {f"checkpoint-{STEPS - 1:09}.{kind}" for kind in ("json", "safetensors")}
