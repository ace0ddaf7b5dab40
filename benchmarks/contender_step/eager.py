"""Steps and probes of a loss written in PyTorch."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..agreement import Probe
from ..training import BETAS, EPSILON, LEARNING_RATE, Training
from .base import Contender


def contender(
    name: str, model: nn.Module, loss: Callable[[Tensor], Tensor], *, task: Training, ours: bool = False
) -> Contender:
    """Return a contender that runs the forward and backward pass and the update, with the global generator."""
    x = torch.from_numpy(task.batch)
    # of the three ways in which torch writes this update, the fastest
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, fused=True)

    def forward_and_backward() -> Tensor:
        optimiser.zero_grad()
        value = loss(x)
        value.backward()
        return value

    def step(seed: int) -> Tensor:
        value = forward_and_backward()
        optimiser.step()
        return value

    def probe(seed: int) -> Probe:
        value = forward_and_backward().item()
        pairs = [(p.detach().double(), p.grad.double()) for p in model.parameters() if p.grad is not None]
        growth = sum((p * g).sum().item() for p, g in pairs)
        return Probe(value, growth, sum(g[p == 0].sum().item() for p, g in pairs))

    return Contender(name, step=step, probe=probe, ours=ours)
