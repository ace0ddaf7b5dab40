"""N-ary nodes whose states are the corners of a hypercube, and their relaxation."""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid

from ..kernel import bernoulli, discrete
from ..noise import Source
from . import check
from .base import Mass, Relaxation
from .binary import Bernoulli
from .cast import cast, wide, working
from .concrete import Discrete, log_mass_of
from .constraint import corner, cube
from .exp_concrete import ExpConcrete
from .fused import Draw, Unit
from .logistic import Logistic
from .logistic_normal import ExpLogisticNormal
from .memory import recall
from .node import Tempered
from .squash import inside, sigmoid
from .temperature import Temperature
from .variable import expanded


def corners(n: int, *, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "n bits"]:
    """The corners of the hypercube as rows: the binary digits of the state, the highest first, as minus and plus one.

    >>> corners(4, dtype=torch.float32, device=torch.device("cpu"))
    tensor([[-1., -1.],
            [-1.,  1.],
            [ 1., -1.],
            [ 1.,  1.]])
    """
    digit = torch.arange(n.bit_length() - 2, -1, -1, device=device)
    state = torch.arange(n, device=device).unsqueeze(-1)
    return (2 * (state >> digit & 1) - 1).to(dtype)


def as_states(logits: Tensor) -> Tensor:
    """Logits of n states, a power of two; those of 2 states become the one log-odds they amount to."""
    n = logits.shape[-1] if logits.dim() else 0
    if n < 1 or n & (n - 1):
        raise ValueError(
            "logits must have a last axis of n states with n a power of two, or of 1 for a single log-odds, "
            f"got shape {tuple(logits.shape)}"
        )
    return logits[..., 1:] - logits[..., :1] if n == 2 else logits


def log_probs(probs: Tensor, *, validate_args: bool | None) -> Tensor:
    """Logits from the probabilities of the states, or from that of plus one if it stands alone."""
    return (
        check.as_log_odds(probs, validate_args=validate_args)
        if probs.shape[-1:] == (1,)
        else check.as_log_probs(probs, validate_args=validate_args)
    )


def bits(logits: Tensor) -> Size:
    """The event shape: as many bits as it takes to number the states."""
    return Size((max(logits.shape[-1].bit_length() - 1, 1),))


def to_corner(state: Float[Tensor, "..."], event_shape: Size) -> Float[Tensor, "*shape bits"]:
    """The point of the hypercube for a state, hard or relaxed: on the unit interval if binary, else on the simplex."""
    return (2 * state - 1).unsqueeze(-1) if event_shape[0] == 1 else mean_corner(state)


def mean_corner(weight: Float[Tensor, "*shape n"]) -> Float[Tensor, "*shape bits"]:
    """The mean of the corners by weights that sum to one.

    >>> mean_corner(torch.tensor([0.0, 0.5, 0.0, 0.5]))
    tensor([0., 1.])
    """
    if weight.is_cuda and torch.get_float32_matmul_precision() != "highest":  # products may be less precise than sums
        return _mean_by_sums(weight)
    with torch.autocast(weight.device.type, enabled=False):  # a product in a narrower dtype would leave the corners
        return weight @ corners(weight.shape[-1], dtype=weight.dtype, device=weight.device)


def _mean_by_sums(weight: Float[Tensor, "*shape n"]) -> Float[Tensor, "*shape bits"]:
    """The same: of every bit, the weight of the corners that have it less that of the others."""
    digits = range(weight.shape[-1].bit_length() - 1)
    halves = [weight.unflatten(-1, (2**digit, 2, -1)).sum((-3, -1)) for digit in digits]
    return torch.stack([half[..., 1] - half[..., 0] for half in halves], -1)


def _closeness(value: Float[Tensor, "*shape bits"]) -> Float[Tensor, "*shape n"]:
    """Weights of the corners, linear in each bit of a point, that have the point as their mean."""
    weight = torch.ones_like(value[..., :1])
    for bit in value.unbind(-1):
        weight = torch.stack([weight * (1 - bit.unsqueeze(-1)) / 2, weight * (1 + bit.unsqueeze(-1)) / 2], -1)
        weight = weight.flatten(-2)
    return weight


class Hypercube(Mass):
    r"""A variable on the corners of a hypercube: a discrete one whose states are written in bits of minus and plus one.

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

    def __init__(self, logits: Tensor, *, validate_args: bool | None = None) -> None:
        validate = check.validates(validate_args)
        logits = as_states(check.as_logits(logits, infinite="minus", validate=validate))
        super().__init__(logits, logits.shape[:-1], bits(logits), validate=validate)

    @classmethod
    def from_probs(cls, probs: Tensor, *, validate_args: bool | None = None) -> Self:
        """Build the variable from the probabilities of its states, or from that of plus one if it stands alone."""
        return cls(log_probs(probs, validate_args=validate_args), validate_args=validate_args)

    def relax(self, temperature: Temperature) -> "HypercubeConcrete":
        """The relaxed variable with the same logits."""
        return HypercubeConcrete(self.logits, temperature, validate_args=self._validate_args)

    def control(self, temperature: Temperature) -> "HypercubeLogisticNormal":
        """The relaxed variable with the same logits, and Gaussian noise."""
        return HypercubeLogisticNormal(self.logits, temperature, validate_args=self._validate_args)

    @property
    def state(self) -> Discrete | Bernoulli:
        """The variable that chooses the corner."""
        if self.event_shape[0] == 1:
            return Bernoulli(self.logits.squeeze(-1), validate_args=False)
        return Discrete(self.logits, validate_args=False)

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the noise of the state: logistic if binary, else Gumbel for every category."""
        return self.state.noise(sample_shape, generator=generator)

    def push(self, noise: Float[Tensor, "..."]) -> Float[Tensor, "*shape bits"]:
        """The corner of the state that noise becomes."""
        return to_corner(self.state.push(noise), self.event_shape)

    def _fused(self, sample_shape: Sequence[int], generator: Source | None, axes: int) -> Draw | None:
        return self._unit.draw(sample_shape, self.batch_shape, generator, "corner", axes)

    def _fused_score(self, value: Tensor, axes: int) -> Tensor | None:
        return self._unit.score(value.squeeze(-1) if self.event_shape[0] == 1 else value, axes, "corner")

    @property
    def _unit(self) -> Unit:
        if self.event_shape[0] == 1:
            return Unit(bernoulli, self.logits.squeeze(-1), 0)
        return Unit(discrete, self.logits, 1)

    def _log_mass(self, value: Tensor) -> Tensor:
        if self.event_shape[0] == 1:
            logits = cast(self.logits, working(self.logits.dtype)).squeeze(-1)
            return logsigmoid(logits * value.detach().squeeze(-1))
        on = value > 0
        place = 2 ** torch.arange(self.event_shape[0] - 1, -1, -1, device=value.device)
        category = (on.long() * place).sum(-1)
        return log_mass_of(wide(self.logits).log_softmax(-1), category)

    def _interpolated_log_mass(self, value: Tensor) -> Tensor:
        if self.event_shape[0] == 1:
            return self.state._interpolated_log_mass((1 + value.squeeze(-1)) / 2)
        node = recall(value, support=cube)
        return self.state._interpolated_log_mass(_closeness(value) if node is None else node.exp())

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

    Scores are those of the node: a logistic one if binary, else an ExpConcrete one. Beyond 2 states a point does not
    determine its node, so that only drawn values, which remember theirs, can be scored.
    See [maddison2017concrete], appendix D.2.

    >>> relaxed = Hypercube(torch.zeros(80, 8)).relax(temperature=2 / 3)
    >>> value, log_prob = relaxed.rsample_and_log_prob((5,))
    >>> value.shape, log_prob.shape
    (torch.Size([5, 80, 3]), torch.Size([5, 80]))
    """

    support = cube

    def __init__(self, logits: Tensor, temperature: Temperature, *, validate_args: bool | None = None) -> None:
        logits = as_states(check.as_logits(logits, infinite="never", validate=check.validates(validate_args)))
        node = self._behind(logits, temperature, validate_args)
        self._squashed_by = "corner" if isinstance(node, Logistic) else "cube"
        logits = expanded(logits, node.batch_shape + logits.shape[-1:])
        super().__init__(node, logits=logits, event_shape=bits(logits))

    @staticmethod
    def _behind(logits: Tensor, temperature: Temperature, validate_args: bool | None) -> Tempered:
        """The node."""
        if logits.shape[-1] == 1:
            return Logistic(logits.squeeze(-1), temperature, validate_args=validate_args)
        return ExpConcrete(logits, temperature, validate_args=validate_args)

    @classmethod
    def from_probs(cls, probs: Tensor, temperature: Temperature, *, validate_args: bool | None = None) -> Self:
        """Build the variable from the probabilities of its states, or from that of plus one if it stands alone."""
        return cls(log_probs(probs, validate_args=validate_args), temperature, validate_args=validate_args)

    def discretize(self) -> Hypercube:
        """The discrete variable with the same logits."""
        return Hypercube(self.logits, validate_args=self._validate_args)

    def _squash(self, node: Tensor) -> Tensor:
        if self.event_shape[0] == 1:
            return to_corner(sigmoid(node), self.event_shape)
        return inside(to_corner(node.exp(), self.event_shape), -1, 1)

    def _unsquash(self, value: Tensor) -> Tensor:
        if self.event_shape[0] == 1:
            return 2 * torch.atanh(value.squeeze(-1))
        raise ValueError(
            f"value of a {type(self).__name__} with {2 ** self.event_shape[0]} states must be the very tensor drawn, "
            "which remembers its node: a point of the hypercube does not determine one"
        )

    def _log_slope(self, node: Tensor) -> Tensor:
        return torch.zeros((), dtype=node.dtype, device=node.device)

    def _determined(self, value: Tensor) -> Tensor:
        if self.event_shape[0] == 1:
            edge = 1 - max(torch.finfo(value.dtype).eps, torch.finfo(self.logits.dtype).eps) / 2
            return value.squeeze(-1).abs() < edge
        return torch.ones((), dtype=torch.bool, device=value.device)


class HypercubeLogisticNormal(HypercubeConcrete):
    r"""A point inside a hypercube by Gaussian noise, the control of the paper's experiments.

    $$\tilde Y = C X, \quad X \sim \mathrm{LogisticNormal}(α, λ)$$

    A single log-odds stands for two logits, of which the first is zero. See [maddison2017concrete], section 5.2.

    >>> HypercubeLogisticNormal(torch.zeros(80, 8), temperature=2 / 3).sample().shape
    torch.Size([80, 3])
    """

    @staticmethod
    def _behind(logits: Tensor, temperature: Temperature, validate_args: bool | None) -> Tempered:
        both = torch.cat([torch.zeros_like(logits), logits], -1) if logits.shape[-1] == 1 else logits
        return ExpLogisticNormal(both, temperature, validate_args=validate_args)

    def _squash(self, node: Tensor) -> Tensor:
        return inside(mean_corner(node.exp()), -1, 1)

    def _unsquash(self, value: Tensor) -> Tensor:
        if self.event_shape[0] == 1:
            return ((1 + torch.cat([-value, value], -1)) / 2).log()
        return super()._unsquash(value)

    def _determined(self, value: Tensor) -> Tensor:
        found = super()._determined(value)
        return found.unsqueeze(-1) if self.event_shape[0] == 1 else found
