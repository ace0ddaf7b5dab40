"""The loss of score-function estimators, which differ only in their learning signal."""

from collections.abc import Callable

from torch import Tensor

from ..objective import LogWeights, Objective, loss
from .base import Estimate

Signal = Callable[[Tensor], Tensor]
"""A function from log-weights to the learning signal of each sample."""


def surrogate(weights: LogWeights, objective: Objective, signal: Signal, *, bound_target: str | None) -> Estimate:
    """An estimate whose gradient is that of the objective plus the signal times the gradient of each sample's log q.

    The loss has the value of minus the objective; the signal only changes its gradient.
    """
    signals = dict.fromkeys(weights.scored, signal(weights.log_w.detach()))
    return Estimate(*loss(weights, objective, signals), bound_target, signals)
