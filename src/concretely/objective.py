"""Objectives: what is made of the log-weights of several samples, and what the log-weights are made of.

Three treatments of the divergence between q and p are known when the latents are relaxed. `density` puts densities in
the place of masses, and only with it is the objective a lower bound, of the log-likelihood of the relaxed model.
`mass` weighs the discrete log masses as the relaxed value weighs the states, and `analytic` takes the divergence of
the discrete distributions; neither is a bound of anything. See [maddison2017concrete], appendix C.2.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import kl_divergence

from .distribution.discrete import DiscreteVariable
from .graph import run
from .kernel import bound as kernel
from .kernel.handwritten import attempted, is_fast
from .mode import Mode
from .model.base import Model
from .noise import Source
from .program import Program
from .trace import Trace

__all__ = ["average", "bound"]

Treatment = Literal["density", "mass", "analytic"]
Objective = Callable[[Tensor], Tensor]
"""A function from the log-weights of m samples, along the first axis, to one number for each data point."""


def bound(log_w: Float[Tensor, "m *batch"]) -> Float[Tensor, "*batch"]:
    r"""The multi-sample variational bound.

    $$\hat L_m = \log \frac1m \sum_{i=1}^m w_i$$

    See [burda2016importance] and [maddison2017concrete], section 2.4.

    >>> import torch
    >>> bound(torch.tensor([[0.0], [0.0]]))
    tensor([0.])
    """
    if _is_simple(log_w) and log_w.dim() > 1:
        found = attempted(lambda: kernel.bound(log_w.flatten(1).unsqueeze(0)))
        if found is not None:
            return torch.as_tensor(found).view(log_w.shape[1:])
    return log_w.logsumexp(0) - math.log(len(log_w))


def average(log_w: Float[Tensor, "m *batch"]) -> Float[Tensor, "*batch"]:
    """The mean over samples: an expectation, or the single-sample bound."""
    return log_w.mean(0)


def effective_sample_size(log_w: Float[Tensor, "m *batch"]) -> Float[Tensor, "*batch"]:
    """The number of equal weights that would be worth as much as these.

    >>> import torch
    >>> effective_sample_size(torch.tensor([0.0, 0.0, -1e4]))
    tensor(2.)
    """
    return 1 / log_w.softmax(0).square().sum(0)


@dataclass(frozen=True)
class Weighing:
    """The parts of the log-weights, each with one number for each sample and data point."""

    log_p: Mapping[str, Tensor]
    """The terms of the log-weight, by node; those of q excepted."""
    q: Trace
    """The run that drew the latents."""
    divides: bool
    """Whether the log probability of what was drawn is subtracted."""

    @property
    def log_q(self) -> dict[str, Tensor]:
        """The log probabilities of what was drawn, by node."""
        return {name: self.q.log_prob(name) for name in self.q.latent}

    @property
    def credited(self) -> list[str]:
        """The nodes without a pathwise gradient, to which a score function must give credit."""
        return [name for name in self.q.latent if isinstance(self.q[name].distribution, DiscreteVariable)]

    @property
    def log_w(self) -> Tensor:
        """The log-weights."""
        return total(self.log_p) - total(self.log_q) if self.divides else total(self.log_p)

    @property
    def log_w_given_q(self) -> Tensor:
        """The log-weights without the direct gradient of log q, whose mean over q is zero."""
        held = {name: log_q.detach() if name in self.credited else log_q for name, log_q in self.log_q.items()}
        return total(self.log_p) - total(held) if self.divides else total(self.log_p)


def loss(
    weighing: Weighing,
    objective: Objective,
    credit: Mapping[str, Tensor] | None = None,
    beside: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Minus the mean of an objective over data points; without gradients, the objective and the log-weights.

    Nodes may have credit, by which the gradient of their log probability is multiplied, and with it that of what stands
    beside it. The value of the loss does not know of it.
    """
    fused = _fused_loss(weighing, objective, credit or {}, beside or {})
    if fused is not None:
        return fused
    log_w = weighing.log_w_given_q if credit and objective is average else weighing.log_w
    value = objective(log_w)
    found = -value
    if credit:
        log_q = {name: weighing.log_q[name] + beside[name] if beside else weighing.log_q[name] for name in credit}
        score = total({name: credit[name] * log_q[name] for name in credit}).sum(0)
        found = found - (score - score.detach())
    return found.mean(), value.detach(), log_w.detach()


def _fused_loss(
    weighing: Weighing, objective: Objective, credit: Mapping[str, Tensor], beside: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The loss from a kernel, if there is one."""
    log_p, averages = list(weighing.log_p.values()), objective is average
    first = log_p[0]
    if not _is_simple(first) or first.dim() < 2 or not weighing.divides:
        return None
    if not (objective is bound or (averages and credit)) or (beside and not averages):
        return None
    log_q = weighing.log_q
    if any(set(given) != set(log_q) for given in (credit, beside) if given):
        return None
    lists = [log_p, list(log_q.values()), *([given[name] for name in log_q if given] for given in (credit, beside))]
    if not all(_is_simple(term) and term.shape == first.shape for each in lists for term in each):
        return None
    flat = [[term.flatten(1).unsqueeze(0) for term in each] for each in lists]
    found = attempted(lambda: kernel.loss(*flat, averages=averages))
    if found is None:
        return None
    return found[0].squeeze(0), found[1].view(first.shape[1:]), found[2].view(first.shape)


def _is_simple(log_w: Tensor) -> bool:
    """Whether there are kernels for log-weights."""
    return is_fast(log_w) and log_w.dtype == torch.float32


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """The sum of terms."""
    return functools.reduce(operator.add, terms.values())


def weigh(
    target: Model | Program,
    *inputs: Any,
    mode: Mode,
    prior_mode: Mode | None = None,
    analytic: bool = False,
    samples: int | None = None,
    generator: Source | None = None,
) -> Weighing:
    """Run a target, and take apart the log-weights of its samples.

    The log-weight of a program is minus the cost that it returns. That of a model is log p(x, z) - log q(z | x) or,
    without q, the log probability of what is observed. If analytic, the divergence of q from p takes the place of the
    latents' terms.
    """
    if not isinstance(target, Model):
        trace = run(target, mode, *inputs, samples=samples, generator=generator)
        return Weighing({"cost": -_cost(trace)}, trace, divides=False)
    q = target.drawn(*inputs, mode=mode, samples=samples, generator=generator)
    if target.q is not None and not analytic:
        for name in q.latent:
            q.log_prob(name)  # now, while its noise is at hand, which is let go of before p needs the room
    p = target.scored(q, *inputs, mode=mode if prior_mode is None else prior_mode)
    if not p.observed:
        raise ValueError("p must observe something, got no call of draw with observed=: was an input left out?")
    if p is q:
        return Weighing({name: p.log_prob(name) for name in p.observed}, q, divides=False)
    if analytic:
        terms = {name: p.total(name, _divergence(p, q, name)) if name in q else p.log_prob(name) for name in p}
        return Weighing(terms, q, divides=False)
    return Weighing({name: p.log_prob(name) for name in p}, q, divides=True)


def _divergence(p: Trace, q: Trace, name: str) -> Tensor:
    return -kl_divergence(q[name].distribution, p[name].distribution)


def _cost(trace: Trace) -> Tensor:
    expected = (
        f"the cost of a program must be a tensor of shape {tuple(trace.shape)}, a number for each sample and data point"
    )
    if not isinstance(trace.output, Tensor):
        raise TypeError(f"{expected}, got {type(trace.output).__name__}")
    if trace.output.shape != trace.shape:
        raise ValueError(f"{expected}, got shape {tuple(trace.output.shape)}")
    return trace.output
