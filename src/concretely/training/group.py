"""The process group of ranks: which GPU a rank takes, how the group starts, and how a process leaves it."""

import atexit
import gc
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from threading import Thread

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store
from torch.distributed.rendezvous import rendezvous

from ..spelling import first_line

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
"""The environment variables that are read. Those of the rendezvous are read by torch."""
TIMEOUT = timedelta(minutes=10)
"""The time after which a rank that waits for the others fails."""
PATIENCE = 2.0
"""Seconds to wait for other ranks when all do the same at about the same time: report an error, write a file, leave."""
MOMENT = 0.02
"""Seconds between two polls of other ranks."""
LEAVING = 10.0
"""Seconds to leave the process group. A library that waits for lost ranks must not keep a process from ending."""
LINGERING = 0.1
"""Seconds that a process waits for the threads of gloo before it ends."""
LOST_RANK = "another rank has ended or does not answer: start all again to go on from the last checkpoint"
"""The error of a rank about a lost rank."""


class LostRankError(RuntimeError):
    """Raised if another rank has ended or does not answer."""


def is_started_by_torchrun() -> bool:
    """Return whether the environment is that of a rank."""
    return all(name in os.environ for name in NAMES)


def starts_group() -> bool:
    """Return whether a rank has no process group yet."""
    return is_started_by_torchrun() and dist.is_available() and not dist.is_initialized()


def own_gpu(device: torch.device) -> torch.device:
    """Return the GPU of this rank and make it the current one: that of the local rank, unless its index is given."""
    index = device.index
    if index is None:
        index = number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else torch.cuda.current_device()
    if index > (count := torch.cuda.device_count()) and device.index is None:
        raise SystemExit(1)  # the first rank without a GPU says so
    if index >= count:
        todo = "start one rank for each GPU of a machine, or train on the CPU"
        raise ValueError(f"every rank must have a GPU of its own, got local rank {index} for {count} GPUs: {todo}")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def start(device: torch.device) -> None:
    """Start the process group of torchrun. The process leaves it when it ends.

    NCCL reduces tensors on a GPU, and gloo tensors on the host.
    """
    rank, ranks = number("RANK"), number("WORLD_SIZE")
    if rank >= ranks:
        raise ValueError(f"RANK must be below WORLD_SIZE, as torchrun sets them, got {rank} and {ranks}")
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        store, *_ = next(rendezvous("env://", rank, ranks, timeout=TIMEOUT))
        own = PrefixStore(_meeting(store, rank, ranks), store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=ranks, timeout=TIMEOUT)
    except (ValueError, RuntimeError) as error:
        why = first_line(error)
        raise ValueError(f"ranks must be started by torchrun, got RANK={rank} without a rendezvous: {why}") from None
    atexit.register(leave)


def _meeting(store: Store, rank: int, ranks: int) -> str:
    """Return a name that is unique to this start of the ranks.

    After a restart, torchrun's store still has what earlier ranks wrote, such as their addresses. So rank 0 chooses a
    name, the other ranks add their names, and each continues once rank 0 has seen its name.
    """
    own = secrets.token_hex(8)
    if rank == 0:
        store.set("concretely/start", own)
        seen = [store.get(f"concretely/{own}/{other}").decode() for other in range(1, ranks)]
        store.set(f"concretely/{own}/seen", " ".join(seen))
        return own
    until = time.monotonic() + TIMEOUT.total_seconds()
    while time.monotonic() < until:
        start = str(store.get("concretely/start").decode())
        store.set(f"concretely/{start}/{rank}", own)
        if store.check([key := f"concretely/{start}/seen"]) and own in store.get(key).decode():
            return start
        time.sleep(MOMENT)
    raise RuntimeError(f"rank 0 has not answered within {TIMEOUT}")


def leave() -> None:
    """Leave the process group, if there is one. All ranks should do so before they end.

    The threads of gloo keep tensors for a moment after a collective. If Python ends meanwhile, the process is aborted.
    NCCL waits for all ranks and for CUDA graphs that use it. So its communicators are aborted unless all ranks leave.
    """
    atexit.unregister(leave)
    if not dist.is_initialized():
        return
    all_leave, ends = _all_leave(), dist.destroy_process_group
    if is_nccl():
        gc.collect()  # graphs in cycles of references
        ends = ends if all_leave else distributed_c10d._abort_process_group
    thread = Thread(target=_quietly, args=(ends,), daemon=True)
    thread.start()
    thread.join(LEAVING)
    linger()


def linger() -> None:
    """Wait until the threads of gloo have freed the tensors of the last collective.

    Where something else keeps a group, such as the shards of FSDP2, these threads outlive it. A program of torch alone
    was aborted in one of six runs, if it ended right after a collective.
    """
    time.sleep(LINGERING)


def _quietly(ends: Callable[[], None]) -> None:
    with suppress(RuntimeError, ValueError, AssertionError):  # such as of a group that is gone already
        ends()


def _all_leave() -> bool:
    """Return whether all ranks leave at the same time. Rank 0, which may have the store, knows it last."""
    with suppress(RuntimeError):  # the process that had the store has ended
        store, ranks, until = _get_default_store(), dist.get_world_size(), time.monotonic() + PATIENCE
        store.add("concretely/leaving", 1)
        leaves = _reaches(store, "concretely/leaving", ranks, until)
        if dist.get_rank() > 0:
            store.add("concretely/left", 1)
            return leaves
        return _reaches(store, "concretely/left", ranks - 1, until) and leaves
    return False


def _reaches(store: Store, name: str, count: int, until: float) -> bool:
    """Return whether a number in a store is as large as asked for within some time."""
    while store.add(name, 0) < count:
        if time.monotonic() > until:
            return False
        time.sleep(MOMENT)
    return True


def is_nccl(device: torch.device | None = None) -> bool:
    """Return whether NCCL reduces tensors of a device, by default a GPU."""
    with suppress(RuntimeError):
        backend = distributed_c10d._get_default_group()._get_backend(torch.device("cuda") if device is None else device)
        return bool(backend.name() == "nccl")
    return False


def number(name: str) -> int:
    """Return an environment variable of torchrun as a number."""
    text = os.environ[name]
    if not text.isdecimal():
        raise ValueError(f"{name} must be a whole number, as torchrun sets it, got {text!r}")
    return int(text)
