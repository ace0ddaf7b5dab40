"""The interface of estimators: a target, its inputs and a number of samples become an estimate."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from ..functional.bound import average, bound, effective_sample_size
from ..model.base import Model
from ..noise import Source
from ..objective import Objective
from ..program import Program


@dataclass(frozen=True)
class Estimate:
    """A loss whose gradient is the estimate, and the quantities that it was computed from."""

    loss: Tensor
    """Minus the objective, averaged over the batch: the quantity to minimise."""
    bound: Tensor
    """The objective for every data point."""
    log_w: Tensor
    """The log-weights, one for each sample and data point."""
    bound_target: str | None = None
    """The quantity that the objective is a lower bound of in expectation, or None."""
    signal: Mapping[str, Tensor] = field(default_factory=dict)
    """The learning signal of every node, one number for each sample and data point; empty for pathwise gradients."""

    @property
    def effective_sample_size(self) -> Tensor:
        """The effective sample size of every data point."""
        return effective_sample_size(self.log_w)


@runtime_checkable
class Estimator(Protocol):
    """A way of estimating the gradient of an objective.

    An estimator that always averages over samples has an attribute `averages` that is true.
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
    """Estimate the objective of a model, or the expected cost of a program, with a loss to take the gradient of.

    The objective is the multi-sample bound for a model and the average for a program; a program that returns minus a
    log-weight may ask for `objective=bound`. `RLOO` and `NVIL` estimate averages alone, of a model that of its
    single-sample bounds.

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
        raise ValueError(f"objective must be `average` for {name}, which estimates no other, or be left out")
    if objective is None:
        objective = bound if isinstance(target, Model) and not averages else average
    return estimator(target, *inputs, samples=samples, objective=objective, generator=generator)


def bound_target(target: Model | Program, objective: Objective, *, relaxed: bool = False) -> str | None:
    """The quantity that an objective of a target is a lower bound of, or None."""
    if not isinstance(target, Model) or objective not in (bound, average):
        return None
    return "the relaxed log-likelihood" if relaxed else "the log-likelihood"
