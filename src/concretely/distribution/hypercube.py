"""Variables on the corners of a hypercube, and their relaxations."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.distributions import constraints

from ..functional import bernoulli, categorical
from ..functional.arithmetic import Temperature
from ..functional.hypercube import corner_weights, mean_corner
from ..functional.squashing import Corners, Sigmoid
from . import check
from .binary import Bernoulli
from .concrete import OneHotCategorical
from .constraint import corner, cube
from .exp_concrete import ExpConcrete, ExpLogisticNormal
from .logistic import Logistic
from .node import VECTOR, Made, Relaxation
from .variable import DiscreteVariable, expanded


def as_states(logits: Tensor) -> Tensor:
    """Check that the number of states is a power of two. Convert 2 logits to one log-odds."""
    n = int(logits.shape[-1]) if logits.dim() else 0  # torch.jit.trace has tensors as sizes
    if n < 1 or n & (n - 1):
        raise ValueError(
            "logits must have a last axis of n states with n a power of two, or of 1 for a single log-odds, "
            f"got shape {tuple(logits.shape)}"
        )
    return logits[..., 1:] - logits[..., :1] if n == 2 else logits


def logits_of(probs: Tensor, *, validate: bool) -> Tensor:
    """Convert the probabilities of the states, or the single probability of +1, to logits."""
    probs = check.as_floating("probs", probs)
    return _conversion_of(probs).to_logits(probs, validate=validate)


def probs_of(logits: Tensor) -> Tensor:
    """Convert the logits of the states, or a single log-odds, to probabilities."""
    return _conversion_of(logits).to_probs(logits)


def _conversion_of(parameter: Tensor) -> check.Conversion:
    return check.LOG_ODDS if parameter.shape[-1:] == (1,) else check.LOG_PROBS


STATES = check.Conversion(logits_of, probs_of)


def bits(logits: Tensor) -> Size:
    """Return the event shape, a single axis with the number of bits of a state."""
    return Size((max(int(logits.shape[-1]).bit_length() - 1, 1),))


def to_corner(state: Float[Tensor, "..."], event_shape: Size) -> Float[Tensor, "*shape bits"]:
    """Map a discrete or relaxed state to the hypercube. A binary state lies in [0, 1], others on the simplex."""
    return (2 * state - 1).unsqueeze(-1) if event_shape[0] == 1 else mean_corner(state)


class Hypercube(DiscreteVariable):
    r"""A categorical variable whose states are the corners of a hypercube, vectors of -1 and +1.

    $$Y = C D, \quad D \sim \mathrm{Discrete}(α), \quad C \text{ the corners as columns}$$

    The last axis of the logits has n states, a power of two, or 1 for the log-odds of a binary variable. Two logits are
    converted to log-odds. See [maddison2017concrete], appendix D.2.

    >>> Hypercube(logits=torch.tensor([0.0, 0.0, 1e4, 0.0])).sample()
    tensor([ 1., -1.])
    >>> Hypercube(logits=torch.tensor([[-1e4], [1e4]])).sample()
    tensor([[-1.],
            [ 1.]])
    """

    arg_constraints = {"logits": constraints.real_vector}  # noqa: RUF012
    support = corner
    _conversion = STATES

    @staticmethod
    def _split(logits: Tensor) -> tuple[Tensor, Size, Size]:
        logits = as_states(logits)
        return logits, logits.shape[:-1], bits(logits)

    def relax(self, temperature: Temperature) -> "HypercubeConcrete":
        """Return the Concrete relaxation with the same logits."""
        return HypercubeConcrete(logits=self.logits, temperature=temperature, validate_args=self._validate_args)

    def relax_gaussian(self, temperature: Temperature) -> "HypercubeLogisticNormal":
        """Return the relaxation by Gaussian noise with the same logits."""
        return HypercubeLogisticNormal(logits=self.logits, temperature=temperature, validate_args=self._validate_args)

    @property
    def state(self) -> OneHotCategorical | Bernoulli:
        """The Bernoulli or categorical variable that selects the corner."""
        if self._is_binary:
            return Bernoulli(logits=self.logits.squeeze(-1), validate_args=False)
        return OneHotCategorical(logits=self.logits, validate_args=False)

    @property
    def _is_binary(self) -> bool:
        return self.event_shape[0] == 1

    @property
    def _law(self) -> tuple[Any, Tensor, str]:
        law, logits = (bernoulli, self.logits.squeeze(-1)) if self._is_binary else (categorical, self.logits)
        return law, logits, "corner"

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
        """Return the entropy in nats."""
        return self.state.entropy()

    def enumerate_support(self, expand: bool = True) -> Float[Tensor, "n ..."]:
        """Return the n corners along a new first axis."""
        return to_corner(self.state.enumerate_support(expand), self.event_shape)


class HypercubeConcrete(Relaxation):
    r"""The Concrete relaxation of a hypercube variable, a point inside the hypercube.

    $$\tilde Y = C X, \quad X \sim \mathrm{Concrete}(α, λ)$$

    Log densities are those of the unbounded variable `node`: `Logistic` if binary, else `ExpConcrete`. With more than 2
    states, many values of `node` map to the same point, so `log_prob` raises an error; use `rsample_and_log_prob`.
    See [maddison2017concrete], appendix D.2.

    >>> relaxed = Hypercube(logits=torch.zeros(80, 8)).relax(temperature=2 / 3)
    >>> value, log_prob = relaxed.rsample_and_log_prob((5,))
    >>> value.shape, log_prob.shape
    (torch.Size([5, 80, 3]), torch.Size([5, 80]))
    """

    arg_constraints = VECTOR
    support = cube
    _conversion = STATES
    _is_invertible = False

    def _made(self, logits: Any, temperature: Temperature | None, validate_args: bool | None) -> Made:
        logits = as_states(check.as_logits(logits, infinite="never", validate=check.validates(validate_args, logits)))
        is_binary = logits.shape[-1] == 1
        law, own = (Logistic, logits.squeeze(-1)) if is_binary else (ExpConcrete, logits)
        node = law(logits=own, temperature=temperature, validate_args=validate_args)
        squashing = Sigmoid(centred=True) if is_binary else Corners(logits.shape[-1])
        logits = expanded(logits, node.batch_shape + logits.shape[-1:])
        return node, squashing, logits, bits(logits)

    def discretize(self) -> Hypercube:
        """Return the discrete variable with the same logits."""
        return Hypercube(logits=self.logits, validate_args=self._validate_args)


class HypercubeLogisticNormal(Relaxation):
    r"""The relaxation of a hypercube variable by Gaussian noise, for a control experiment of the paper.

    $$\tilde Y = C X, \quad X \sim \mathrm{LogisticNormal}(α, λ)$$

    A single log-odds is converted to two logits, the first zero. Log densities are those of the unbounded `node`.
    See [maddison2017concrete], section 5.2.

    >>> HypercubeLogisticNormal(logits=torch.zeros(80, 8), temperature=2 / 3).sample().shape
    torch.Size([80, 3])
    """

    arg_constraints = VECTOR
    support = cube
    _conversion = STATES
    _is_invertible = False

    def _made(self, logits: Any, temperature: Temperature | None, validate_args: bool | None) -> Made:
        logits = as_states(check.as_logits(logits, infinite="never", validate=check.validates(validate_args, logits)))
        both = torch.cat([torch.zeros_like(logits), logits], -1) if logits.shape[-1] == 1 else logits
        node = ExpLogisticNormal(logits=both, temperature=temperature, validate_args=validate_args)
        logits = expanded(logits, node.batch_shape + logits.shape[-1:])
        return node, Corners(both.shape[-1]), logits, bits(logits)

    def discretize(self) -> Hypercube:
        """Return the discrete variable with the same logits."""
        return Hypercube(logits=self.logits, validate_args=self._validate_args)
