"""Score-function estimators without a baseline, and with a leave-one-out baseline."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ..functional.bound import average
from ..functional.noise import Source
from ..graph.mode import Discrete
from ..graph.program import Program
from ..model.model import Model
from ..objective import Objective, bound_target, log_weights
from .base import Estimate
from .surrogate import surrogate


@dataclass(frozen=True)
class Reinforce:
    r"""The score-function estimator, also known as REINFORCE.

    $$∇ E[f(X)] = E[f(X) ∇ \log q(X) + ∇ f(X)]$$

    Approximates: the gradient of any objective of a discrete graph.
    With: draws of the discrete graph; the objective is the signal of every sample.
    Requires: only the values of the cost, which need not be differentiable.
    Bias: none; the variance is large. See [williams1992simple].

    >>> import torch, concretely as c
    >>> c.estimate(c.density("2H-4V"), torch.zeros(8, 4), estimator=c.Reinforce()).loss.backward()
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
        """Estimate an objective."""
        weights = log_weights(
            target, *inputs, mode=Discrete(), samples=samples, generator=generator, batch_dims=batch_dims
        )
        return surrogate(weights, objective, "reinforce", bound_target=bound_target(target, objective))


@dataclass(frozen=True)
class RLOO:
    r"""The score-function estimator with a leave-one-out baseline: the mean of the other samples.

    $$\frac1m \sum_i \bigl(f_i - \frac{1}{m-1} \sum_{j≠i} f_j\bigr) ∇ \log q_i$$

    Approximates: the gradient of an expectation, or of the single-sample bound of a model.
    With: m draws of the discrete graph.
    Requires: at least 2 samples.
    Bias: none. See [kool2019buy].

    >>> import torch, concretely as c
    >>> c.estimate(c.density("2H-4V"), torch.zeros(8, 4), estimator=c.RLOO(), samples=4).loss.backward()
    """

    averages: ClassVar[bool] = True

    def __call__(
        self,
        target: Model | Program,
        *inputs: Any,
        samples: int,
        objective: Objective,
        generator: Source | None,
        batch_dims: int = 1,
    ) -> Estimate:
        """Estimate the objective `average`, the mean over samples."""
        if samples < 2:
            raise ValueError(
                f"samples must be at least 2 for RLOO, got {samples}: the baseline is the mean of the others"
            )
        weights = log_weights(
            target, *inputs, mode=Discrete(), samples=samples, generator=generator, batch_dims=batch_dims
        )
        return surrogate(weights, average, "leave-one-out", bound_target=bound_target(target, average))
