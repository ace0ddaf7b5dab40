"""A task with a family written in PyTorch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..task import Task, scored
from .base import Result


def step(
    build: Callable[[Any, Any], Any],
    draw: Callable[[Any], tuple[Tensor, Tensor]],
    *,
    task: Task,
    temperatures: Sequence[float | Tensor],
    compiled: bool = False,
) -> Callable[[int], Result]:
    """Return a contender that runs the forward and backward pass of a task."""
    logits = [torch.from_numpy(array).requires_grad_() for array in task.logits]
    cotangents = [torch.from_numpy(array) for array in task.cotangents]
    run = work(build, draw, logits=logits, cotangents=cotangents, temperatures=temperatures, compiled=compiled)
    return lambda seed: run()


def work(
    build: Callable[[Any, Any], Any],
    draw: Callable[[Any], tuple[Tensor, Tensor]],
    *,
    logits: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    temperatures: Sequence[float | Tensor],
    compiled: bool = False,
) -> Callable[[], Result]:
    """Run the forward and backward pass, with noise from the global generator."""

    def forward(*logits: Tensor) -> tuple[Tensor, ...]:
        return scored(build, draw, logits=logits, temperatures=temperatures)

    # shapes are fixed, as in training; the compiler would take the second it meets for one of many
    forward = torch.compile(forward, fullgraph=True, dynamic=False) if compiled else forward

    def forward_and_backward() -> Result:
        outputs = forward(*logits)
        # the log density of an own draw may be constant in the logits; then there is nothing to pull back
        pulled = [index for index, output in enumerate(outputs) if output.requires_grad]
        gradients = torch.autograd.grad([outputs[i] for i in pulled], logits, [cotangents[i] for i in pulled])
        return outputs, gradients

    return forward_and_backward


def draw_then_score(variable: Any) -> tuple[Tensor, Tensor]:
    """Return a draw and its log density, by the methods of torch's distributions."""
    value = variable.rsample()
    return value, variable.log_prob(value)
