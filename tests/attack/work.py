"""Work that can be killed at any moment, and goes on when it is started again.

A case is a function that trains in a folder until all is done, whether or not something is there already. It runs in a
process group of its own, so that it may start further processes. To attack another kind of training, add its function
to `CASES`.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

SETTINGS = ("--batch", "8", "--validate", "10", "--score-samples", "1")
LIST = ("--steps", "20", "--lr", "1e-3,1e-2", "--weight-decay", "0")


def points(folder: Path) -> Path:
    """Data of twelve bits, in a file beside the folder of the work."""
    path = folder.parent / "points.npz"
    if not path.exists():
        bits = np.random.default_rng(0).integers(0, 2, (40, 12)).astype(np.uint8)
        np.savez(path, train=bits, valid=bits[:20], test=bits[:10])
    return path


def run(folder: Path) -> int:
    """Train one run with frequent checkpoints."""
    command = ["train", "4H-4H-12V", "--steps", "60", *SETTINGS, "--data", str(points(folder)), "--out", str(folder)]
    if (folder / "recipe.toml").exists():
        command = ["train", "--resume", str(folder), "--score-samples", "1"]
    return _call([*command, "--checkpoint-seconds", "0.02"])


def several(folder: Path) -> int:
    """Train a list of runs as one program."""
    command = ["train", "4H-12V", *LIST, *SETTINGS, "--data", str(points(folder)), "--out", str(folder)]
    return _call([*command, "--checkpoint-seconds", "0.02"])


def sweep(folder: Path) -> int:
    """Search a grid."""
    return _call(["sweep", "4H-12V", *LIST, *SETTINGS, "--data", str(points(folder)), "--out", str(folder)])


def shared(folder: Path) -> int:
    """Search a grid that others may share, and stop one half early."""
    command = ["sweep", "4H-12V", *LIST, *SETTINGS, "--data", str(points(folder)), "--out", str(folder)]
    return _call([*command, "--share", "--halving", "2"])


def ranks(folder: Path) -> int:
    """Train one run on two ranks. As `torchrun` does, this process ends both if a signal has ended one."""
    command = ["train", "4H-12V", "--steps", "60", *SETTINGS, "--data", str(points(folder)), "--out", str(folder)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    children = [_rank(number, [*command, "--checkpoint-seconds", "0.02"]) for number in range(2)]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    code = 0
    while children:
        ended, status = os.wait()
        children.remove(ended)
        code = code or os.waitstatus_to_exitcode(status)
        if code < 0:
            for child in children:
                os.kill(child, signal.SIGKILL)
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
    return code


def _rank(number: int, command: list[str]) -> int:
    """Start a rank, and return its process."""
    child = os.fork()
    if child == 0:
        os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number)}
        code = _call(command)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return child


def fit(folder: Path) -> int:
    """Train a model of one's own, from Python."""
    import concretely as c

    from ..training import own

    data, how = own.bits(40), {"steps": 60, "batch": 8, "valid": own.bits(20), "every": 10, "checkpoint_seconds": 0.02}
    found = c.fit(own.build, data, estimator=c.RLOO(), samples=2, **how, out=folder)
    return 0 if found.finished else 130


CASES: dict[str, Callable[[Path], int]] = {
    "run": run,
    "list": several,
    "sweep": sweep,
    "shared": shared,
    "fit": fit,
    "ranks": ranks,
}


def work(name: str, folder: Path, log: Path) -> None:
    """Do the work of a case as a process of its own, and exit with its code. What it prints goes to a file."""
    os.setpgid(0, 0)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    code = CASES[name](folder)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _call(command: list[str]) -> int:
    from concretely.cli import app
    from concretely.report import page

    # pictures take longer than training
    page.draw_picture = lambda picture: None  # type: ignore[assignment, return-value]
    page.embed_figure = lambda caption, *_: page.Image(caption, "png", b"", 1, 1)  # type: ignore[assignment]
    return int(app(command, standalone_mode=False) or 0)
