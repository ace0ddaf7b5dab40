"""The estimator protocol, and the function that runs an estimator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from ..functional.bound import average, bound, effective_sample_size
from ..graph.program import Program
from ..model.base import Model
from ..noise import Source
from ..objective import Objective


@dataclass(frozen=True)
class Estimate:
    """A loss whose gradient is the estimate, with diagnostics."""

    loss: Tensor
    """Minus the objective, averaged over the batch."""
    bound: Tensor
    """The objective of every data point."""
    log_w: Tensor
    """The log-weight of every sample and data point."""
    bound_target: str | None = None
    """The quantity that the expected objective bounds from below, or None."""
    signal: Mapping[str, Tensor] = field(default_factory=dict)
    """The learning signal by node, for every sample and data point; empty for pathwise gradients."""

    @property
    def effective_sample_size(self) -> Tensor:
        """Return the effective sample size of every data point."""
        return effective_sample_size(self.log_w)


@runtime_checkable
class Estimator(Protocol):
    """Estimates the gradient of an objective.

    An estimator that supports only the objective `average` has an attribute `averages = True`.
    """

    def __call__(
        self,
        target: Model | Program,
        *inputs: Any,
        samples: int,
        objective: Objective,
        generator: Source | None,
    ) -> Estimate: ...


def estimate(
    target: Model | Program,
    *inputs: Any,
    estimator: Estimator,
    samples: int = 1,
    objective: Objective | None = None,
    generator: Source | None = None,
) -> Estimate:
    """Estimate the objective of a model, or the expected cost of a program, and its gradient.

    The default objective is the multi-sample bound for a model, and the average for a program. Use `objective=bound`
    for a program that returns minus a log-weight. `RLOO` and `NVIL` support only `average`; for a model it is the
    average of single-sample bounds.

    >>> import torch, concretely as c
    >>> logits = torch.zeros(3, requires_grad=True)
    >>> def program(draw):
    ...     return (draw("b", c.Bernoulli(logits)) - 0.45).square().sum(-1)
    >>> c.estimate(program, estimator=c.RLOO(), samples=4).loss.backward()
    >>> logits.grad.shape
    torch.Size([3])
    """
    if isinstance(estimator, type) or not callable(estimator):
        name = estimator.__name__ if isinstance(estimator, type) else type(estimator).__name__
        raise TypeError(f"estimator must be an estimator such as Pathwise(temperature=2/3), got {name}")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples must be a positive whole number, got {samples!r}")
    if objective is not None and not callable(objective):
        raise TypeError(f"objective must be a function, such as concretely.bound, got {type(objective).__name__}")
    averages = getattr(estimator, "averages", False)
    if averages and objective not in (None, average):
        name = type(estimator).__name__
        raise ValueError(f"objective must be `average` for {name}, or be omitted")
    if objective is None:
        objective = default_objective(target, estimator)
    return estimator(target, *inputs, samples=samples, objective=objective, generator=generator)


def default_objective(target: Model | Program, estimator: Estimator) -> Objective:
    """Return the multi-sample bound for a model if the estimator supports it, else the average."""
    return bound if isinstance(target, Model) and not getattr(estimator, "averages", False) else average
