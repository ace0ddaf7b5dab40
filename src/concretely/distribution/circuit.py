"""The general binary circuit: any noise, relocated so that its sign is a given Bernoulli variable."""

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.distributions import Distribution, constraints
from torch.nn.functional import logsigmoid

from ..noise import Source, uniform
from . import check, logistic
from .binary import Bernoulli
from .cast import WIDE, cast, wide
from .node import Tempered
from .squash import OnUnitInterval
from .temperature import Temperature, log


def odd(function: Callable[[Tensor], Tensor], argument: Tensor) -> Tensor:
    """An odd function by its values at negative arguments, where a lower tail keeps its precision."""
    positive = argument > 0
    value = function(torch.where(positive, -argument, argument))
    return torch.where(positive, -value, value)


@runtime_checkable
class Family(Protocol):
    """A law of noise on the whole real line: all that the circuit asks of it."""

    @property
    def mean(self) -> float: ...

    @property
    def mode(self) -> float: ...

    @property
    def variance(self) -> float: ...

    @property
    def entropy(self) -> float: ...

    def log_density(self, noise: Tensor) -> Tensor: ...

    def cdf(self, noise: Tensor) -> Tensor: ...

    def quantile(self, u: Tensor) -> Tensor: ...

    def location(self, logits: Tensor) -> Tensor:
        """What to add to the noise so that it is positive with these log-odds."""


class LogisticNoise:
    """Noise whose circuit is the binary Concrete variable."""

    mean, mode, variance, entropy = 0.0, 0.0, math.pi**2 / 3, 2.0

    def log_density(self, noise: Tensor) -> Tensor:
        return logistic.standard_log_density(noise.clone())

    def cdf(self, noise: Tensor) -> Tensor:
        return torch.sigmoid(noise)

    def quantile(self, u: Tensor) -> Tensor:
        return torch.logit(u)

    def location(self, logits: Tensor) -> Tensor:
        return logits.clone()


class NormalNoise:
    """Gaussian noise, the probit unit."""

    mean, mode, variance, entropy = 0.0, 0.0, 1.0, (1 + math.log(2 * math.pi)) / 2

    def log_density(self, noise: Tensor) -> Tensor:
        return -(noise.square() + math.log(2 * math.pi)) / 2

    def cdf(self, noise: Tensor) -> Tensor:
        return torch.erfc(-noise / math.sqrt(2)) / 2  # torch.special.ndtr has no lower tail

    def quantile(self, u: Tensor) -> Tensor:
        noise: Tensor = torch.special.ndtri(u)
        return noise

    def location(self, logits: Tensor) -> Tensor:
        return odd(self._lower_quantile, logits)

    def _lower_quantile(self, logits: Tensor) -> Tensor:
        # Newton's method for the logarithm of the tail, nearly linear in the squared quantile. A differentiable
        # step at the root makes one more derivative exact.
        log_tail = logsigmoid(logits)
        with torch.no_grad():
            near = -torch.special.ndtri(log_tail.clamp(min=-500).exp())
            size = torch.where(log_tail > -500, near, (-2 * log_tail).sqrt())
            size = self._newton(self._newton(size, log_tail), log_tail)
        return -self._newton(self._newton(size, log_tail), log_tail)

    def _newton(self, size: Tensor, log_tail: Tensor) -> Tensor:
        log_reached = torch.log(torch.special.erfcx(size / math.sqrt(2)) / 2) - size.square() / 2
        return size + (log_reached - log_tail) * (log_reached - self.log_density(size)).exp()


class LaplaceNoise:
    """Double exponential noise."""

    mean, mode, variance, entropy = 0.0, 0.0, 2.0, 1 + math.log(2)

    def log_density(self, noise: Tensor) -> Tensor:
        return -noise.abs() - math.log(2)

    def cdf(self, noise: Tensor) -> Tensor:
        tail = torch.exp(-noise.abs()) / 2
        return torch.where(noise < 0, tail, 1 - tail)

    def quantile(self, u: Tensor) -> Tensor:
        return torch.where(u < 0.5, torch.log(2 * u), -torch.log(2 - 2 * u))

    def location(self, logits: Tensor) -> Tensor:
        return odd(lambda logits: logsigmoid(logits) + math.log(2), logits)


class CauchyNoise:
    """Noise with tails so heavy that it has no mean."""

    mean, mode, variance, entropy = math.nan, 0.0, math.nan, math.log(4 * math.pi)

    def log_density(self, noise: Tensor) -> Tensor:
        return -2 * torch.hypot(torch.ones_like(noise), noise).log() - math.log(math.pi)

    def cdf(self, noise: Tensor) -> Tensor:
        return torch.atan2(torch.ones_like(noise), -noise) / math.pi

    def quantile(self, u: Tensor) -> Tensor:
        return torch.where(u < 0.5, -1 / torch.tan(math.pi * u), 1 / torch.tan(math.pi * (1 - u)))

    def location(self, logits: Tensor) -> Tensor:
        return odd(lambda logits: -1 / torch.tan(math.pi * torch.sigmoid(logits)), logits)


@dataclass(frozen=True)
class LawNoise:
    """Noise with the law of any distribution that has a density, a distribution function and its inverse.

    It is as exact in the tails as that inverse is.
    """

    law: Distribution

    @property
    def mean(self) -> float:
        return float(self.law.mean)

    @property
    def mode(self) -> float:
        return float(self.law.mode)

    @property
    def variance(self) -> float:
        return float(self.law.variance)

    @property
    def entropy(self) -> float:
        return float(self.law.entropy())

    def log_density(self, noise: Tensor) -> Tensor:
        return self.law.log_prob(noise)

    def cdf(self, noise: Tensor) -> Tensor:
        return self.law.cdf(noise)

    def quantile(self, u: Tensor) -> Tensor:
        return self.law.icdf(u)

    def location(self, logits: Tensor) -> Tensor:
        return -self.law.icdf(torch.sigmoid(-logits))


def as_family(noise: str | Distribution | Family) -> Family:
    """The noise meant by a name, a distribution or a family."""
    known: dict[str, type[Family]] = {
        "logistic": LogisticNoise,
        "normal": NormalNoise,
        "laplace": LaplaceNoise,
        "cauchy": CauchyNoise,
    }
    if isinstance(noise, Distribution):
        if noise.batch_shape or noise.event_shape:
            shapes = f"{tuple(noise.batch_shape)} and {tuple(noise.event_shape)}"
            raise ValueError(f"noise must be a distribution of single numbers, got batch and event shapes {shapes}")
        return LawNoise(noise)
    if isinstance(noise, Family):
        return noise
    if not isinstance(noise, str):
        raise TypeError(f"noise must be a name, a distribution or a family, got {type(noise).__name__}")
    if noise not in known:
        near = difflib.get_close_matches(noise, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        raise ValueError(f"unknown noise {noise!r}; {hint}")
    return known[noise]()


def uniform_wide(shape: Sequence[int], dtype: torch.dtype, *, device: torch.device, generator: Source | None) -> Tensor:
    """Uniform noise in float64 for every dtype: that of float32 is precise near 0 only, and either tail counts."""
    return uniform(shape, WIDE, device=device, generator=generator)


class CircuitNode(Tempered):
    r"""Relocated noise over a temperature: the stochastic node of a general binary circuit.

    $$X = (Y - Φ^{-1}(1 / (1 + α))) / λ, \quad Y \sim Φ$$

    See [maddison2017concrete], appendix B.

    >>> CircuitNode(torch.tensor([-3.0, 3.0]), 0.5, noise="laplace").cdf(torch.zeros(2))
    tensor([0.9526, 0.0474])
    """

    support = constraints.real
    category_axes = 0

    def __init__(
        self,
        logits: Tensor | float,
        temperature: Temperature,
        *,
        noise: str | Distribution | Family = "normal",
        validate_args: bool | None = None,
    ) -> None:
        self.family = as_family(noise)
        super().__init__(logits, temperature, validate_args=validate_args)

    @classmethod
    def from_probs(
        cls,
        probs: Tensor | float,
        temperature: Temperature,
        *,
        noise: str | Distribution | Family = "normal",
        validate_args: bool | None = None,
    ) -> Self:
        """Build the variable from the probability that its value is positive."""
        return cls(
            check.as_log_odds(probs, validate_args=validate_args), temperature, noise=noise, validate_args=validate_args
        )

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw noise of the family."""
        return self.family.quantile(self._drawn(uniform_wide, sample_shape, generator))

    def _location(self) -> Tensor:
        return self.family.location(wide(self.logits))

    def _push(self, noise: Tensor) -> Tensor:
        return logistic.push(self._location(), self._value_temperature, noise)

    def _log_density(self, value: Tensor) -> Tensor:
        return self._log_density_of_noise(self._value_temperature * wide(value) - self._location())

    def _log_density_of_noise(self, noise: Tensor) -> Tensor:
        return self.family.log_density(noise) + log(self._batch_temperature)

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The probability of a smaller value."""
        noise = self._value_temperature * wide(self._checked(value)) - self._location()
        return cast(self.family.cdf(noise), self.logits.dtype)

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The value below which the variable falls with a given probability."""
        return self.push(self.family.quantile(check.as_fraction(value, validate=self._validate_args)))

    def entropy(self) -> Float[Tensor, "..."]:
        """The differential entropy."""
        return self._filled(self.family.entropy - log(self._batch_temperature))

    @property
    def mean(self) -> Float[Tensor, "..."]:
        """The expected value, which the Cauchy circuit lacks."""
        return cast((self._location() + self.family.mean) / self._value_temperature, self.logits.dtype)

    @property
    def mode(self) -> Float[Tensor, "..."]:
        """The most probable value."""
        return cast((self._location() + self.family.mode) / self._value_temperature, self.logits.dtype)

    @property
    def variance(self) -> Float[Tensor, "..."]:
        """The variance, which the Cauchy circuit lacks."""
        return self._filled(self.family.variance / self._batch_temperature**2)


class BinaryCircuit(OnUnitInterval):
    r"""A relaxed Bernoulli variable made from any noise on the real line.

    $$X = σ((Y - Φ^{-1}(1 / (1 + α))) / λ), \quad Y \sim Φ$$

    The noise is named (logistic, normal, laplace, cauchy) or given as a distribution with `icdf`, `cdf` and `log_prob`.
    Rounding gives the Bernoulli variable of the logits under every noise. See [maddison2017concrete], appendix B.

    >>> circuit = BinaryCircuit(torch.tensor(2.0), temperature=0.5, noise="cauchy")
    >>> circuit.discretize()
    Bernoulli(logits: 2)
    """

    def __init__(
        self,
        logits: Tensor | float,
        temperature: Temperature,
        *,
        noise: str | Distribution | Family = "normal",
        validate_args: bool | None = None,
    ) -> None:
        node = CircuitNode(logits, temperature, noise=noise, validate_args=validate_args)
        super().__init__(node, logits=node.logits, event_shape=Size())

    @classmethod
    def from_probs(
        cls,
        probs: Tensor | float,
        temperature: Temperature,
        *,
        noise: str | Distribution | Family = "normal",
        validate_args: bool | None = None,
    ) -> Self:
        """Build the variable from the probability that it rounds to 1."""
        return cls(
            check.as_log_odds(probs, validate_args=validate_args), temperature, noise=noise, validate_args=validate_args
        )

    def discretize(self) -> Bernoulli:
        """The Bernoulli variable with the same logits."""
        return Bernoulli(self.logits, validate_args=self._validate_args)
