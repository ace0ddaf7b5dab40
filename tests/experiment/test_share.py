"""Processes that share a folder train every member once between them, whatever happens to one of them."""

import errno
import os
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from concretely import file, mount
from concretely.experiment import paper, scheduler
from concretely.experiment.place import Ray, Share, place_of
from concretely.experiment.plan import plan_experiment, reproduce
from concretely.experiment.scheduler import Monitor
from concretely.experiment.search import Sweep, sweep, sweep_recipes, train_list
from concretely.experiment.share import claim_bundle
from concretely.file import exclusive_dir
from concretely.mount import local_locks
from concretely.training import loop
from concretely.training.recipe import Member, resolve

from ..process import forked
from .child import SLEEP_AT, work

PATIENCE = 120.0
"""Seconds after which a process hangs."""


def together(*tasks: Callable[[], Any]) -> list[Any]:
    """Call functions at the same time. Locks hold between threads as between processes."""
    start = Barrier(len(tasks))

    def call(task: Callable[[], Any]) -> Any:
        start.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(call, task) for task in tasks]]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the members that are trained, one by one."""
    found, train = list[str](), loop.train_together

    def watched(members: Sequence[Member], **others: Any) -> Any:
        found.extend(member.folder.name for member in members)
        return train(members, **others)

    monkeypatch.setattr(loop, "train_together", watched)
    return found


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the members to whose records scores are added."""
    found, add = list[str](), scheduler.add_scores

    def watched(folder: Path, *others: Any, **options: Any) -> Any:
        found.append(folder.name)
        return add(folder, *others, **options)

    monkeypatch.setattr(scheduler, "add_scores", watched)
    return found


def content(folder: Path) -> dict[str, bytes]:
    """The files of a sweep that do not depend on the time that it took."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("model.safetensors")}


def test_a_shared_sweep_is_that_of_one_process_and_trains_every_member_once(
    tmp_path: Path, trained: list[str], scored: list[str]
) -> None:
    recipes = sweep_recipes(notation="4H-64V", steps=12, lr="1e-3,1e-2,1e30", weight_decay="0,1")
    alone = sweep(recipes, tmp_path / "alone", samples=2)
    trained.clear()
    scored.clear()
    found: list[Sweep] = together(*(3 * [lambda: sweep(recipes, tmp_path / "shared", samples=2, on="share")]))
    assert sorted(trained) == sorted({member.folder.name for member, _ in alone.ranked})
    assert len(scored) == len(set(scored)) == 4  # two diverge
    assert content(tmp_path / "shared") == content(tmp_path / "alone")
    for each in found:
        assert [member.recipe for member, _ in each.ranked] == [member.recipe for member, _ in alone.ranked]
    best = [(tmp_path / name / "best.toml").read_text() for name in ("alone", "shared")]
    assert best[0] == best[1]


def test_a_finished_sweep_is_not_written_again(tmp_path: Path, trained: list[str]) -> None:
    recipes = sweep_recipes(notation="4H-64V", steps=2, lr="1e-3,1e-2", weight_decay=0)
    sweep(recipes, tmp_path, samples=1, on="share")
    files = [tmp_path / "sweep.json", tmp_path / "best.toml", *tmp_path.glob("*/record.json")]
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files]
    trained.clear()
    sweep(recipes, tmp_path, samples=1, on=Share())
    assert trained == []
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files] == before


def test_members_of_a_program_are_taken_together_up_to_a_number(tmp_path: Path) -> None:
    recipes = [resolve(notation="4H-64V", steps=2, seed=seed) for seed in range(5)]
    groups = list[int]()

    def training(members: Sequence[Member], alone: bool) -> Any:
        groups.append(len(members))
        return Monitor().training(members, alone)

    train_list(recipes, tmp_path, samples=1, on=Share(2), monitor=Monitor(training=training))
    assert groups == [2, 2, 1]


def test_what_a_process_that_does_not_share_trains_is_left_to_it(tmp_path: Path) -> None:
    member = Member(resolve(notation="4H-64V", steps=2), tmp_path / "one")
    with claim_bundle([member]) as first, claim_bundle([member]) as second:
        assert (first, second) == (True, False)
    with exclusive_dir(member.folder), claim_bundle([member]) as first:
        assert not first
    other = Member(member.recipe, tmp_path / "other")
    with claim_bundle([member]), claim_bundle([other, member]) as both, claim_bundle([other]) as one:
        assert (both, one) == (False, True)  # a bundle is held as a whole or not at all


def test_a_process_that_waits_can_be_stopped(tmp_path: Path) -> None:
    recipes = [resolve(notation="4H-64V", steps=2, seed=seed) for seed in range(2)]
    notes, held = list[str](), Member(recipes[1], tmp_path / "seed=1")
    monitor = Monitor(lambda: any(note.startswith("waiting") for note in notes), note=notes.append)
    with claim_bundle([held]), pytest.raises(KeyboardInterrupt):
        train_list(recipes, tmp_path, samples=1, on="share", monitor=monitor)
    assert notes[-1] == "waiting for a member that another process has"
    assert (tmp_path / "seed=0" / "record.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL elsewhere")
@pytest.mark.usefixtures("tables")
def test_what_a_killed_process_left_is_taken_over_and_every_step_is_taken_once(
    tmp_path: Path, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = forked()
    folder, processes, pipes = tmp_path / "shared", [], []
    for sleeps in (True, False):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(folder, paper.FOLDER, theirs, sleeps))
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    victim, other = processes
    heard = [list[str](), list[str]()]
    for told, pipe, word in zip(heard, pipes, ("asleep", "waiting for a member that another process has"), strict=True):
        while word not in told:
            assert pipe.poll(PATIENCE), told
            told.append(pipe.recv())
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    assert pipes[1].poll(PATIENCE)
    while heard[1][-1] != "complete":
        heard[1].append(pipes[1].recv())
    other.join(PATIENCE)
    victim.join(PATIENCE)
    assert (victim.exitcode, other.exitcode) == (-signal.SIGKILL, 0)

    steps, workers, scores = defaultdict[str, list[int]](list), defaultdict[str, set[str]](set), list[str]()
    for line in (tmp_path / "log.txt").read_text().splitlines():
        name, what, worker = line.split()
        workers[name].add(worker)
        if what == "scored":
            scores.append(name)
        else:
            steps[name].append(int(what))
    plan = plan_experiment("tiny", folder=folder)
    names = sorted(member.folder.name for member in plan.members)
    assert sorted(steps) == sorted(scores) == names
    assert all(taken == [*range(1, 13)] for taken in steps.values())
    (lost,) = [name for name in names if str(victim.pid) in workers[name]]
    assert workers[lost] == {str(victim.pid), str(other.pid)}
    assert SLEEP_AT < 12
    found = reproduce(plan)
    assert (found.complete, trained) == (True, [])
    assert all(result.score("test_nll") and result.score("train_nll") for result in found.results)


def test_file_systems_without_locks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(file.fcntl, "flock", no_locks)
    recipes = [resolve(notation="4H-64V", steps=2, seed=seed) for seed in range(2)]
    kinds = "such as NFSv4, or Lustre that is mounted with flock"
    sentence = f"{str(tmp_path)!r} must be on a file system with locks, {kinds}, got one without"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        train_list(recipes, tmp_path, samples=1, on="share")
    assert not [*tmp_path.glob("*/*")]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ext4 /dev/sda rw", None),
        ("nfs4 server:/data rw,vers=4.2,local_lock=none", None),
        ("nfs server:/data rw,vers=3,nolock,local_lock=all", "nfs with nolock"),
        ("nfs4 server:/data rw,local_lock=flock", "nfs4 with local_lock=flock"),
        ("lustre mgs:/data rw,flock,lazystatfs", None),
        ("lustre mgs:/data rw,localflock", "lustre with localflock"),
        ("fuse.sshfs host:/data rw", "fuse.sshfs"),
        ("fuse.gcsfuse bucket rw", "fuse.gcsfuse"),
        ("fuse.glusterfs host:/data rw", None),
        ("beegfs beegfs_nodev rw", "beegfs"),
    ],
)
def test_locks_that_may_not_reach_other_machines_are_known(
    line: str, kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "with space").mkdir()
    monkeypatch.setattr(mount, "MOUNTS", tmp_path / "mountinfo")
    point = str(folder.resolve()).replace(" ", r"\040")
    lines = [f"2 1 0:1 / {point} rw,noatime shared:1 - {line}", "1 1 8:1 / / rw - fuse.other /dev/root rw"]
    (tmp_path / "mountinfo").write_text("\n".join(lines))
    assert local_locks(folder) == kind
    assert local_locks(tmp_path) == "fuse.other"
    notes = list[str]()
    recipes = [resolve(notation="4H-64V", steps=1, seed=seed) for seed in range(2)]
    if line == "nfs4 server:/data rw,local_lock=flock":
        train_list(recipes, folder, samples=1, on="share", monitor=Monitor(note=notes.append))
        assert notes[1] == (
            f"locks in {str(folder)!r} (nfs4 with local_lock=flock) may not reach other machines: start all processes "
            "on this machine, or choose a folder on NFSv4, or on Lustre mounted with flock"
        )


def test_bad_places_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^unknown place 'rey'; did you mean 'ray'\?$"):
        place_of("rey")
    with pytest.raises(ValueError, match=r"^members_per_program must be at least 1, got 0$"):
        Share(0)
    with pytest.raises(ValueError, match=r"^programs_per_gpu must be at least 1, got 0$"):
        Ray(programs_per_gpu=0)
    with pytest.raises(
        ValueError, match=r"^device must be 'cpu' or 'cuda' on Ray, which chooses the GPU, got 'cuda:1'$"
    ):
        Ray(device="cuda:1")
