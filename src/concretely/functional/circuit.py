"""The general binary circuit: noise of any distribution, shifted so that its sign is a given Bernoulli variable."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import logsigmoid

from ..spelling import did_you_mean
from . import logistic, normal
from .arithmetic import Temperature, log_temperature, to_float64
from .noise import Source, uniform


def odd(function: Callable[[Tensor], Tensor], argument: Tensor) -> Tensor:
    """Evaluate an odd function by calling it at negative arguments only, where it is precise."""
    positive = argument > 0
    value = function(torch.where(positive, -argument, argument))
    return torch.where(positive, -value, value)


@runtime_checkable
class Family(Protocol):
    """The interface of a noise distribution on the real line."""

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

    def log_tail(self, noise: Tensor, *, upper: bool) -> Tensor:
        """Return the log survival function (`upper`) or the log CDF."""

    def quantile(self, u: Tensor) -> Tensor: ...

    def location(self, logits: Tensor) -> Tensor:
        """Return the shift for which noise plus shift is positive with these log-odds."""


class LogisticNoise:
    """Logistic noise, which gives the binary Concrete variable."""

    mean, mode, variance, entropy = 0.0, 0.0, math.pi**2 / 3, 2.0

    def log_density(self, noise: Tensor) -> Tensor:
        return logistic.standard_log_density(noise.clone())

    def cdf(self, noise: Tensor) -> Tensor:
        return torch.sigmoid(noise)

    def log_tail(self, noise: Tensor, *, upper: bool) -> Tensor:
        return logsigmoid(-noise if upper else noise)

    def quantile(self, u: Tensor) -> Tensor:
        return torch.logit(u)

    def location(self, logits: Tensor) -> Tensor:
        return logits.clone()


class NormalNoise:
    """Gaussian noise, which gives the probit unit."""

    mean, mode, variance, entropy = 0.0, 0.0, 1.0, (1 + normal.LOG_TWO_PI) / 2

    def log_density(self, noise: Tensor) -> Tensor:
        return normal.log_density(noise)

    def cdf(self, noise: Tensor) -> Tensor:
        return torch.erfc(-noise / math.sqrt(2)) / 2  # torch.special.ndtr loses the lower tail

    def log_tail(self, noise: Tensor, *, upper: bool) -> Tensor:
        return normal.log_cdf(-noise if upper else noise)

    def quantile(self, u: Tensor) -> Tensor:
        noise: Tensor = torch.special.ndtri(u)
        return noise

    def location(self, logits: Tensor) -> Tensor:
        return odd(self._lower_quantile, logits)

    def _lower_quantile(self, logits: Tensor) -> Tensor:
        # Newton's method on the log tail; each differentiable step at the root makes one more derivative exact
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
    """Laplace noise."""

    mean, mode, variance, entropy = 0.0, 0.0, 2.0, 1 + math.log(2)

    def log_density(self, noise: Tensor) -> Tensor:
        return -noise.abs() - math.log(2)

    def cdf(self, noise: Tensor) -> Tensor:
        tail = torch.exp(-noise.abs()) / 2
        return torch.where(noise < 0, tail, 1 - tail)

    def log_tail(self, noise: Tensor, *, upper: bool) -> Tensor:
        noise = -noise if upper else noise
        return torch.where(noise < 0, -noise.abs() - math.log(2), torch.log1p(-torch.exp(-noise.abs()) / 2))

    def quantile(self, u: Tensor) -> Tensor:
        return torch.where(u < 0.5, torch.log(2 * u), -torch.log(2 - 2 * u))

    def location(self, logits: Tensor) -> Tensor:
        return odd(lambda logits: logsigmoid(logits) + math.log(2), logits)


class CauchyNoise:
    """Cauchy noise, which has no mean."""

    mean, mode, variance, entropy = math.nan, 0.0, math.nan, math.log(4 * math.pi)

    def log_density(self, noise: Tensor) -> Tensor:
        return -2 * torch.hypot(torch.ones_like(noise), noise).log() - math.log(math.pi)

    def cdf(self, noise: Tensor) -> Tensor:
        return torch.atan2(torch.ones_like(noise), -noise) / math.pi

    def log_tail(self, noise: Tensor, *, upper: bool) -> Tensor:
        return self.cdf(-noise if upper else noise).log()

    def quantile(self, u: Tensor) -> Tensor:
        return torch.where(u < 0.5, -1 / torch.tan(math.pi * u), 1 / torch.tan(math.pi * (1 - u)))

    def location(self, logits: Tensor) -> Tensor:
        return odd(self._lower_quantile, logits)

    def _lower_quantile(self, logits: Tensor) -> Tensor:
        far = logits < -20
        near = -1 / torch.tan(math.pi * torch.sigmoid(torch.where(far, -20, logits)))
        # the tangent of a number below 1e-8 is that number; a location beyond exp(600) would overflow
        return torch.where(far, -(1 + torch.exp(-torch.where(far, logits, 0).clamp(min=-600))) / math.pi, near)


@dataclass(frozen=True)
class LawNoise:
    """Noise of any torch distribution with `log_prob`, `cdf` and `icdf`, as precise as these methods are."""

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

    def log_tail(self, noise: Tensor, *, upper: bool) -> Tensor:
        tail = 1 - self.law.cdf(noise) if upper else self.law.cdf(noise)
        return tail.clamp(min=torch.finfo(tail.dtype).tiny).log()  # keep the log finite

    def quantile(self, u: Tensor) -> Tensor:
        return self.law.icdf(u)

    def location(self, logits: Tensor) -> Tensor:
        return -self.law.icdf(torch.sigmoid(-logits))


def as_family(noise: str | Distribution | Family) -> Family:
    """Return the noise family for a name or a distribution; return a family unchanged."""
    families: dict[str, type[Family]] = {
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
    if noise not in families:
        raise ValueError(f"unknown noise {noise!r}{did_you_mean(noise, families)}")
    return families[noise]()


@dataclass(frozen=True)
class Circuit:
    """The functions of `CircuitNode`, whose value is shifted noise divided by the temperature."""

    family: Family
    category_axes = 0
    draw = score = pull = None  # no kernel, and torch differentiates `push`

    def noise(
        self, shape: Sequence[int], dtype: torch.dtype, *, device: torch.device, generator: Source | None
    ) -> Tensor:
        """Draw noise in float64, whatever the dtype: float32 quantiles are precise in one tail only."""
        return self.family.quantile(uniform(shape, torch.float64, device=device, generator=generator))

    def location(self, logits: Tensor) -> Tensor:
        """Return the shift of the noise."""
        return self.family.location(to_float64(logits))

    def push(self, logits: Tensor, temperature: Temperature, noise: Tensor) -> Tensor:
        """Divide the shifted noise by the temperature. The limit at temperature zero is ±infinity."""
        node = logistic.push(self.location(logits), temperature, noise)
        edge = torch.finfo(logits.dtype).max  # which the location of Cauchy noise exceeds at a logit of 90
        return torch.where(node.isinf(), node, node.clamp(-edge, edge))

    def noise_behind(self, value: Tensor, logits: Tensor, temperature: Temperature) -> Tensor:
        """Return the noise that a value was made from."""
        return temperature * to_float64(value) - self.location(logits)

    def log_density_of_noise(self, noise: Tensor, temperature: Temperature) -> Tensor:
        """Return the log density of the value made from noise."""
        return self.family.log_density(noise) + log_temperature(temperature, noise)

    def log_density(self, value: Tensor, logits: Tensor, temperature: Temperature) -> Tensor:
        """Return the log density of a value."""
        return self.log_density_of_noise(self.noise_behind(value, logits, temperature), temperature)

    def log_tail(self, value: Tensor, logits: Tensor, temperature: Temperature, *, upper: bool) -> Tensor:
        """Return the log survival function (`upper`) or the log CDF at a value."""
        return self.family.log_tail(self.noise_behind(value, logits, temperature), upper=upper)
