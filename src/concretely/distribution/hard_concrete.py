"""The hard Concrete variable, a gate that is exactly 0 or 1 with positive probability."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from ..functional import hard_concrete
from ..functional.arithmetic import Temperature, as_precise, cast
from ..functional.draw import Drawn
from ..functional.hard_concrete import Stretch, node_at
from ..functional.noise import Source
from . import check
from .binary import Bernoulli
from .logistic import Logistic
from .node import Node
from .variable import Variable


class HardConcrete(Variable, Distribution):
    r"""A binary Concrete variable, stretched to the interval from γ < 0 to ζ > 1 and clipped to [0, 1].

    $$Z = \min(1, \max(0, γ + (ζ - γ) σ((L + \log α) / λ)))$$

    It is 0 and 1 with positive probabilities, and still has a pathwise gradient. `nonzero_probs` is the probability of
    an open gate, whose sum is the expected L0 norm. `log_prob` is the log probability of the values 0 and 1, and the
    log density between them. At temperature 0 it is a Bernoulli variable. See [louizos2018learning], section 2.2.

    >>> gate = HardConcrete(logits=torch.tensor([-4.0, 0.0, 4.0]), temperature=2 / 3)
    >>> gate.median, gate.nonzero_probs
    (tensor([0.0000, 0.5000, 1.0000]), tensor([0.0831, 0.8318, 0.9963]))
    """

    arg_constraints = Node.arg_constraints
    has_rsample = True
    support = constraints.unit_interval
    _conversion = check.LOG_ODDS

    def __init__(
        self,
        *positional: Any,
        logits: Tensor | float | None = None,
        probs: Tensor | float | None = None,
        temperature: Temperature | None = None,
        stretch: Stretch = (-0.1, 1.1),
        validate_args: bool | None = None,
    ) -> None:
        given = self._given(positional, logits, probs, validate=check.validates(validate_args, logits, probs))
        self._node = Logistic(logits=given, temperature=temperature, validate_args=validate_args)
        self._temperature, self.stretch = self._node._temperature, as_stretch(stretch)
        validate = bool(self._node._validate_args)
        super().__init__(self._node.logits, self._node.batch_shape, Size(), validate=validate)

    @property
    def node(self) -> Logistic:
        """The log-odds before stretching, an unbounded variable."""
        return self._node if self._node.batch_shape == self.batch_shape else self._node.expand(self.batch_shape)

    @property
    def temperature(self) -> Tensor:
        """The temperature λ."""
        return self._node.temperature

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the noise from which `push` makes samples."""
        return self.node.noise(sample_shape, generator=generator)

    def push(self, noise: Tensor) -> Tensor:
        """Return the value made from noise: the deterministic part of sampling."""
        return self._squash(self.node._push(self._shaped("noise", noise)))

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw values with a pathwise gradient, which is zero where they are clipped."""
        logits, temperature, stretch = self.node.logits, *self._parameters[1:]
        value = hard_concrete.draw(logits, temperature, stretch, sample_shape=sample_shape, generator=generator)
        return cast(value, self.logits.dtype)

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw values with a pathwise gradient, and their log probabilities or densities (see `log_prob`)."""
        drawn = self.drawn(sample_shape, generator=generator)
        return drawn.value, drawn.score()

    def drawn(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None, axes: int = 0) -> Drawn:
        """Draw values, with their nodes and a function that returns the log probabilities or densities of the values.

        `axes` is the number of last batch axes that the caller will sum over, a hint for fusion.
        """
        drawn = self.node.drawn(sample_shape, generator=generator)
        node, value = drawn.value, self._squash(drawn.value)

        def score() -> Tensor:
            log_prob = hard_concrete.log_mixed_density_of_node(node, drawn.score(), value.detach(), *self._parameters)
            return cast(log_prob, self.logits.dtype)

        return Drawn(value, score, node=self.node._rounded(node))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log probability of the values 0 and 1, and the log density of values between them."""
        return cast(hard_concrete.log_mixed_density(self._checked(value), *self._parameters), self.logits.dtype)

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the CDF at a value."""
        return cast(hard_concrete.cdf(self._checked(value), *self._parameters), self.logits.dtype)

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the inverse CDF at a probability."""
        return self.push(torch.logit(check.as_fraction(value, validate=bool(self._validate_args))))

    @property
    def nonzero_probs(self) -> Float[Tensor, "..."]:
        """The probability that the value is not 0."""
        return cast(self._nonzero_log_probs().exp(), self.logits.dtype)

    @property
    def nonzero_log_probs(self) -> Float[Tensor, "..."]:
        """The log probability that the value is not 0."""
        return cast(self._nonzero_log_probs(), self.logits.dtype)

    def _nonzero_log_probs(self) -> Tensor:
        logits, temperature, stretch = self._parameters
        return hard_concrete.log_exceeds(node_at(0, stretch), logits, temperature)

    @property
    def mean(self) -> Float[Tensor, "..."]:
        """The expected value, an integral."""
        return cast(hard_concrete.moments(*self._parameters)[0], self.logits.dtype)

    @property
    def variance(self) -> Float[Tensor, "..."]:
        """The variance, from integrals."""
        mean, square = hard_concrete.moments(*self._parameters)
        return cast(square - mean.square(), self.logits.dtype)

    @property
    def median(self) -> Float[Tensor, "..."]:
        """The median, which is 0 if the value is 0 with a probability of at least 1/2."""
        return cast(hard_concrete.median(*self._parameters), self.logits.dtype)

    def discretize(self) -> Bernoulli:
        """Return the Bernoulli variable with the same logits, the limit at temperature 0."""
        return Bernoulli(logits=self.logits, validate_args=self._validate_args)

    @property
    def _parameters(self) -> tuple[Tensor, Temperature, Stretch]:
        assert self._temperature is not None
        return self.logits, as_precise(self._temperature), self.stretch

    def _squash(self, node: Tensor) -> Tensor:
        return cast(hard_concrete.squash(node, self.stretch, self.logits.dtype), self.logits.dtype)


def as_stretch(stretch: Any) -> Stretch:
    """Check a stretched interval; raise unless it goes from below 0 to above 1."""
    is_pair = isinstance(stretch, tuple | list) and len(stretch) == 2
    if not is_pair or not all(isinstance(end, Real) and not isinstance(end, bool) for end in stretch):
        raise TypeError(f"stretch must be a pair of numbers, such as (-0.1, 1.1), got {stretch!r}")
    low, high = map(float, stretch)
    if not -math.inf < low < 0 or not 1 < high < math.inf:
        raise ValueError(f"stretch must begin below 0 and end above 1, got {stretch!r}")
    return low, high
