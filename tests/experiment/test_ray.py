"""A sweep on Ray is that of one process, also if a worker dies. Most of it needs the extra `ray`."""

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import concretely as c
from concretely.environment import install_command
from concretely.experiment import cluster, search
from concretely.experiment.cluster import connected, require_ray
from concretely.experiment.cluster_task import packed, unpack
from concretely.experiment.scheduler import Monitor
from concretely.training.folder import restored

from .child import SLEEP_AT, LoggedScore

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: make check-ray installs it")
pytestmark = [pytest.mark.unchecked, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")]

STEPS = 12


def recipes(**others: Any) -> Any:
    return c.sweep_recipes(notation="4H-64V", steps=STEPS, lr="1e-3,1e-2", weight_decay="0,1", **others)


def models(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("model.safetensors")}


@pytest.fixture(autouse=True, scope="module")
def token() -> Iterator[None]:
    """A token for Ray, which otherwise writes one into the home of the user. It is read when Ray is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        yield


@pytest.fixture
def two_cpus() -> Iterator[None]:
    """Ray with two CPUs and one GPU that is only a number, which the caller has started."""
    import ray
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False
    ray.init("local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def listening() -> set[str]:
    """The addresses on which processes below this one listen."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[path.parent.name] = path.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
    below, last = {str(os.getpid())}, set[str]()
    while below != last:
        last, below = below, below | {process for process, parent in parents.items() if parent in below}
    rows = [line.split() for kind in ("tcp", "tcp6") for line in Path("/proc/net", kind).read_text().splitlines()[1:]]
    places = {f"socket:[{row[9]}]": row[1].partition(":")[0] for row in rows if row[3] == "0A"}
    found = set()
    for process in below:
        for each in Path("/proc", process, "fd").glob("*"):
            try:
                found.add(places.get(os.readlink(each), ""))
            except OSError:
                continue
    return found - {""}


@needs_ray
@pytest.mark.slow
def test_a_sweep_on_a_local_ray_is_that_of_one_process_and_listens_on_loopback_only(tmp_path: Path) -> None:
    alone, heard, states = c.sweep(recipes(), tmp_path / "alone", samples=2), set[str](), list[Any]()

    class Watching:
        def __enter__(self) -> Any:
            return self.show

        def __exit__(self, *_: object) -> None: ...

        def show(self, new: Any) -> None:
            states.append(new)
            heard.update(listening())

    monitor = Monitor(watching=Watching)
    before = signal.getsignal(signal.SIGTERM)
    found = c.sweep(recipes(), tmp_path / "ray", samples=2, on="ray", monitor=monitor)
    assert signal.getsignal(signal.SIGTERM) is before
    assert [member.recipe for member, _ in found.ranked] == [member.recipe for member, _ in alone.ranked]
    assert models(tmp_path / "ray") == models(tmp_path / "alone")
    assert heard
    assert heard <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert {state.state for state in states[-1]} == {"done"}
    assert [state.starts for state in states[-1]] == [1, 1, 1, 1]
    assert not [*(tmp_path / "ray").glob(".ray-*")]


@needs_ray
@pytest.mark.exhaustive
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.usefixtures("two_cpus")
def test_a_task_that_dies_is_started_again_and_goes_on(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = c.sweep(recipes(), tmp_path / "alone", samples=2)
    dies = alone.ranked[1].member.folder.name
    if not shared:  # tasks then do not find the token, as if the folder were on another machine
        monkeypatch.setattr(cluster, "token_path", lambda folder, token: tmp_path / token)
    monkeypatch.setattr(search, "ScoreSplits", lambda wanted: LoggedScore(wanted, str(tmp_path), dies))
    notes, folder = list[str](), tmp_path / "ray"
    how: dict[str, Any] = {"samples": 2, "checkpoint_seconds": 0.0, "monitor": Monitor(note=notes.append)}
    found = c.sweep(recipes(), folder, **how, on=c.Ray(programs_per_gpu=4, members_per_program=1))
    assert models(folder) == models(tmp_path / "alone")
    assert [member.recipe for member, _ in found.ranked] == [member.recipe for member, _ in alone.ranked]
    assert [note for note in notes if "was lost" in note] == [f"{dies} was lost, and goes on from its last checkpoint"]
    steps, workers = defaultdict[str, list[int]](list), defaultdict[str, set[str]](set)
    for line in (tmp_path / "log.txt").read_text().splitlines():
        name, step, worker, device = line.split()
        steps[name].append(int(step))
        workers[name].add(worker)
        assert device == "0", "a part of the GPU was assigned"
    assert sorted(steps) == sorted(member.folder.name for member, _ in alone.ranked)
    assert all(taken == [*range(1, STEPS + 1)] for taken in steps.values())
    assert len(workers[dies]) == 2
    assert SLEEP_AT < STEPS
    assert not [*Path(tempfile.gettempdir()).glob("concretely-*")], "copies are removed"
    log = (tmp_path / "log.txt").read_text()
    again = c.sweep(recipes(), folder, **how, on="ray")
    assert again.best == found.best
    assert (tmp_path / "log.txt").read_text() == log, "nothing is trained again"


@needs_ray
@pytest.mark.exhaustive
@pytest.mark.usefixtures("two_cpus")
def test_halving_on_ray_without_a_shared_folder_is_that_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = c.sweep(recipes(), tmp_path / "alone", samples=2, halving=2)
    monkeypatch.setattr(cluster, "token_path", lambda folder, token: tmp_path / token)
    found = c.sweep(recipes(), tmp_path / "ray", samples=2, halving=2, on=c.Ray(device="cpu"))
    assert found.saved == alone.saved
    assert models(tmp_path / "ray") == models(tmp_path / "alone")


@needs_ray
@pytest.mark.exhaustive
@pytest.mark.usefixtures("two_cpus")
def test_errors_of_tasks_are_those_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^address must be left out, as Ray is connected already, got 'auto'$"):
        c.sweep(recipes(), tmp_path, samples=2, on=c.Ray("auto"))
    score = LoggedScore({"valid": 3}, str(tmp_path), "")  # type: ignore[dict-item]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "ScoreSplits", lambda wanted: score)
        patch.setattr(cluster, "_is_done", lambda bundle, work: False)
        with pytest.raises(AttributeError, match="_asdict"):
            c.sweep(recipes(), tmp_path, samples=2, on="ray")


@needs_ray
@pytest.mark.exhaustive
def test_ctrl_c_saves_all_programs_and_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "concretely", "sweep", "4H-64V", "--lr", "1e-3,1e-2", "--weight-decay", "0"]
    command += ["--steps", "1000000", "--on", "ray", "--out", str(tmp_path / "out")]
    log = (tmp_path / "log.txt").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    end = time.monotonic() + 120
    while time.monotonic() < end and len([*tmp_path.glob("out/*/recipe.toml")]) < 1:
        time.sleep(0.2)
    time.sleep(2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(timeout=120) == 130, (tmp_path / "log.txt").read_text()
    assert (tmp_path / "log.txt").read_text().splitlines()[-1] == "stopped and saved; run the same command to go on"
    begun = [path.parent for path in tmp_path.glob("out/*/recipe.toml")]
    assert begun
    assert all(restored(folder)[0].step > 0 for folder in begun)
    time.sleep(2)
    left = subprocess.run(["pgrep", "--session", str(process.pid), "--list-full"], capture_output=True, text=True)
    assert left.stdout == ""


def test_a_missing_ray_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=f"^{re.escape('ray is not installed: ' + install_command('ray'))}$"):
        require_ray()
    with pytest.raises(ImportError, match=r"^ray is not installed: "):
        c.sweep(recipes(), tmp_path, on="ray")
    assert not [*tmp_path.iterdir()]


def pretended(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    """Pretend that Ray is installed, and that connecting raises an error."""

    def init(*_: object, **__: object) -> None:
        if error is not None:
            raise error

    fake = SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None, __version__="2.60.0")
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(cluster, "_running", lambda: "auto")


MUST = "address must be that of a Ray cluster, such as auto or 10.0.0.1:6379, got"
MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.9.0
    Python: 3.11.1
This process on 127.0.0.1 was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""


@pytest.mark.parametrize(
    ("address", "error", "sentence"),
    [
        (
            "auto",
            type("AuthenticationError", (RuntimeError,), {})("RPC error: InvalidAuthToken"),
            "the Ray cluster at 'auto' must know the token of this process, got none: set RAY_AUTH_MODE to token, and "
            "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to that of the cluster",
        ),
        ("127.0.0.1:1", None, f"{MUST} '127.0.0.1:1', which accepts no connection: Connection refused"),
        ("ray://127.0.0.1:1", None, f"{MUST} 'ray://127.0.0.1:1', which accepts no connection: Connection refused"),
        ("host:port", None, f"{MUST} 'host:port'"),
        (
            "auto",
            ConnectionError("Could not find any running Ray instance.\nPlease specify the one to connect to"),
            "a Ray cluster must run on this machine for address 'auto', got none: start one with ray start --head, "
            "pass its address, or leave address out",
        ),
        (
            "auto",
            RuntimeError(MISMATCH),
            f"the cluster at 'auto' must have Ray 2.60.0 and Python {sys.version.split()[0]}, as this process has, "
            "got Ray 2.9.0 and Python 3.11.1: install the same versions on all machines",
        ),
    ],
)
def test_clusters_that_cannot_be_used_are_told_in_one_sentence(
    address: str, error: Exception | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended(monkeypatch, error)
    with pytest.raises((ValueError, ConnectionError), match=f"^{re.escape(sentence)}$"), connected(address):
        pass


def test_the_files_of_a_run_are_sent_without_locks_and_replace_older_ones(tmp_path: Path) -> None:
    (source := tmp_path / "source").mkdir()
    for name in ("checkpoint-2.json", "checkpoint-2.safetensors", "recipe.toml", ".lock", ".origin"):
        (source / name).write_text(name)
    (source / "tensorboard").mkdir()
    (target := tmp_path / "target").mkdir()
    for name in ("checkpoint-1.json", "checkpoint-1.safetensors", "mine.txt"):
        (target / name).write_text("old")
    unpack(packed(source), target)
    assert sorted(path.name for path in target.iterdir() if not path.name.startswith(".")) == [
        "checkpoint-2.json",
        "checkpoint-2.safetensors",
        "mine.txt",
        "recipe.toml",
    ]
    assert packed(target) == {**packed(source), "mine.txt": b"old"}
    for name in ("../recipe.toml", "a/b", ".lock", ""):
        with pytest.raises(ValueError, match=r"^a run must have files with plain names, got "):
            unpack({name: b""}, target)
