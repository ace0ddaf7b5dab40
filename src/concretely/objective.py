"""Log-weights of samples, and objectives and losses computed from them.

Relaxed latents allow three treatments of the KL between q and p. `density` replaces masses by densities; only then is
the objective a lower bound, on the log-likelihood of the relaxed model. `mass` uses the discrete log masses, weighted
by the relaxed value. `analytic` uses the closed-form KL of the distributions as the programs state them, discrete ones
for discrete nodes. See [maddison2017concrete], appendix C.2.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from .distribution.check import broadcast_shapes
from .distribution.divergence import discrete_kl
from .distribution.variable import DiscreteVariable, Variable
from .functional import bound as functional
from .functional.arithmetic import cast, compute_dtype
from .functional.bound import average, bound, total
from .functional.noise import Source
from .graph.mode import Mode
from .graph.program import Program
from .graph.run import run
from .graph.trace import Trace
from .model.model import Model

__all__ = ["average", "bound"]

Treatment = Literal["density", "mass", "analytic"]
Objective = Callable[[Tensor], Tensor]
"""Maps the log-weights of m samples, along the first axis, to one number for each data point."""


@dataclass(frozen=True)
class LogWeights:
    """The terms of the log-weights, each with one number for each sample and data point."""

    log_p: Mapping[str, Tensor]
    """All terms of the log-weight except log q, by node name; for a program, its negative cost."""
    p: Trace
    """The trace of p, which scored the latents and the data; for a program, its trace."""
    q: Trace
    """The trace that drew the latents. It is `p` for a program and for a model without q."""
    divides: bool
    """Whether the log-weight subtracts log q."""
    kl_weight: float | Tensor | None = None
    """The factor of log q in the log-weight, or None if there is none. In `log_p` it is included."""

    @property
    def log_q(self) -> dict[str, Tensor]:
        """Return the log probabilities of the latents, by node."""
        return {name: self.q[name].log_prob for name in self.q.latent}

    @property
    def subtracted(self) -> dict[str, Tensor]:
        """Return what the log-weight subtracts, by node: log q times the weight of the KL."""
        log_q, weight = self.log_q, self.kl_weight
        return log_q if weight is None else {name: weight * term for name, term in log_q.items()}

    @property
    def scored(self) -> list[str]:
        """Return the nodes without a pathwise gradient, which need a score-function term."""
        return [name for name in self.q.latent if not is_pathwise(self.q[name].distribution)]

    @property
    def log_w(self) -> Tensor:
        """Return the log-weights."""
        if not self.divides:
            return total(self.log_p.values())
        return total(self.log_p.values()) - total(self.subtracted.values())

    @property
    def log_w_given_q(self) -> Tensor:
        """Return the log-weights, with log q detached at the nodes without a pathwise gradient.

        The omitted term, the score of q, has mean zero in the single-sample bound.
        """
        if not self.divides:
            return total(self.log_p.values())
        held = {name: term.detach() if name in self.scored else term for name, term in self.subtracted.items()}
        return total(self.log_p.values()) - total(held.values())


def loss(
    weights: LogWeights,
    objective: Objective,
    signal: Mapping[str, Tensor] | None = None,
    baseline: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, and the detached objective and log-weights.

    The value of the loss is minus the mean objective. For every node with a signal, the gradient also subtracts the
    signal times the gradient of (log q + baseline).
    """
    signal, baseline = signal or {}, baseline or {}
    log_q = weights.log_q if weights.divides or signal else {}
    if not signal and not baseline and is_fused(weights, objective):
        return functional.loss(list(weights.log_p.values()), list(log_q.values()), (), (), objective is average)
    everywhere = all(not given or given.keys() == log_q.keys() for given in (signal, baseline))
    if is_fused(weights, objective) and everywhere:
        terms, signals, baselines = ([part[name] for name in log_q if part] for part in (log_q, signal, baseline))
        return functional.loss(list(weights.log_p.values()), terms, signals, baselines, objective is average)
    log_w = weights.log_w_given_q if signal and objective is average else weights.log_w
    value = objective(log_w)
    total = -value
    if signal:
        terms, signals, baselines = ([part[name] for name in signal if part] for part in (log_q, signal, baseline))
        total = total - functional.score_function(terms, signals, baselines)
    return total.mean(), value.detach(), log_w.detach()


def is_fused(weights: LogWeights, objective: Objective) -> bool:
    """Return whether a kernel may compute the loss: the objective is known, and log-weights are log p - log q."""
    return weights.divides and weights.kl_weight is None and objective in (bound, average)


def log_weights(
    target: Model | Program,
    *inputs: Any,
    mode: Mode,
    prior_mode: Mode | None = None,
    analytic: bool = False,
    samples: int | None = None,
    generator: Source | None = None,
    batch_dims: int = 1,
) -> LogWeights:
    """Run a target and return the terms of its log-weights.

    The log-weight of a program is minus its cost. The log-weight of a model is log p(x, z) - log q(z | x) or, without
    q, the log probability of the observed nodes. With `analytic`, -KL(q || p) replaces the latents' terms (see
    `divergence`). The terms of the latents are multiplied by the model's weight of the KL. `mode` draws the latents,
    and `prior_mode`, by default the same, scores them under p.
    """
    if not isinstance(target, Model):
        trace = run(target, *inputs, mode=mode, samples=samples, generator=generator, batch_dims=batch_dims)
        return LogWeights({"cost": -_cost(trace)}, trace, trace, divides=False)
    q = target.drawn(*inputs, mode=mode, samples=samples, generator=generator, batch_dims=batch_dims)
    if target.q is not None and not analytic:
        for name in q.latent:
            q[name].log_prob  # noqa: B018 (computed now, so that its noise is freed before p runs)
    p = target.scored(q, *inputs, mode=mode if prior_mode is None else prior_mode, batch_dims=batch_dims)
    if not p.observed:
        raise ValueError("p must have an observed node, got no call of draw with observed=: is an input missing?")
    if p is q:
        return LogWeights({name: p[name].log_prob for name in p.observed}, p, q, divides=False)
    terms = dict(p.log_prob) if not analytic else {}
    for name in p if analytic else ():
        terms[name] = -divergence(p, q, name, exact=True) if name in q.latent else p[name].log_prob
    if not target.is_weighted:
        return LogWeights(terms, p, q, divides=not analytic)
    weight = target.kl_weight
    weighted = {name: weight * term if name in q.latent else term for name, term in terms.items()}
    return LogWeights(weighted, p, q, divides=not analytic, kl_weight=weight)


def is_pathwise(distribution: Distribution) -> bool:
    """Return whether a node is drawn with a pathwise gradient in a discrete run."""
    return not isinstance(distribution, DiscreteVariable) and bool(distribution.has_rsample)


def divergence(p: Trace, q: Trace, name: str, *, exact: bool = False) -> Tensor:
    """Return KL(q || p) at a node, summed over its units, for every sample and data point.

    Where no formula is known, it is estimated by log q - log p of the drawn value; with `exact`, only at a continuous
    node.
    """
    is_discrete = isinstance(q[name].distribution, DiscreteVariable)
    try:
        return _exact_divergence(p, q, name, discrete_kl if is_discrete else kl_divergence)
    except (NotImplementedError, TypeError, ValueError) as error:  # no formula, or rows that cannot be split
        if is_discrete and (exact or not isinstance(error, NotImplementedError)):
            raise
        return q[name].log_prob - p[name].log_prob


def _exact_divergence(p: Trace, q: Trace, name: str, formula: Callable[..., Tensor]) -> Tensor:
    axes, both = q[name].axes, (q[name].distribution, p[name].distribution)
    wide = [one.widened() if isinstance(one, DiscreteVariable) else one for one in both]
    aligned = q.rows.aligned(*wide, axes=axes)
    shape = broadcast_shapes(*(one.batch_shape for one in aligned))
    if any(one.batch_shape != shape for one in aligned):
        # some formulas of torch do not broadcast; ours do, and torch 2.11 cannot compile the copy of a variable
        aligned = [one if isinstance(one, Variable) else one.expand(shape) for one in aligned]
    return q[name].total(formula(*aligned))


def _cost(trace: Trace) -> Tensor:
    """Return the cost of every sample and data point: the output of a program, or its first entry if a tuple."""
    cost = trace.output[0] if isinstance(trace.output, tuple) and trace.output else trace.output
    shape, rows = tuple(trace.rows.folded), trace.rows
    expected = f"a program must return a cost of shape {shape}, a number for each sample and data point"
    if not isinstance(cost, Tensor):
        raise TypeError(f"{expected}, or a tuple whose first entry is one, got {type(cost).__name__}")
    if not cost.is_floating_point():
        raise TypeError(f"a program must return a floating cost, got {cost.dtype}: convert it with cost.float()")
    if not trace.latent and cost.shape == rows.batch_shape:  # without draws, all samples are equal
        cost = cost.repeat(rows.samples or 1, *(1,) * (cost.dim() - 1))
    if cost.shape != rows.folded:
        hint = ": use reduction='none', not an average over rows" if len(cost.shape) < len(shape) else ""
        raise ValueError(f"{expected}, got shape {tuple(cost.shape)}{hint}")
    return rows.spread(cast(cost, compute_dtype(cost.dtype)))


def bound_target(target: Model | Program, objective: Objective, *, relaxed: bool = False) -> str | None:
    """Return the name of the quantity that an objective bounds from below.

    Return None for a program, a weighted KL, and objectives other than `bound` and `average`.
    """
    if not isinstance(target, Model) or target.is_weighted or objective not in (bound, average):
        return None
    return "the relaxed log-likelihood" if relaxed else "the log-likelihood"
