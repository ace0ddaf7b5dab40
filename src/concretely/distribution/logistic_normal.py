"""The logistic-normal control: Gaussian noise in the place of Gumbel noise, all else the same."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from .. import noise
from . import check
from .base import Tempered
from .cast import cast, wide, working
from .concrete import Discrete
from .constraint import log_simplex
from .exp_concrete import push
from .recover import recover
from .squash import OnSimplex
from .temperature import Temperature, log

LOG_TWO_PI = math.log(2 * math.pi)


class ExpLogisticNormal(Tempered):
    r"""The logarithm of a logistic-normal variable, with the measure of `ExpConcrete`.

    $$\log κ(y) = (n-1)(\log λ - \tfrac12 \log 2π) - \tfrac12 \log n - \tfrac12 \sum_k (d_k - \bar d)^2,
    \quad d_k = λ y_k - \log α_k$$

    See [maddison2017concrete], section 5.3 and appendix C.4.

    >>> ExpLogisticNormal(torch.zeros(3), temperature=1.0).sample().shape
    torch.Size([3])
    """

    support = log_simplex
    category_axes = 1
    is_ranked = True

    @classmethod
    def from_probs(cls, probs: Tensor, temperature: Temperature, *, validate_args: bool | None = None) -> Self:
        """Build the variable from the probabilities whose logarithms are its logits."""
        return cls(check.as_log_probs(probs), temperature, validate_args=validate_args)

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Generator | None = None) -> Tensor:
        """Draw standard normal noise for every category."""
        return self._drawn(noise.normal, sample_shape, generator)

    def _push(self, noise: Tensor) -> Tensor:
        return push(cast(self.logits, working(self.logits.dtype)), self._value_temperature, noise)

    def _log_density(self, value: Tensor) -> Tensor:
        return self._log_density_of_noise(recover(value, self.logits, self._value_temperature, up_to_shift=True))

    def _log_density_of_noise(self, noise: Tensor) -> Tensor:
        n = noise.shape[-1]
        constant = (n - 1) * (log(self._batch_temperature) - LOG_TWO_PI / 2) - math.log(n) / 2
        return constant - (noise - noise.mean(-1, keepdim=True)).square().sum(-1) / 2

    def entropy(self) -> Float[Tensor, "*batch"]:
        """The differential entropy, which the logits do not change."""
        n = self.event_shape[0]
        return self._filled((n - 1) * ((1 + LOG_TWO_PI) / 2 - log(self._batch_temperature)) + math.log(n) / 2)

    @property
    def mode(self) -> Float[Tensor, "*batch n"]:
        """The point of highest density: the log softmax of the logits over the temperature."""
        return self.push(torch.zeros_like(wide(self.logits)))


class LogisticNormal(OnSimplex):
    r"""A softmax of logits with Gaussian noise, the control of the paper's experiments.

    $$X = \mathrm{softmax}((\log α + ε) / λ), \quad ε \sim N(0, I)$$

    Its argmax does not follow the softmax of the logits. `discretize` gives the discrete variable of the logits all the
    same, as the paper evaluated it. See [maddison2017concrete], section 5.3.

    >>> LogisticNormal(torch.zeros(3), temperature=1.0).sample((2,)).shape
    torch.Size([2, 3])
    """

    def __init__(self, logits: Tensor, temperature: Temperature, *, validate_args: bool | None = None) -> None:
        node = ExpLogisticNormal(logits, temperature, validate_args=validate_args)
        super().__init__(node, logits=node.logits, event_shape=node.event_shape)

    @classmethod
    def from_probs(cls, probs: Tensor, temperature: Temperature, *, validate_args: bool | None = None) -> Self:
        """Build the variable from the probabilities whose logarithms are its logits."""
        return cls(check.as_log_probs(probs), temperature, validate_args=validate_args)

    def discretize(self) -> Discrete:
        """The discrete variable with the same logits."""
        return Discrete(self.logits, validate_args=self._validate_args)
