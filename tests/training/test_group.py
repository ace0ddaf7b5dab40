"""A rank takes its own GPU, and a process leaves its group before it ends, whatever the others do."""

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from concretely.training import group
from concretely.training.parallel import describe_loss, join

from . import ranks


@pytest.mark.parametrize(("given", "local", "chosen"), [("cuda", "1", 1), ("cuda:0", "1", 0), ("cuda", None, 1)])
def test_a_rank_takes_the_gpu_of_its_local_rank_unless_one_is_named(
    given: str, local: str | None, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = list[int]()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local is not None:
        monkeypatch.setenv("LOCAL_RANK", local)
    assert group.own_gpu(torch.device(given)) == torch.device("cuda", chosen)
    assert taken == [chosen]


def test_more_ranks_than_gpus_are_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    sentence = "every rank must have a GPU of its own, got local rank 2 for 2 GPUs: start one rank for each GPU"
    with pytest.raises(ValueError, match=f"^{sentence}"):
        group.own_gpu(torch.device("cuda"))
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(SystemExit):
        group.own_gpu(torch.device("cuda"))


def test_two_ranks_on_one_gpu_are_told_so() -> None:
    error = dist.DistBackendError("NCCL error\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000")
    assert describe_loss(error).startswith("every rank must have a GPU of its own, got two ranks on one: start one")


def left(waits: float) -> tuple[float, bool]:
    """How long it takes to leave a group of which another rank goes on for some time, and whether it is left."""
    world = join("cpu")
    world.wait()
    assert dist.is_initialized()
    assert not group.is_nccl()
    time.sleep(waits * world.rank)
    start = time.monotonic()
    group.leave()
    return time.monotonic() - start, not dist.is_initialized()


@pytest.mark.slow
@pytest.mark.parametrize("waits", [0.0, 1.5 * group.PATIENCE])
def test_a_rank_leaves_with_the_others_or_after_some_time(waits: float, tmp_path: Path) -> None:
    found = [value for _, value, _ in ranks.launch(left, 2, tmp_path, waits)]
    assert all(is_left for _, is_left in found)
    assert all(seconds < 1.4 * group.PATIENCE for seconds, _ in found)


def test_without_a_group_there_is_nothing_to_leave() -> None:
    group.leave()
    assert not dist.is_initialized()
