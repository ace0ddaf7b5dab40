"""Unbounded variables on the log simplex: ExpConcrete, and its counterpart with Gaussian noise."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ..functional import exp_concrete, exp_logistic_normal
from ..functional.arithmetic import log_temperature
from ..functional.normal import LOG_TWO_PI
from . import check
from .constraint import log_simplex
from .node import VECTOR, Node


class ExpConcrete(Node):
    r"""The logarithm of a Concrete variable, the unbounded variable behind relaxations with n categories.

    $$\log κ(y) = \log (n-1)! + (n-1) \log λ + \sum_k a_k - n \log \sum_k e^{a_k}, \quad a_k = \log α_k - λ y_k$$

    The density is with respect to the measure dy₁ … dyₙ₋₁ / xₙ with xₙ = exp yₙ, which cancels in ratios of densities.
    See [maddison2017concrete], appendix C.3 and cheat sheet.

    >>> node = ExpConcrete(logits=torch.tensor([1e4, 0.0, -1e4]), temperature=1e-3)
    >>> value, log_prob = node.rsample_and_log_prob((5,))
    >>> value.shape, bool(log_prob.isfinite().all())
    (torch.Size([5, 3]), True)
    """

    arg_constraints = VECTOR
    support = log_simplex
    _conversion = check.LOG_PROBS
    is_ranked = True
    law = exp_concrete

    @property
    def mode(self) -> Float[Tensor, "*batch n"]:
        """The mode: the log softmax of the logits over the temperature."""
        return self.push(torch.zeros_like(self.logits))

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Return the differential entropy, which does not depend on the logits."""
        n = self.event_shape[0]
        harmonic = math.fsum([1 / k for k in range(1, n)])
        return self._filled(
            n * harmonic - math.lgamma(n) - (n - 1) * log_temperature(self._batch_temperature, self.logits)
        )


class ExpLogisticNormal(Node):
    r"""The logarithm of a logistic-normal variable. The density has the same base measure as that of `ExpConcrete`.

    $$\log κ(y) = (n-1)(\log λ - \tfrac12 \log 2π) - \tfrac12 \log n - \tfrac12 \sum_k (d_k - \bar d)^2,
    \quad d_k = λ y_k - \log α_k$$

    See [maddison2017concrete], section 5.2 and appendix C.4.

    >>> ExpLogisticNormal(logits=torch.zeros(3), temperature=1.0).sample().shape
    torch.Size([3])
    """

    arg_constraints = VECTOR
    support = log_simplex
    _conversion = check.LOG_PROBS
    is_ranked = True
    law = exp_logistic_normal

    @property
    def mode(self) -> Float[Tensor, "*batch n"]:
        """The mode: the log softmax of the logits over the temperature."""
        return self.push(torch.zeros_like(self.logits))

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Return the differential entropy, which does not depend on the logits."""
        n = self.event_shape[0]
        spread = (1 + LOG_TWO_PI) / 2 - log_temperature(self._batch_temperature, self.logits)
        return self._filled((n - 1) * spread + math.log(n) / 2)
