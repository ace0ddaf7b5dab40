"""Share the members of an experiment among processes that were started on one folder, on one machine or several.

Each process trains members that no other process holds, and waits at the end until the others are done. A process holds
members by file locks, which end with the process. Members of a process that died are resumed by another one from their
last checkpoint. Processes exchange nothing else.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from ..file import try_file_lock
from ..mount import local_locks
from ..training.recipe import Member
from .scheduler import POLL_SECONDS, Monitor, is_settled, program_groups, run_tasks, train_program
from .subject import program_of
from .work import Bundle, Work

CLAIM = ".claim"
"""The lock file in the folder of a member that a process trains or scores."""
TRAINING = ".lock"
"""The lock file of training, which a process that does not share holds as well."""
GPU_MEMBERS = 8
"""The default number of members of one program on a GPU. More train faster together, but leave less to others."""
WAITS = (0.25, 8.0)
"""The first and the longest pause, in seconds, between two searches for members that no process holds."""


def require_locks(folder: Path, note: Callable[[str], None]) -> None:
    """Raise an error if a folder is on a file system without locks; note if they may not reach other machines."""
    with try_file_lock(folder / CLAIM):
        pass
    if kind := local_locks(folder):
        todo = "start all processes on this machine, or choose a folder on NFSv4, or on Lustre mounted with flock"
        note(f"locks in {str(folder)!r} ({kind}) may not reach other machines: {todo}")


@contextmanager
def claim_bundle(bundle: Bundle) -> Iterator[bool]:
    """Hold all members of a bundle unless another process holds one of them, and yield whether this succeeded."""
    with ExitStack() as stack:
        for member in bundle:
            member.folder.mkdir(parents=True, exist_ok=True)
            free = stack.enter_context(try_file_lock(member.folder / CLAIM))
            if free:
                with try_file_lock(member.folder / TRAINING) as free:
                    pass
            if not free:
                stack.close()
                yield False
                return
            # an NFS client may have cached the folder; listing it asks the server again
            os.listdir(member.folder)
        yield True


def members_per_program(wanted: int | None, device: torch.device) -> int:
    """Return the maximum number of members of one program. On a CPU, training together is hardly faster."""
    return wanted or (GPU_MEMBERS if device.type == "cuda" else 1)


def train_shared(work: Work, *, members: int | None = None) -> bool:
    """Train and score members that no other process holds until all are done; return False if the monitor stops first.

    `members` is the maximum number of members that this process trains as one program, by default 8 on a GPU and 1
    elsewhere.
    """
    left, guard, size = [*work.bundles], Lock(), members_per_program(members, work.device)

    def take(monitor: Monitor) -> bool:
        pause, noted = WAITS[0], False
        while True:
            with guard:
                left[:] = [bundle for bundle in left if not work.score.is_done(bundle)]
                here = [*left]
            if not here:
                return True
            if monitor.stop():
                return False
            with ExitStack() as stack:
                if taken := _taken(here, size, work.until, stack):
                    if not _train(taken, work, monitor):
                        return False
                    with guard:
                        left[:] = [bundle for bundle in left if bundle not in taken]
                    pause, noted = WAITS[0], False
                    continue
            if not noted and work.programs == 1:
                number = sum(map(len, here))
                noun = "a member that another process has" if number == 1 else f"{number} members that others have"
                monitor.note(f"waiting for {noun}")
                noted = True
            _sleep(pause, monitor.stop)
            pause = min(2 * pause, WAITS[1])

    return run_tasks([take] * work.programs, threads=work.programs, monitor=work.monitor)


def _taken(left: Sequence[Bundle], size: int, until: int | None, stack: ExitStack) -> list[Bundle]:
    """Claim bundles of one program with up to `size` members, or one bundle that only has to be scored; return them."""
    taken = list[Bundle]()
    for bundle in left:
        number = sum(map(len, taken))
        if taken and (number + len(bundle) > size or program_of(bundle[0].recipe) != program_of(taken[0][0].recipe)):
            continue
        with ExitStack() as own:
            if not own.enter_context(claim_bundle(bundle)):
                continue
            settled = all(is_settled(member, until) for member in bundle)
            if settled and taken:
                continue
            taken.append(bundle)
            stack.push(own.pop_all())
        if settled or number + len(bundle) >= size:
            break
    return taken


def _train(bundles: Sequence[Bundle], work: Work, monitor: Monitor) -> bool:
    """Train and score bundles that this process holds."""
    groups = program_groups(list(chain(*bundles)))  # candidates of a cell may be of several programs
    how: dict[str, Any] = {**work.how, "alone": work.programs == 1, "monitor": monitor}

    def score(group: Sequence[Member], monitor: Monitor) -> None:
        for bundle in bundles if group is groups[-1] else ():
            work.score(bundle, work.data, device=work.device, monitor=monitor)

    return all(train_program(group, work.data, **how, then=score) for group in groups)


def _sleep(seconds: float, stop: Callable[[], bool]) -> None:
    """Sleep, but not after `stop` returns true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stop():
        time.sleep(min(POLL_SECONDS, seconds))
