"""Permutations of n items, drawn by matching noisy scores, and their relaxation by Sinkhorn's iteration."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from ..functional.arithmetic import Temperature, cast, compute_dtype, divide, log_temperature, to_float64
from ..functional.draw import Drawn, sum_axes
from ..functional.noise import Source, gumbel
from ..functional.sinkhorn import log_sinkhorn, matching
from . import check
from .constraint import doubly_stochastic, permutation
from .variable import DiscreteVariable, RelaxedVariable, Variable, expanded

STATES = 2**20
"""The maximum number of permutations to enumerate."""


def as_square(logits: Tensor | float, *, validate: bool) -> tuple[Tensor, Size, Size]:
    """Check that logits are finite square matrices; return them, the batch shape and the event shape."""
    logits = check.as_logits(logits, infinite="either", validate=validate)
    if logits.dim() < 2 or logits.shape[-1] != logits.shape[-2] or logits.shape[-1] == 0:
        raise ValueError(f"logits must have two last axes of n rows and n columns, got shape {tuple(logits.shape)}")
    if validate:
        check.require("logits", "be finite", logits, logits.isfinite())
    return logits, logits.shape[:-2], logits.shape[-2:]


class Permutation(DiscreteVariable):
    r"""A permutation matrix: the best matching of rows and columns by logits with Gumbel noise G on every entry.

    $$X = \operatorname{argmax}_{X \text{ a permutation}} \sum_{ij} X_{ij} (\log α_{ij} + G_{ij})$$

    This law, called Gumbel-Matching, has neither a log probability nor a mean in closed form. Estimators that need one
    raise an error. For a program, `Pathwise` and `StraightThroughGumbelSoftmax` need none; for a model with q, only
    `Pathwise` with a temperature does. Matching needs scipy.
    See [mena2018learning], section 4.

    >>> Permutation(logits=torch.tensor([[0.0, 1e4], [0.0, 0.0]])).sample()
    tensor([[0., 1.],
            [1., 0.]])
    """

    arg_constraints = {"logits": constraints.independent(constraints.real, 2)}  # noqa: RUF012
    support = permutation
    _conversion = check.LOG_PROBS

    def __init__(
        self,
        *positional: Any,
        logits: Tensor | float | None = None,
        probs: Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        validate = check.validates(validate_args, logits, probs)
        given = self._given(positional, logits, probs, validate=validate)
        Variable.__init__(self, *as_square(given, validate=validate), validate=validate)

    @staticmethod
    def _split(logits: Tensor) -> tuple[Tensor, Size, Size]:
        return as_square(logits, validate=False)

    @property
    def states(self) -> int:
        """The number of permutations."""
        return math.factorial(self.event_shape[0])

    def relax(self, temperature: Temperature) -> "GumbelSinkhorn":
        """Return the relaxation with the same logits."""
        return GumbelSinkhorn(logits=self.logits, temperature=temperature, validate_args=self._validate_args)

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the Gumbel noise of samples."""
        return draw_noise(self.logits, sample_shape, generator)

    def push(self, noise: Tensor) -> Tensor:
        """Return the permutation made from noise: the deterministic part of sampling."""
        return matching(self._shaped("noise", noise) + to_float64(self.logits.detach())).to(self.logits.dtype)

    def drawn(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None, axes: int = 0) -> Drawn:
        """Draw values. Their log probability is not known, and computing it raises an error."""
        value = self.push(self.noise(sample_shape, generator=generator))
        return Drawn(value, lambda: self._summed_log_mass(value, 0))

    @property
    def _law(self) -> tuple[Any, Tensor, str]:
        raise self._unknown("log probability")

    def _summed_log_mass(self, value: Tensor, axes: int) -> Tensor:
        raise self._unknown("log probability")

    def _interpolated_log_mass(self, value: Tensor, node: Tensor | None) -> Tensor:
        raise self._unknown("log probability")

    def _unknown(self, what: str) -> NotImplementedError:
        return NotImplementedError(
            f"Permutation has no {what} in closed form: draw it in a program that returns a cost, and use "
            "Pathwise(temperature)"
        )

    @property
    def mean(self) -> Tensor:
        """Raise an error: the mean has no closed form."""
        raise self._unknown("mean")

    @property
    def variance(self) -> Tensor:
        """Raise an error: the variance has no closed form."""
        raise self._unknown("variance")

    def entropy(self) -> Tensor:
        """Raise an error: the entropy has no closed form."""
        raise self._unknown("entropy")

    @property
    def mode(self) -> Float[Tensor, "*batch n n"]:
        """The best matching without noise. It is the most probable permutation of p(X) ∝ exp Σ Xᵢⱼ log αᵢⱼ."""
        return matching(self.logits.detach())

    def enumerate_support(self, expand: bool = True) -> Float[Tensor, "states ..."]:
        """Return all permutations along a new first axis, in the order of `itertools.permutations`."""
        n = self.event_shape[0]
        if self.states > STATES:
            raise ValueError(f"a permutation must have at most 2^20 states to be enumerated, got {self.states}")
        orders = torch.tensor(list(itertools.permutations(range(n))), device=self.logits.device)
        states = torch.eye(n, dtype=self.logits.dtype, device=self.logits.device)[orders]
        states = states.view(-1, *(1 for _ in self.batch_shape), n, n)
        return states.expand(-1, *self.batch_shape, n, n) if expand else states


class GumbelSinkhorn(RelaxedVariable, Distribution):
    r"""The relaxation of a permutation: a matrix whose rows and columns sum to 1 at every temperature.

    $$X_{ij} = \exp((\log α_{ij} + G_{ij}) / λ + u_i + v_j), \quad G_{ij} \text{ Gumbel noise}$$

    The numbers u and v make it doubly stochastic. They are iterated to the tolerance of
    `functional.sinkhorn.log_sinkhorn`, which raises an error if it is not reached. The gradient is that of the exact
    solution. The best matching of a draw is the draw of `Permutation` on the same noise, and its limit at temperature
    zero. Log densities are those of `node`, the noisy logits divided by the temperature. See [mena2018learning].

    >>> relaxed = Permutation(logits=torch.zeros(3, 3)).relax(temperature=0.1)
    >>> value = relaxed.rsample((5,))
    >>> bool(((value.sum(-1) - 1).abs() < 1e-6).all() and ((value.sum(-2) - 1).abs() < 1e-6).all())
    True
    """

    support = doubly_stochastic
    _conversion = check.LOG_PROBS

    def __init__(
        self,
        *positional: Any,
        logits: Tensor | float | None = None,
        probs: Tensor | float | None = None,
        temperature: Temperature | None = None,
        validate_args: bool | None = None,
    ) -> None:
        validate = check.validates(validate_args, logits, probs)
        given = self._given(positional, logits, probs, validate=validate)
        own, batch_shape, event_shape = as_square(given, validate=validate)
        self._temperature = check.as_temperature(temperature, dtype=own.dtype, validate=validate)
        batch_shape = check.broadcast(batch_shape, self._temperature)
        super().__init__(expanded(own, batch_shape + event_shape), batch_shape, event_shape, validate=validate)

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the Gumbel noise of samples."""
        return draw_noise(self.logits, sample_shape, generator)

    def push(self, noise: Tensor) -> Tensor:
        """Return the value made from noise: the deterministic part of sampling."""
        return self._squash(self._node(self._shaped("noise", noise)))

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw values with a pathwise gradient."""
        return self.push(self.noise(sample_shape, generator=generator))

    def drawn(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None, axes: int = 0) -> Drawn:
        """Draw values, with their nodes and functions that return the log densities of the latter."""
        self._require_density()
        noise = to_float64(self.noise(sample_shape, generator=generator))
        node = self._node(noise)
        return Drawn(self._squash(node), lambda: self._log_density(noise), node=cast(node, self.logits.dtype))

    def node_log_prob(self, value: Tensor, axes: int = 0, *, node: Tensor | None = None) -> Tensor:
        """Return the log density of the node, summed over the last `axes` batch axes. `node` must be given."""
        self._require_density()
        if node is None:
            raise ValueError(
                "a relaxed permutation does not determine its node and cannot be scored without it: "
                "use rsample_and_log_prob, or keep the trace of the run that drew it"
            )
        noise = over_matrix(self._precise) * to_float64(self._shaped("node", node)) - to_float64(self.logits)
        return sum_axes(self._log_density(noise), axes)

    def log_prob(self, value: Tensor) -> Tensor:
        """Raise an error: many nodes lead to one value."""
        return self.node_log_prob(self._checked(value))

    def discretize(self) -> Permutation:
        """Return the permutation with the same logits."""
        return Permutation(logits=self.logits, validate_args=self._validate_args)

    def _node(self, noise: Tensor) -> Tensor:
        # the noisy logits stay finite at temperature zero, where only their matching matters
        total = to_float64(self.logits) + noise
        return divide(total, over_matrix(self._precise), lambda total: total)

    def _squash(self, node: Tensor) -> Tensor:
        temperature = over_matrix(self._precise)
        if isinstance(temperature, Tensor):
            soft = log_sinkhorn(torch.where(temperature > 0, node, 0)).exp()
            value = torch.where(temperature > 0, soft, matching(node.detach()))
        else:
            value = log_sinkhorn(node).exp() if temperature > 0 else matching(node.detach())
        return cast(value, self.logits.dtype)

    def _log_density(self, noise: Tensor) -> Tensor:
        n = self.event_shape[0]
        density = -(noise + (-noise).exp()).sum((-1, -2)) + n * n * log_temperature(self._precise, noise)
        return cast(density, compute_dtype(self.logits.dtype))


def draw_noise(logits: Tensor, sample_shape: Sequence[int], generator: Source | None) -> Tensor:
    """Draw the noise of permutations."""
    shape, dtype = Size(sample_shape) + logits.shape, compute_dtype(logits.dtype)
    return gumbel(shape, dtype, device=logits.device, generator=generator)


def over_matrix(temperature: Temperature) -> Temperature:
    """Add the axes of a matrix to a temperature tensor."""
    return temperature[..., None, None] if isinstance(temperature, Tensor) else temperature
