"""The surrogate loss of the score-function estimators."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..objective import LogWeights, Objective
from .base import Estimate

Signal = Callable[[Tensor], Tensor]
"""Maps log-weights to the learning signal of each sample."""


def surrogate(weights: LogWeights, objective: Objective, signal: Signal, *, bound_target: str | None) -> Estimate:
    """Return an estimate whose loss has the score-function gradient.

    That is minus the gradient of the objective, minus the signal times the gradient of log q at every node without a
    pathwise gradient. `signal` maps the detached log-weights to one signal for each sample, the same at all nodes.
    """
    with torch.no_grad():  # autograd need not record how the signal is computed
        signals = dict.fromkeys(weights.scored, signal(weights.log_w.detach()))
    return Estimate.of(weights, objective, signals, bound_target=bound_target)
