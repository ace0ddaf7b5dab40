"""The surrogate loss of the score-function estimators."""

import torch

from ..functional.bound import average
from ..functional.signal import Method, score_function_loss, signal_of
from ..objective import LogWeights, Objective, is_fused
from .base import Estimate


def surrogate(weights: LogWeights, objective: Objective, method: Method, *, bound_target: str | None) -> Estimate:
    """Return an estimate whose loss has the score-function gradient.

    That is minus the gradient of the objective, minus the signal times the gradient of log q at every node without a
    pathwise gradient. `method` says how the signal of each sample, the same at all nodes, follows from the log-weights.
    """
    scored = weights.scored
    if is_fused(weights, objective) and scored == weights.q.latent:
        terms = list(weights.log_p.values()), list(weights.log_q.values())
        loss, value, log_w, signal = score_function_loss(*terms, method, objective is average)
        return Estimate(loss, value, log_w, bound_target, dict.fromkeys(scored, signal), weights)
    with torch.no_grad():  # autograd need not record how the signal is computed
        signals = dict.fromkeys(scored, signal_of(weights.log_w.detach(), method, objective))
    return Estimate.of(weights, objective, signals, bound_target=bound_target)
