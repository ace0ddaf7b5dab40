"""Tasks of layers: every task trains."""

import math

import pytest
import torch

from benchmarks import layer_tasks


@pytest.mark.parametrize("name", layer_tasks.TASKS)
def test_a_task_trains(name: str) -> None:
    torch.manual_seed(0)
    reached = layer_tasks.TASKS[name].train(2)
    assert reached
    assert all(math.isfinite(number) for number in reached.values())
