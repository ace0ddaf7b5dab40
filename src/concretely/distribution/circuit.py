"""The general binary circuit: noise of any distribution, shifted so that its sign is a given Bernoulli variable."""

from typing import Any

from jaxtyping import Float
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from ..functional.arithmetic import Temperature, cast, log_temperature
from ..functional.circuit import Circuit, Family, as_family
from ..functional.squashing import Sigmoid
from . import check
from .binary import Bernoulli
from .node import Made, Node, Relaxation, cdf_on_unit_interval, icdf_on_unit_interval


class CircuitNode(Node):
    r"""The unbounded variable of a general binary circuit: shifted noise with CDF Φ, divided by the temperature.

    $$X = (Y - Φ^{-1}(1 / (1 + α))) / λ, \quad Y \sim Φ$$

    See [maddison2017concrete], appendix B.

    >>> import torch
    >>> CircuitNode(logits=torch.tensor([-3.0, 3.0]), temperature=0.5, noise="laplace").cdf(torch.zeros(2))
    tensor([0.9526, 0.0474])
    """

    support = constraints.real
    _conversion = check.LOG_ODDS
    law: Circuit

    def __init__(
        self,
        *positional: Any,
        logits: Tensor | float | None = None,
        probs: Tensor | float | None = None,
        temperature: Temperature | None = None,
        noise: str | Distribution | Family = "normal",
        validate_args: bool | None = None,
    ) -> None:
        self.law = Circuit(as_family(noise))
        super().__init__(*positional, logits=logits, probs=probs, temperature=temperature, validate_args=validate_args)

    @property
    def family(self) -> Family:
        """The family of the noise."""
        return self.law.family

    def _location(self) -> Tensor:
        return self.law.location(self.logits)

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the CDF at a value."""
        noise = self.law.noise_behind(self._checked(value), *self._parameters)
        return cast(self.family.cdf(noise), self.logits.dtype)

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the inverse CDF at a probability."""
        return self.push(self.family.quantile(check.as_fraction(value, validate=self._validate_args)))

    def entropy(self) -> Float[Tensor, "..."]:
        """Return the differential entropy."""
        return self._filled(self.family.entropy - log_temperature(self._batch_temperature, self.logits))

    @property
    def mean(self) -> Float[Tensor, "..."]:
        """The expected value, NaN for Cauchy noise."""
        return cast((self._location() + self.family.mean) / self._batch_temperature, self.logits.dtype)

    @property
    def mode(self) -> Float[Tensor, "..."]:
        """The most probable value."""
        return cast((self._location() + self.family.mode) / self._batch_temperature, self.logits.dtype)

    @property
    def variance(self) -> Float[Tensor, "..."]:
        """The variance, NaN for Cauchy noise."""
        return self._filled(self.family.variance / self._batch_temperature**2)


class BinaryCircuit(Relaxation):
    r"""A relaxed Bernoulli variable made from noise on the real line with any CDF Φ.

    $$X = σ((Y - Φ^{-1}(1 / (1 + α))) / λ), \quad Y \sim Φ$$

    The noise is a name (logistic, normal, laplace, cauchy) or a distribution with `icdf`, `cdf` and `log_prob`. For any
    noise, rounding a draw to 0 or 1 gives a draw of the Bernoulli variable with the same logits.
    See [maddison2017concrete], appendix B.

    >>> import torch
    >>> circuit = BinaryCircuit(logits=torch.tensor(2.0), temperature=0.5, noise="cauchy")
    >>> circuit.discretize()
    Bernoulli(logits: 2)
    """

    support = constraints.unit_interval
    _conversion = check.LOG_ODDS

    def __init__(
        self,
        *positional: Any,
        logits: Tensor | float | None = None,
        probs: Tensor | float | None = None,
        temperature: Temperature | None = None,
        noise: str | Distribution | Family = "normal",
        validate_args: bool | None = None,
    ) -> None:
        self._noise = noise
        super().__init__(*positional, logits=logits, probs=probs, temperature=temperature, validate_args=validate_args)

    def _made(self, logits: Any, temperature: Temperature | None, validate_args: bool | None) -> Made:
        node = CircuitNode(logits=logits, temperature=temperature, noise=self._noise, validate_args=validate_args)
        return node, Sigmoid(), node.logits, Size()

    def discretize(self) -> Bernoulli:
        """Return the Bernoulli variable with the same logits."""
        return Bernoulli(logits=self.logits, validate_args=self._validate_args)

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the CDF at a value."""
        return cdf_on_unit_interval(self, value)

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the inverse CDF at a probability."""
        return icdf_on_unit_interval(self, value)
