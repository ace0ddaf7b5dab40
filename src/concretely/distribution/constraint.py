"""Supports whose checks allow for the rounding of the dtype they look at, and for nothing more."""

import math

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.transforms import ComposeTransform, ExpTransform, SoftmaxTransform, StickBreakingTransform

from .cast import wide


class Simplex(constraints.Constraint):
    """Points with entries in [0, 1] that sum to one.

    Each of n entries is rounded by at most half a unit in its last place, or to the smallest positive number.
    """

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        info = torch.finfo(value.dtype)
        slack = 2 * info.eps + value.shape[-1] * smallest(value.dtype)
        return (value >= 0).all(-1) & ((wide(value).sum(-1) - 1).abs() <= slack)


class LogSimplex(constraints.Constraint):
    """Logarithms of points of the simplex.

    Rounding an entry y by a relative eps changes its share of the sum by e^y·|y|·eps, at most log n + 1 in all.
    """

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        slack = 2 * torch.finfo(value.dtype).eps * (1 + math.log(value.shape[-1]))
        return (value <= 0).all(-1) & (wide(value).logsumexp(-1).abs() <= slack)


class OneHot(constraints.Constraint):
    """Vectors with a single 1 among zeros."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)


class Corner(constraints.Constraint):
    """Corners of the hypercube, vectors of plus and minus one."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value.abs() == 1).all(-1)


def smallest(dtype: torch.dtype) -> float:
    """The smallest positive number that a squashed value may take."""
    info = torch.finfo(dtype)
    # the normal numbers of float16 end at 6e-5, so early that a thousand of them would leave the simplex
    return float(info.tiny * info.eps if dtype is torch.float16 else info.tiny)


simplex = Simplex()
log_simplex = LogSimplex()
one_hot = OneHot()
corner = Corner()
hypercube = constraints.independent(constraints.interval(-1, 1), 1)


@biject_to.register(Simplex)  # type: ignore[untyped-decorator]
def _bijection_to_simplex(constraint: Simplex) -> StickBreakingTransform:
    return StickBreakingTransform()


@transform_to.register(Simplex)  # type: ignore[untyped-decorator]
def _transform_to_simplex(constraint: Simplex) -> SoftmaxTransform:
    return SoftmaxTransform()


@biject_to.register(LogSimplex)  # type: ignore[untyped-decorator]
def _bijection_to_log_simplex(constraint: LogSimplex) -> ComposeTransform:
    return ComposeTransform([StickBreakingTransform(), ExpTransform().inv])
