"""N-ary variables whose states are the corners of a hypercube, and their relaxations."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.distributions import constraints

from ..functional import bernoulli, categorical
from ..functional.hypercube import corner_weights, mean_corner
from ..functional.squash import Corners, Sigmoid
from ..functional.temperature import Temperature
from . import check
from .binary import Bernoulli
from .concrete import OneHotCategorical
from .constraint import corner, cube
from .discrete import DiscreteVariable
from .exp_concrete import ExpConcrete, ExpLogisticNormal
from .logistic import Logistic
from .relaxation import Relaxation
from .variable import expanded


def as_states(logits: Tensor) -> Tensor:
    """Logits of n states, a power of two; those of 2 states become the one log-odds they amount to."""
    n = logits.shape[-1] if logits.dim() else 0
    if n < 1 or n & (n - 1):
        raise ValueError(
            "logits must have a last axis of n states with n a power of two, or of 1 for a single log-odds, "
            f"got shape {tuple(logits.shape)}"
        )
    return logits[..., 1:] - logits[..., :1] if n == 2 else logits


def logits_of(probs: Tensor, *, validate_args: bool | None) -> Tensor:
    """Logits from the probabilities of the states, or from that of plus one if it stands alone."""
    convert = check.as_log_odds if probs.shape[-1:] == (1,) else check.as_log_probs
    return convert(probs, validate_args=validate_args)


def bits(logits: Tensor) -> Size:
    """The event shape: as many bits as it takes to number the states."""
    return Size((max(logits.shape[-1].bit_length() - 1, 1),))


def to_corner(state: Float[Tensor, "..."], event_shape: Size) -> Float[Tensor, "*shape bits"]:
    """The point of the hypercube for a state, hard or relaxed: on the unit interval if binary, else on the simplex."""
    return (2 * state - 1).unsqueeze(-1) if event_shape[0] == 1 else mean_corner(state)


class Hypercube(DiscreteVariable):
    r"""A variable on the corners of a hypercube: a categorical one whose states are written in bits of -1 and +1.

    $$Y = C D, \quad D \sim \mathrm{Discrete}(α), \quad C \text{ the corners as columns}$$

    The last axis of the logits has n states, a power of two; a last axis of 1 is a single log-odds, the binary unit on
    minus and plus one, and logits of 2 states are turned into it. See [maddison2017concrete], appendix D.2.

    >>> Hypercube(torch.tensor([0.0, 0.0, 1e4, 0.0])).sample()
    tensor([ 1., -1.])
    >>> Hypercube(torch.tensor([[-1e4], [1e4]])).sample()
    tensor([[-1.],
            [ 1.]])
    """

    arg_constraints = {"logits": constraints.real_vector}  # noqa: RUF012
    support = corner
    _logits_of = staticmethod(logits_of)

    def __init__(self, logits: Tensor, *, validate_args: bool | None = None) -> None:
        validate = check.validates(validate_args)
        logits = as_states(check.as_logits(logits, infinite="minus", validate=validate))
        super().__init__(logits, logits.shape[:-1], bits(logits), validate=validate)

    def relax(self, temperature: Temperature) -> "HypercubeConcrete":
        """The relaxed variable with the same logits."""
        return HypercubeConcrete(self.logits, temperature, validate_args=self._validate_args)

    def relax_gaussian(self, temperature: Temperature) -> "HypercubeLogisticNormal":
        """The relaxed variable with the same logits, and Gaussian noise."""
        return HypercubeLogisticNormal(self.logits, temperature, validate_args=self._validate_args)

    @property
    def state(self) -> OneHotCategorical | Bernoulli:
        """The variable that chooses the corner."""
        if self._is_binary:
            return Bernoulli(self.logits.squeeze(-1), validate_args=False)
        return OneHotCategorical(self.logits, validate_args=False)

    @property
    def _is_binary(self) -> bool:
        return self.event_shape[0] == 1

    @property
    def _law(self) -> tuple[Any, Tensor, str]:
        return (
            (bernoulli, self.logits.squeeze(-1), "corner") if self._is_binary else (categorical, self.logits, "corner")
        )

    def _from_law(self, state: Tensor) -> Tensor:
        return state.unsqueeze(-1) if self._is_binary else state

    def _to_law(self, value: Tensor) -> Tensor:
        return value.squeeze(-1) if self._is_binary else value

    def _interpolated_log_mass(self, value: Tensor, node: Tensor | None) -> Tensor:
        if self._is_binary:
            return self.state._interpolated_log_mass((1 + value.squeeze(-1)) / 2, None)
        return self.state._interpolated_log_mass(corner_weights(value) if node is None else node.exp(), None)

    @property
    def mean(self) -> Float[Tensor, "*batch bits"]:
        """The expected value."""
        return to_corner(self.state.probs, self.event_shape)

    @property
    def mode(self) -> Float[Tensor, "*batch bits"]:
        """The most probable value."""
        return to_corner(self.state.mode, self.event_shape)

    @property
    def variance(self) -> Float[Tensor, "*batch bits"]:
        """The variance of each bit."""
        return 1 - self.mean.square()

    def entropy(self) -> Float[Tensor, "*batch"]:
        """The entropy in nats."""
        return self.state.entropy()

    def enumerate_support(self, expand: bool = True) -> Float[Tensor, "n ..."]:
        """The n corners, along a new first axis."""
        return to_corner(self.state.enumerate_support(expand), self.event_shape)


class HypercubeConcrete(Relaxation):
    r"""The relaxation of a variable on the corners of a hypercube, a point inside it.

    $$\tilde Y = C X, \quad X \sim \mathrm{Concrete}(α, λ)$$

    Log densities are those of the node: a logistic one if binary, else an ExpConcrete one. Beyond 2 states a point does
    not determine its node: `rsample_and_log_prob` scores draws, and `log_prob` raises an error.
    See [maddison2017concrete], appendix D.2.

    >>> relaxed = Hypercube(torch.zeros(80, 8)).relax(temperature=2 / 3)
    >>> value, log_prob = relaxed.rsample_and_log_prob((5,))
    >>> value.shape, log_prob.shape
    (torch.Size([5, 80, 3]), torch.Size([5, 80]))
    """

    support = cube
    _logits_of = staticmethod(logits_of)
    _is_invertible = False

    def __init__(self, logits: Tensor, temperature: Temperature, *, validate_args: bool | None = None) -> None:
        logits = as_states(check.as_logits(logits, infinite="never", validate=check.validates(validate_args)))
        is_binary = logits.shape[-1] == 1
        law, own = (Logistic, logits.squeeze(-1)) if is_binary else (ExpConcrete, logits)
        node = law(own, temperature, validate_args=validate_args)
        squashing = Sigmoid(centred=True) if is_binary else Corners(logits.shape[-1])
        logits = expanded(logits, node.batch_shape + logits.shape[-1:])
        super().__init__(node, squashing, logits=logits, event_shape=bits(logits))

    def discretize(self) -> Hypercube:
        """The discrete variable with the same logits."""
        return Hypercube(self.logits, validate_args=self._validate_args)


class HypercubeLogisticNormal(Relaxation):
    r"""A point inside a hypercube by Gaussian noise, the control of the paper's experiments.

    $$\tilde Y = C X, \quad X \sim \mathrm{LogisticNormal}(α, λ)$$

    A single log-odds stands for two logits, of which the first is zero. Log densities are those of the node, as for
    `HypercubeConcrete`. See [maddison2017concrete], section 5.2.

    >>> HypercubeLogisticNormal(torch.zeros(80, 8), temperature=2 / 3).sample().shape
    torch.Size([80, 3])
    """

    support = cube
    _logits_of = staticmethod(logits_of)
    _is_invertible = False

    def __init__(self, logits: Tensor, temperature: Temperature, *, validate_args: bool | None = None) -> None:
        logits = as_states(check.as_logits(logits, infinite="never", validate=check.validates(validate_args)))
        both = torch.cat([torch.zeros_like(logits), logits], -1) if logits.shape[-1] == 1 else logits
        node = ExpLogisticNormal(both, temperature, validate_args=validate_args)
        logits = expanded(logits, node.batch_shape + logits.shape[-1:])
        super().__init__(node, Corners(both.shape[-1]), logits=logits, event_shape=bits(logits))

    def discretize(self) -> Hypercube:
        """The discrete variable with the same logits."""
        return Hypercube(self.logits, validate_args=self._validate_args)
