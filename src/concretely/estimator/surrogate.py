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
    nodes = weighing.credited
    score = (credit * total({name: weighing.log_q[name] for name in nodes})).sum(0) if nodes else None
    return estimated(log_w, objective, bounds=bounds, score=score, signal=dict.fromkeys(nodes, credit))


def estimated(
    log_w: Float[Tensor, "m *batch"],
    objective: Objective,
    *,
    bounds: str | None,
    score: Float[Tensor, "*batch"] | None,
    signal: Mapping[str, Tensor],
) -> Estimate:
    """An estimate from log-weights, and from credit times log q if any node gets it."""
    value = objective(log_w)
    loss = -value if score is None else -value - (score - score.detach())
    return Estimate(loss.mean(), value.detach(), log_w.detach(), bounds, signal)
