"""The estimator protocol, and the function that runs an estimator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..functional.bound import average, bound, effective_sample_size
from ..functional.noise import Source
from ..graph.program import Program
from ..graph.trace import Trace
from ..model.model import Model, checked_objective
from ..objective import LogWeights, Objective, divergence, loss


@dataclass(frozen=True)
class Estimate:
    """A loss whose gradient is the gradient estimate, and quantities that a training loop may log.

    `loss` is minus the objective, averaged over the batch, and `bound` the objective of every data point. `log_w` and
    `signal`, by node name, have the log-weight and the learning signal of every sample and data point.

    >>> import torch, concretely as c
    >>> estimate = c.estimate(c.density("2H-4V"), torch.zeros(8, 4), estimator=c.Pathwise(), samples=3)
    >>> estimate.loss.shape, estimate.bound.shape, estimate.log_w.shape, estimate.kl["h1"].shape
    (torch.Size([]), torch.Size([8]), torch.Size([3, 8]), torch.Size([8]))
    """

    loss: Tensor
    """Minus the objective, averaged over the batch."""
    bound: Tensor
    """The objective of every data point."""
    log_w: Tensor
    """The log-weight of every sample and data point."""
    bound_target: str | None = None
    """The name of the quantity that the expected objective bounds from below, or None if it is not a bound."""
    signal: Mapping[str, Tensor] = field(default_factory=dict)
    """The learning signal by node name, for every sample and data point. Empty for pathwise gradients."""
    weights: LogWeights | None = field(default=None, repr=False)
    """The terms of the log-weights, from which `trace`, `output`, `kl` and `log_likelihood` are computed."""
    state_probs: Tensor | None = field(default=None, repr=False)
    """The probability of every enumerated state and data point; None for samples."""

    @property
    def trace(self) -> Trace:
        """Return the trace of the program or, for a model, the trace of p, which has the latents and the data."""
        return self._known.p

    @property
    def posterior(self) -> Trace:
        """Return the trace that drew the latents: the trace of q, or `trace` if there is no q."""
        return self._known.q

    @property
    def output(self) -> Any:
        """Return what the program, or p, returned."""
        return self.trace.output

    @property
    def kl(self) -> dict[str, Tensor]:
        """Return KL(q || p) at every latent node of a model, for every data point, averaged over samples.

        It is the KL of the discrete distributions, given the drawn values of their parents. Where no formula is known,
        it is estimated by log q - log p of the drawn values. Without q, the result is empty.
        """
        p, q = self.trace, self.posterior
        with torch.no_grad():
            return {name: self._mean(divergence(p, q, name)) for name in q.latent if p is not q}

    @property
    def log_likelihood(self) -> dict[str, Tensor]:
        """Return the log probability of every observed node, for every data point, averaged over samples."""
        return {name: self._mean(self.trace[name].log_prob.detach()) for name in self.trace.observed}

    @property
    def effective_sample_size(self) -> Tensor:
        """Return the effective sample size of the importance weights, for every data point."""
        return effective_sample_size(self.log_w)

    def _mean(self, quantity: Tensor) -> Tensor:
        """Return the mean over samples, or the expectation over enumerated states."""
        if self.state_probs is None:
            return quantity.mean(0)
        return (self.state_probs * torch.where(self.state_probs == 0, 0, quantity)).sum(0)

    @property
    def _known(self) -> LogWeights:
        if self.weights is None:
            raise ValueError("the estimator must pass weights= to its Estimate to have a trace, got none")
        return self.weights

    @classmethod
    def of(
        cls,
        weights: LogWeights,
        objective: Objective,
        signal: Mapping[str, Tensor] | None = None,
        baseline: Mapping[str, Tensor] | None = None,
        *,
        bound_target: str | None,
    ) -> "Estimate":
        """Compute the loss from log-weights and, for score-function estimators, signals and baselines."""
        signal = signal or {}
        return cls(*loss(weights, objective, signal, baseline), bound_target, signal, weights)


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
        batch_dims: int = 1,
    ) -> Estimate: ...


def estimate(
    target: Model | Program,
    *inputs: Any,
    estimator: Estimator,
    samples: int = 1,
    objective: Objective | None = None,
    generator: Source | None = None,
    batch_dims: int = 1,
) -> Estimate:
    """Estimate the objective of a model, or the expected cost of a program, and its gradient.

    The default objective is `bound`, the multi-sample bound, for a model, and `average`, the mean over samples, for a
    program. Use `objective=bound` for a program that returns minus a log-weight. `RLOO` and `NVIL` support only
    `average`, which for a model is the mean of single-sample bounds. A program returns its cost, or a tuple that begins
    with it. `inputs` are those of the target after `draw`. A `generator` makes the draws repeatable. See `run` for
    `samples` and `batch_dims`.

    >>> import torch, concretely as c
    >>> logits = torch.zeros(3, requires_grad=True)
    >>> def program(draw):
    ...     return (draw("b", c.Bernoulli(logits=logits)) - 0.45).square().sum(-1)
    >>> c.estimate(program, estimator=c.RLOO(), samples=4).loss.backward()
    >>> logits.grad.shape
    torch.Size([3])
    """
    default = bound if isinstance(target, Model) else average
    objective = checked_objective(estimator, objective, samples=samples, default=default)
    return estimator(target, *inputs, samples=samples, objective=objective, generator=generator, batch_dims=batch_dims)


def default_objective(target: Model | Program, estimator: Estimator) -> Objective:
    """Return `bound` (multi-sample) for a model if the estimator supports it, else `average`, the mean over samples."""
    default = bound if isinstance(target, Model) else average
    return checked_objective(estimator, None, samples=1, default=default)
