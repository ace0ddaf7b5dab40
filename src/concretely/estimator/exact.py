"""The exact objective and its gradient, by enumeration."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..functional.bound import average, total
from ..functional.noise import Source
from ..graph.mode import STATES, Enumerate
from ..graph.program import Program, eval_mode
from ..model.model import Model
from ..objective import Objective, bound_target, log_weights
from .base import Estimate


@dataclass(frozen=True)
class Exact:
    """The exact expectation over all joint states of all samples.

    Approximates: nothing; the gradient is exact.
    With: every joint state of the graph, for every sample, in evaluation mode unless the program is compiled.
    Requires: at most 2²⁰ joint states.
    Bias: none, and no variance.

    >>> import torch, concretely as c
    >>> c.estimate(c.density("2H-4V"), torch.zeros(8, 4), estimator=c.Exact()).loss.backward()
    """

    def __call__(
        self,
        target: Model | Program,
        *inputs: Any,
        samples: int,
        objective: Objective,
        generator: Source | None,
        batch_dims: int = 1,
    ) -> Estimate:
        """Compute the expectation of an objective, exactly and differentiably."""
        # states are not weighted by their probability, so they must not update running averages
        with eval_mode(target):
            weights = log_weights(target, *inputs, mode=Enumerate(), batch_dims=batch_dims)
        log_w, log_q = weights.log_w, total(weights.log_q.values())
        value = expectation(log_w, log_q, samples=1 if objective is average else samples, objective=objective)
        probs = log_q.detach().exp()
        return Estimate(
            -value.mean(),
            value.detach(),
            log_w.detach(),
            bound_target(target, objective),
            weights=weights,
            state_probs=probs,
        )


def expectation(
    log_w: Float[Tensor, "states *batch"], log_q: Float[Tensor, "states *batch"], *, samples: int, objective: Objective
) -> Float[Tensor, "*batch"]:
    """Return the expected objective of independent samples, given the log-weight and log probability of each state."""
    states = len(log_w)
    if samples * math.log2(states) > math.log2(STATES):
        raise ValueError(
            f"at most 2^20 joint states of all samples can be enumerated, got {states} states for {samples} samples"
        )
    log_w = torch.where(log_q == -math.inf, 0, log_w)  # impossible states have infinite log-weights
    state = torch.cartesian_prod(*[torch.arange(states, device=log_w.device)] * samples).view(-1, samples).T
    probability = log_q[state].sum(0).exp()
    return (probability * objective(log_w[state])).sum(0)
