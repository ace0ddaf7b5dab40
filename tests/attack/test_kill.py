"""Work that is killed at random moments loses no complete checkpoint, and ends in the same bits as if it never was."""

import os
import signal
import time
from pathlib import Path

import pytest
from torch import Tensor

from concretely.training import checkpoint
from concretely.training.folder import restored

from ..cases import exhaustive
from ..process import forked
from ..training.example import assert_same
from .conftest import Attack
from .work import CASES, work

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="there are no such signals elsewhere")]

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PATIENCE = 120.0
"""Seconds after which work hangs."""


def wait_for_server() -> None:
    """Wait until the server of processes has imported what they need, which takes longer than their work."""
    nothing = forked().Process(target=os.getpid)
    nothing.start()
    nothing.join(PATIENCE)


class Started:
    """Work in a process group of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.log = folder.parent / "log.txt"
        self.process = forked().Process(target=work, args=(name, folder, self.log))
        self.process.start()

    def end(self) -> int:
        """Wait for the end, and return the exit code."""
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None, "the work hangs"
        return self.process.exitcode

    def kill(self, number: int) -> None:
        """Send a signal to all processes of the work."""
        assert self.process.pid is not None
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:  # it has ended, or has not come as far as to have a group
            self.process.kill()


def steps(folder: Path) -> dict[str, int]:
    """The step of the last checkpoint of every run below a folder, none of which may be damaged."""
    found = {}
    for recipe in sorted(folder.rglob("recipe.toml")):
        last = checkpoint.latest(recipe.parent)
        if last is not None:
            assert last.damaged == ()
            found[str(recipe.parent.relative_to(folder))] = last.step
    return found


def parameters(folder: Path) -> dict[str, Tensor]:
    """All tensors of all runs below a folder."""
    return {
        f"{name}/{key}": tensor
        for name in steps(folder)
        for key, tensor in restored(folder / name)[1].state_dict().items()
    }


@pytest.mark.parametrize("case", [case for case in CASES if case != "ranks"] + exhaustive("ranks"))
def test_random_kills(attack: Attack, case: str, tmp_path: Path) -> None:
    wait_for_server()
    started = time.monotonic()
    straight = Started(case, tmp_path / "straight")
    assert straight.end() == 0, straight.log.read_text()
    duration, folder, before = time.monotonic() - started, tmp_path / "killed", dict[str, int]()
    for random in attack.trials(short=1, full=60):
        started, number = time.monotonic(), random.choice(SIGNALS)
        child = Started(case, folder)
        time.sleep(random.uniform(0.1, 0.9) * duration)
        child.kill(number)
        code = child.end()
        # 130 where it was asked to stop, and 0 where it was faster
        assert code in (0, 130, -number, -signal.SIGKILL), child.log.read_text()
        now = steps(folder)
        assert all(now[name] >= step for name, step in before.items()), "a complete checkpoint was lost"
        before = now
        attack.count({0: "done before", 130: "saved and stopped"}.get(code, "killed"))
        if code == 0:
            before = {}
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
    last = Started(case, folder)
    assert last.end() == 0, last.log.read_text()
    assert_same(parameters(folder), parameters(tmp_path / "straight"))
    assert not list(folder.rglob("*.draft"))
