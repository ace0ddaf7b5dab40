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
from .memory import recall
from .temperature import Temperature


def inside(value: Tensor, low: float, high: float) -> Tensor:
    """A value kept off the edge that rounding would take it to, with its gradient untouched."""
    return value + (value.clamp(low, high) - value).detach()


def sigmoid(node: Tensor) -> Tensor:
    """The sigmoid, with a derivative that keeps its precision where that of `torch.sigmoid` is rounded to 0."""
    return torch.exp(logsigmoid(node))


class OnUnitInterval(Relaxation):
    """A relaxation that squashes a log-odds by the sigmoid."""

    support = constraints.unit_interval
    _squashed_by = "unit"

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The probability of a smaller value."""
        node = recall(self._checked(value), support=self.support)
        return self.node.cdf(self._unsquash(wide(value)) if node is None else node)

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The value below which the variable falls with a given probability."""
        return self._value(wide(self.node.icdf(value)))

    def _squash(self, node: Tensor) -> Tensor:
        value = sigmoid(node)
        return torch.where(node.isinf(), value, inside(value, *_edges(self.logits.dtype)))  # 0 and 1 are limits

    def _unsquash(self, value: Tensor) -> Tensor:
        return torch.logit(value)

    def _log_slope(self, node: Tensor) -> Tensor:
        return -softplus(node) - softplus(-node)

    def _determined(self, value: Tensor) -> Tensor:
        (low, high), (near, far) = _edges(value.dtype), _edges(self.logits.dtype)
        return (value > max(low, near)) & (value < min(high, far))


class OnSimplex(Relaxation):
    """A relaxation that squashes the logarithm of a point of the simplex by the exponential."""

    support = simplex
    _squashed_by = "simplex"
    is_ranked = True

    node_class: type[OnLogSimplex]

    def __init__(self, logits: Tensor, temperature: Temperature, *, validate_args: bool | None = None) -> None:
        node = self.node_class(logits, temperature, validate_args=validate_args)
        super().__init__(node, logits=node.logits, event_shape=node.event_shape)

    @classmethod
    def from_probs(cls, probs: Tensor, temperature: Temperature, *, validate_args: bool | None = None) -> Self:
        """Build the variable from the probabilities whose logarithms are its logits."""
        return cls(check.as_log_probs(probs, validate_args=validate_args), temperature, validate_args=validate_args)

    def _squash(self, node: Tensor) -> Tensor:
        value = torch.exp(node)
        return torch.where(node.isinf(), value, inside(value, smallest(self.logits.dtype), 1))  # 0 is a limit

    def _unsquash(self, value: Tensor) -> Tensor:
        return torch.log(value)

    def _log_slope(self, node: Tensor) -> Tensor:
        return node.sum(-1)

    def _determined(self, value: Tensor) -> Tensor:
        return value > max(smallest(value.dtype), smallest(self.logits.dtype))


def _edges(dtype: torch.dtype) -> tuple[float, float]:
    """The numbers of a dtype next to 0 and 1."""
    return smallest(dtype), 1 - torch.finfo(dtype).eps / 2
