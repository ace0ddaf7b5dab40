"""The two ways of squashing a node: a sigmoid onto the unit interval, an exponential onto the simplex."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid, softplus

from . import check
from .base import Relaxation
from .cast import wide
from .constraint import simplex, smallest


def inside(value: Tensor, node: Tensor, *, low: float, high: float) -> Tensor:
    """A value kept off the edge that rounding would take it to, with its gradient untouched.

    Only an infinite node, the limit of temperature zero, reaches the edge.
    """
    kept = torch.where(node.isinf(), value, value.clamp(low, high)).detach()
    return value + (kept - value.detach())


class OnUnitInterval(Relaxation):
    """A relaxation that squashes a log-odds by the sigmoid."""

    support = constraints.unit_interval

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The probability of a smaller value."""
        return self.node.cdf(self._node_of(self._checked(value)))

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The value below which the variable falls with a given probability."""
        return self._value(wide(self.node.icdf(value)))

    def _squash(self, node: Tensor) -> Tensor:
        low, high = _edges(self.logits.dtype)
        # the derivative of exp(logsigmoid) keeps its relative precision where that of sigmoid is rounded to 0
        return inside(torch.exp(logsigmoid(node)), node, low=low, high=high)

    def _unsquash(self, value: Tensor) -> Tensor:
        return torch.logit(value)

    def _log_slope(self, node: Tensor) -> Tensor:
        return -softplus(node) - softplus(-node)

    def _check_determined(self, value: Tensor) -> None:
        low, high = _edges(value.dtype)
        check.determined(value, (value > low) & (value < high), owner=type(self).__name__)


class OnSimplex(Relaxation):
    """A relaxation that squashes the logarithm of a point of the simplex by the exponential."""

    support = simplex

    def _squash(self, node: Tensor) -> Tensor:
        return inside(torch.exp(node), node, low=smallest(self.logits.dtype), high=1.0)

    def _unsquash(self, value: Tensor) -> Tensor:
        return torch.log(value)

    def _log_slope(self, node: Tensor) -> Tensor:
        return node.sum(-1)

    def _check_determined(self, value: Tensor) -> None:
        check.determined(value, value > smallest(value.dtype), owner=type(self).__name__)


def _edges(dtype: torch.dtype) -> tuple[float, float]:
    """The numbers of a dtype next to 0 and 1."""
    return smallest(dtype), 1 - torch.finfo(dtype).eps / 2
