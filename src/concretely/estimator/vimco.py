"""VIMCO: the score-function estimator of the multi-sample bound."""

from dataclasses import dataclass
from typing import Any

from ..functional.noise import Source
from ..functional.signal import Mean
from ..graph.mode import Discrete
from ..graph.program import Program
from ..model.model import Model
from ..objective import Objective, bound, bound_target, log_weights
from ..spelling import require_one_of
from .base import Estimate
from .surrogate import surrogate


@dataclass(frozen=True)
class VIMCO:
    r"""The score-function estimator whose signal is the contribution of each sample to the multi-sample bound.

    $$\hat L - \hat L_{-i}, \quad \hat L_{-i} \text{ with } w_i \text{ replaced by a mean of the others}$$

    Approximates: the gradient of the multi-sample bound.
    With: m draws of the discrete graph.
    Requires: at least 2 samples, and a model or a program whose cost is minus a log-weight.
    Bias: none. See [mnih2016variational].

    `mean` is the mean of the other weights, "geometric" or "arithmetic".

    >>> import torch, concretely as c
    >>> c.estimate(c.density("2H-4V"), torch.zeros(8, 4), estimator=c.VIMCO(), samples=5).loss.backward()
    """

    mean: Mean = "geometric"

    def __post_init__(self) -> None:
        require_one_of("mean", self.mean, "geometric", "arithmetic")

    def __call__(
        self,
        target: Model | Program,
        *inputs: Any,
        samples: int,
        objective: Objective,
        generator: Source | None,
        batch_dims: int = 1,
    ) -> Estimate:
        """Estimate the multi-sample bound."""
        if samples < 2:
            raise ValueError(
                f"samples must be at least 2 for VIMCO, got {samples}: use NVIL or Reinforce for one sample"
            )
        if objective is not bound:
            raise ValueError(
                "objective must be `bound` for VIMCO: pass objective=bound if the cost is minus a log-weight"
            )
        weights = log_weights(
            target, *inputs, mode=Discrete(), samples=samples, generator=generator, batch_dims=batch_dims
        )
        return surrogate(weights, bound, self.mean, bound_target=bound_target(target, bound))
