"""The two ways of squashing a node: a sigmoid onto the unit interval, an exponential onto the simplex."""

from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid, softplus

from . import check
from .base import Relaxation
from .cast import wide
from .constraint import simplex, smallest
from .log_simplex import OnLogSimplex
from .temperature import Temperature


def inside(value: Tensor, low: float, high: float) -> Tensor:
    """A value kept off the edge that rounding would take it to, with its gradient untouched."""
    return value + (value.clamp(low, high) - value).detach()


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
        # the derivative of exp(logsigmoid) keeps its relative precision where that of sigmoid is rounded to 0
        value = torch.exp(logsigmoid(node))
        return torch.where(node.isinf(), value, inside(value, *_edges(self.logits.dtype)))  # 0 and 1 are limits

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
    is_ranked = True

    node_class: type[OnLogSimplex]

    def __init__(self, logits: Tensor, temperature: Temperature, *, validate_args: bool | None = None) -> None:
        node = self.node_class(logits, temperature, validate_args=validate_args)
        super().__init__(node, logits=node.logits, event_shape=node.event_shape)

    @classmethod
    def from_probs(cls, probs: Tensor, temperature: Temperature, *, validate_args: bool | None = None) -> Self:
        """Build the variable from the probabilities whose logarithms are its logits."""
        return cls(check.as_log_probs(probs), temperature, validate_args=validate_args)

    def _squash(self, node: Tensor) -> Tensor:
        value = torch.exp(node)
        return torch.where(node.isinf(), value, inside(value, smallest(self.logits.dtype), 1))  # 0 is a limit

    def _unsquash(self, value: Tensor) -> Tensor:
        return torch.log(value)

    def _log_slope(self, node: Tensor) -> Tensor:
        return node.sum(-1)

    def _check_determined(self, value: Tensor) -> None:
        check.determined(value, value > smallest(value.dtype), owner=type(self).__name__)


def _edges(dtype: torch.dtype) -> tuple[float, float]:
    """The numbers of a dtype next to 0 and 1."""
    return smallest(dtype), 1 - torch.finfo(dtype).eps / 2
