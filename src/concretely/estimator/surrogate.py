"""The engine of the score-function estimators, which differ by their learning signal alone."""

from collections.abc import Callable, Mapping

from jaxtyping import Float
from torch import Tensor

from ..objective import Objective, Weighing, average, total
from .base import Estimate

Signal = Callable[[Tensor], Tensor]
"""A function from log-weights to the credit that each sample gets for the objective."""


def surrogate(weighing: Weighing, objective: Objective, signal: Signal, *, bounds: str | None) -> Estimate:
    """An estimate whose gradient is that of the objective, plus credit times the gradient of each sample's log q.

    The loss has the value of the objective, and only its gradient knows of the credit.
    """
    log_w = weighing.log_w_given_q if objective is average else weighing.log_w
    credit = signal(log_w.detach())
    return credited(weighing, log_w, objective, dict.fromkeys(weighing.credited, credit), bounds=bounds)


def credited(
    weighing: Weighing,
    log_w: Float[Tensor, "m *batch"],
    objective: Objective,
    signal: Mapping[str, Tensor],
    *,
    bounds: str | None,
) -> Estimate:
    """An estimate in which every node has a signal of its own, or none if its gradient is pathwise."""
    value = objective(log_w)
    loss = -value
    if signal:
        score = total({name: credit * weighing.log_q[name] for name, credit in signal.items()}).sum(0)
        loss = loss - (score - score.detach())
    return Estimate(loss.mean(), value.detach(), log_w.detach(), bounds, signal)
