"""NVIL: the score-function estimator with a local, normalized signal and a learned baseline for every node."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..functional.bound import average, total
from ..functional.noise import Source
from ..functional.signal import normalize, normalize_slice
from ..functional.slice import Slice
from ..graph.mode import Discrete
from ..graph.program import Program, eval_mode
from ..graph.run import run
from ..graph.trace import Trace
from ..model.model import Model
from ..model.paper import MLP, Generative
from ..objective import LogWeights, Objective, bound_target, is_pathwise, log_weights
from .base import Estimate


class NVIL(nn.Module):
    r"""The score-function estimator of neural variational inference and learning.

    $$\frac{l_i - C_i(z_{i-1}) - c_i}{\max(1, \sqrt{v_i})} \, ∇ \log q(z_i | z_{i-1})$$

    Approximates: the gradient of the single-sample bound, averaged over samples if there are several.
    With: for every node, the local signal: the terms of log p and log q that may depend on it or on a later node. In
        the models of `density` these are known; in others, they are all terms that are scored after such a node was
        drawn. A baseline network with one tanh layer is subtracted; its inputs are the parents of the node or, without
        any, the centred first input. Then a running mean is subtracted, and the signal is divided by a running standard
        deviation if that exceeds 1. Both are updated before use.
    Requires: an optimizer that also trains the parameters of NVIL. The constructor takes example inputs; the mean of
        the first one is used to centre the first input later.
    Bias: none, except that the running mean and deviation depend on the sample. See [mnih2014neural].

    Set `baseline`, `centre` or `scale` to False to disable that part.

    >>> import concretely as c
    >>> model, x = c.density("2H-4V"), torch.zeros(8, 4)
    >>> c.estimate(model, x, estimator=c.NVIL(model, x)).signal["h1"].shape
    torch.Size([1, 8])
    """

    averages = True
    offset: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(
        self,
        target: Model | Program,
        *inputs: Any,
        width: int = 100,
        rate: float = 0.8,
        baseline: bool = True,
        centre: bool = True,
        scale: bool = True,
        batch_dims: int = 1,
    ) -> None:
        super().__init__()
        self.rate, self.centre, self.scale = rate, centre, scale
        with eval_mode(target), torch.no_grad():
            p, q = _runs(target, inputs, batch_dims)
        self.nodes = [name for name in q.latent if not is_pathwise(q[name].distribution)]
        if not self.nodes:
            raise ValueError("the target of NVIL must draw a discrete node, got none")
        self.before = {name: [parent for parent in q.parents[name] if parent in q.latent] for name in self.nodes}
        self.terms = {name: _local_terms(name, target, p, q) for name in self.nodes}
        like = q[self.nodes[0]].value
        like = like if like.is_floating_point() else like.to(torch.get_default_dtype())
        given = _first(inputs)
        first = like.new_zeros(1, 1) if given is None else _flat(given.to(like), len(q.rows.batch_shape))
        self.register_buffer("offset", first.flatten(0, -2).mean(0))
        self.register_buffer("mean", like.new_zeros(len(self.nodes)))
        self.register_buffer("variance", like.new_ones(len(self.nodes)))
        sizes = [self._seen(name, q, inputs).shape[-1] for name in self.nodes]
        self.baselines = nn.ModuleList(_network(size, width).to(like) for size in sizes if baseline)

    def forward(
        self,
        target: Model | Program,
        *inputs: Any,
        samples: int,
        objective: Objective,
        generator: Source | None,
        batch_dims: int = 1,
    ) -> Estimate:
        """Estimate the objective `average`. The loss also trains the baselines."""
        weights = log_weights(
            target, *inputs, mode=Discrete(), samples=samples, generator=generator, batch_dims=batch_dims
        )
        if weights.scored != self.nodes:
            raise ValueError(f"the target of this NVIL must draw the nodes {self.nodes}, got {weights.scored}")
        signal: dict[str, Tensor] = {}
        baselines: dict[str, Tensor] = {}
        for index, name in enumerate(self.nodes):
            local = self._local(weights, name)
            if self.baselines:
                predicted = self.baselines[index](self._seen(name, weights.q, inputs)).squeeze(-1)
                # with the same signal as log q, the baseline learns to predict the signal
                local, baselines[name] = local - predicted.detach(), predicted.expand_as(local)
            normalized = self._normalized(local, index, generator)
            signal[name] = normalized / samples if samples > 1 else normalized
        return Estimate.of(weights, average, signal, baselines, bound_target=bound_target(target, average))

    def _local(self, weights: LogWeights, name: str) -> Float[Tensor, "m *batch"]:
        """Return the sum of the log-weight terms that may depend on a node or on a later one."""
        log_w = total(weights.log_p[term] for term in self.terms[name])
        if weights.divides:
            subtracted = weights.subtracted
            log_w = log_w - total(subtracted[node] for node in _from(name, weights.q))
        return log_w.detach()

    def _seen(self, name: str, q: Trace, inputs: tuple[Any, ...]) -> Float[Tensor, "*shape size"]:
        """Return the baseline input: the latent parents of a node or, without any, the centred first input."""
        before = [_flat(q[parent].value.to(self.offset), len(q.shape)) for parent in self.before[name]]
        if before:
            return torch.cat(before, -1)
        given = _first(inputs)
        if given is None:
            return self.offset
        return _flat(given.to(self.offset), len(q.rows.batch_shape)) - self.offset

    def _normalized(
        self, signal: Float[Tensor, "m *batch"], index: int, source: Source | None
    ) -> Float[Tensor, "m *batch"]:
        """Subtract the running mean, and divide by the running deviation if it exceeds 1.

        If several processes share a batch, these are updated by the mean and variance of the whole batch.
        """
        mean, variance = self.mean[index], self.variance[index]
        if self.training:
            given = signal, mean, variance, self.rate, self.centre, self.scale
            normalized, *running = normalize_slice(*given, source) if isinstance(source, Slice) else normalize(*given)
            mean.copy_(running[0])
            variance.copy_(running[1])
            return normalized
        centred = signal - mean if self.centre else signal
        return centred / variance.sqrt().clamp(min=1) if self.scale else centred


def _runs(target: Model | Program, inputs: tuple[Any, ...], batch_dims: int) -> tuple[Trace | None, Trace]:
    """Return the trace of p, or None for a program, and the trace that draws the latents."""
    if isinstance(target, Model):
        return target.trace(*inputs, mode=Discrete(), batch_dims=batch_dims)
    return None, run(target, *inputs, mode=Discrete(), batch_dims=batch_dims)


def _local_terms(name: str, target: Model | Program, p: Trace | None, q: Trace) -> list[str]:
    """Return the names of the terms of log p that may depend on a node or on a later one.

    A program can use a value only after it has drawn it, so all later terms count. Only in our own layered models are
    fewer terms known to suffice; parents found by running a program can be incomplete.
    """
    if p is None:
        return ["cost"]
    later, order = set(_from(name, q)), list(p)
    if isinstance(target, Model) and type(target.p) is Generative:
        return [term for above, term in zip([None, *order], order, strict=False) if later & {above, term}]
    first = min(order.index(node) for node in later)
    return [term for term in order[first:] if p is not q or p[term].observed]


def _from(name: str, q: Trace) -> list[str]:
    """Return the names of a latent node and of those drawn after it."""
    return q.latent[q.latent.index(name) :]


def _first(inputs: tuple[Any, ...]) -> Tensor | None:
    """Return the first tensor among the inputs."""
    return next((leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)), None)


def _flat(value: Tensor, axes: int) -> Float[Tensor, "*shape size"]:
    """Detach a value and flatten all but its first `axes` axes."""
    return value.detach().reshape(*value.shape[:axes], -1)


def _network(size: int, width: int) -> nn.Module:
    return MLP(nn.Linear(size, width), nn.Tanh(), nn.Linear(width, 1))
