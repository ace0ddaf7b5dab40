"""The exact objective and its gradient by enumeration: the reference for all other estimators."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..functional.bound import average, total
from ..mode import STATES, Enumerate
from ..model.base import Model
from ..noise import Source
from ..objective import Objective, log_weights
from ..program import Program, eval_mode
from .base import Estimate, bound_target


@dataclass(frozen=True)
class Exact:
    """The expectation over all states of all samples.

    Approximates: nothing; it is the gradient.
    With: every joint state of the graph, for each of the samples if the objective has several.
    Requires: at most 2²⁰ joint states.
    Bias: none, and no variance.
    """

    def __call__(
        self, target: Model | Program, *inputs: Any, samples: int, objective: Objective, generator: Source | None
    ) -> Estimate:
        """Compute an objective."""
        # every state comes once, whatever its probability, so that running averages would learn something else
        with eval_mode(target):
            weights = log_weights(target, *inputs, mode=Enumerate())
        log_w, log_q = weights.log_w, total(weights.log_q.values())
        value = expectation(log_w, log_q, samples=1 if objective is average else samples, objective=objective)
        return Estimate(-value.mean(), value.detach(), log_w.detach(), bound_target(target, objective))


def expectation(
    log_w: Float[Tensor, "states *batch"], log_q: Float[Tensor, "states *batch"], *, samples: int, objective: Objective
) -> Float[Tensor, "*batch"]:
    """The expected objective of independent samples, given the log-weight and the log probability of every state."""
    states = len(log_w)
    if samples * math.log2(states) > math.log2(STATES):
        raise ValueError(
            f"a graph must have at most 2^20 states of all samples to be enumerated, got {states} of each of {samples}"
        )
    log_w = torch.where(log_q == -math.inf, 0, log_w)  # that of a state that cannot happen is infinite
    state = torch.cartesian_prod(*[torch.arange(states, device=log_w.device)] * samples).view(-1, samples).T
    probability = log_q[state].sum(0).exp()
    return (probability * objective(log_w[state])).sum(0)
