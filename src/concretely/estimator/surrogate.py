"""The engine of the score-function estimators, which differ by their learning signal alone."""

from collections.abc import Callable

from torch import Tensor

from ..objective import Objective, Weighing, loss
from .base import Estimate

Signal = Callable[[Tensor], Tensor]
"""A function from log-weights to the credit that each sample gets for the objective."""


def surrogate(weighing: Weighing, objective: Objective, signal: Signal, *, bounds: str | None) -> Estimate:
    """An estimate whose gradient is that of the objective, plus credit times the gradient of each sample's log q.

    The loss has the value of the objective, and only its gradient knows of the credit.
    """
    credit = dict.fromkeys(weighing.credited, signal(weighing.log_w.detach()))
    return Estimate(*loss(weighing, objective, credit), bounds, credit)
