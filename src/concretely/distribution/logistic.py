"""The logistic variable, the log-odds of a binary Concrete variable."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from ..functional import logistic
from ..functional.arithmetic import cast, log_temperature, to_float64
from . import check
from .node import Node


class Logistic(Node):
    r"""A logistic variable, the unbounded variable behind a binary Concrete variable. L is logistic noise.

    $$Y = (L + \log α) / λ, \qquad \log g(y) = \log λ + d - 2 \log(1 + e^d), \quad d = \log α - λ y$$

    See [maddison2017concrete], appendix C.3 and cheat sheet.

    >>> node = Logistic(logits=torch.tensor([1e4, -50.0]), temperature=1e-3)
    >>> value, log_prob = node.rsample_and_log_prob((3,))
    >>> value.shape, bool(log_prob.isfinite().all())
    (torch.Size([3, 2]), True)
    """

    support = constraints.real
    _conversion = check.LOG_ODDS
    law = logistic

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the CDF at a value."""
        noise = self._batch_temperature * to_float64(self._checked(value)) - to_float64(self.logits)
        return cast(torch.sigmoid(noise), self.logits.dtype)

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the inverse CDF at a probability."""
        return self.push(torch.logit(check.as_fraction(value, validate=self._validate_args)))

    def entropy(self) -> Float[Tensor, "..."]:
        """Return the differential entropy."""
        return self._filled(2 - log_temperature(self._batch_temperature, self.logits))

    @property
    def mean(self) -> Float[Tensor, "..."]:
        """The expected value."""
        return cast(to_float64(self.logits) / self._batch_temperature, self.logits.dtype)

    @property
    def mode(self) -> Float[Tensor, "..."]:
        """The most probable value."""
        return self.mean

    @property
    def variance(self) -> Float[Tensor, "..."]:
        """The variance."""
        return self._filled((math.pi / self._batch_temperature) ** 2 / 3)
