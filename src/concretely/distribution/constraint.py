"""Supports whose checks tolerate the rounding error of the value's dtype."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.transforms import (
    ComposeTransform,
    ExpTransform,
    SoftmaxTransform,
    StickBreakingTransform,
    Transform,
)

from ..functional.arithmetic import compute_dtype
from ..functional.edge import smallest


class Simplex(constraints.Constraint):
    """Points with entries in [0, 1] that sum to one.

    Rounding changes an entry by at most half a unit in the last place, or by the smallest positive number.
    """

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        n = value.shape[-1]
        slack = torch.finfo(value.dtype).eps + _arithmetic(value.dtype, n) + n * smallest(value.dtype)
        return (value.amin(-1) >= 0) & ((value.sum(-1, dtype=compute_dtype(value.dtype)) - 1).abs() <= slack)


class LogSimplex(constraints.Constraint):
    """Logarithms of points of the simplex.

    Rounding an entry y by a relative eps changes the sum of exponentials by e^y |y| eps. All entries together change it
    by at most eps log n.
    """

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        n = value.shape[-1]
        slack = torch.finfo(value.dtype).eps * (1 + math.log(n)) + _arithmetic(value.dtype, n)
        total = value.to(compute_dtype(value.dtype)).exp().sum(-1)
        return (value.amax(-1) <= 0) & ((total - 1).abs() <= slack)


def _arithmetic(dtype: torch.dtype, n: int) -> float:
    """Return the rounding error of a normalisation over n categories and of its check."""
    return float(8 * torch.finfo(compute_dtype(dtype)).eps * (1 + math.log(n)))


class OneHot(constraints.Constraint):
    """Vectors with a single 1 among zeros."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)


class KHot(constraints.Constraint):
    """Vectors with exactly k ones among zeros."""

    is_discrete = True
    event_dim = 1

    def __init__(self, k: int) -> None:
        self.k = k
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        ones = value == 1
        return ((value == 0) | ones).all(-1) & (ones.sum(-1) == self.k)


class Hypersimplex(constraints.Constraint):
    """Points with entries in [0, 1] that sum to k.

    Rounding changes an entry by at most a unit in the last place, or by the smallest positive number.
    """

    event_dim = 1

    def __init__(self, k: int) -> None:
        self.k = k
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        n = value.shape[-1]
        slack = self.k * (2 * torch.finfo(value.dtype).eps + _arithmetic(value.dtype, n)) + n * smallest(value.dtype)
        off = (value.sum(-1, dtype=torch.float64) - self.k).abs()
        return (value.amin(-1) >= 0) & (value.amax(-1) <= 1) & (off <= slack)


class PermutationMatrix(constraints.Constraint):
    """Matrices with a single 1 among zeros in each row and each column."""

    is_discrete = True
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        ones = value == 1
        is_binary = ((value == 0) | ones).all(-1).all(-1)
        return is_binary & (ones.sum(-1) == 1).all(-1) & (ones.sum(-2) == 1).all(-1)


class DoublyStochastic(constraints.Constraint):
    """Matrices with entries of at least 0 whose rows and columns sum to 1.

    Rounding changes a sum by at most a unit in the last place. Very large scores leave a relative error of 1e-6.
    """

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        n = value.shape[-1]
        slack = torch.finfo(value.dtype).eps + n * smallest(value.dtype) + 1e-6
        wide = value.double()
        off = torch.maximum((wide.sum(-1) - 1).abs().amax(-1), (wide.sum(-2) - 1).abs().amax(-1))
        return (value.amin((-1, -2)) >= 0) & (off <= slack)


class Corner(constraints.Constraint):
    """Corners of the hypercube, vectors of plus and minus one."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value.abs() == 1).all(-1)


class Cube(constraints.Constraint):
    """Points of the hypercube, vectors of entries between minus and plus one."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value.abs() <= 1).all(-1)


class LogSoftmaxTransform(Transform):
    """The log softmax, from vectors to the log simplex. Its inverse returns the vector with a log sum of zero."""

    domain = constraints.real_vector
    codomain = LogSimplex()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogSoftmaxTransform)

    def _call(self, x: Float[Tensor, "*shape n"]) -> Float[Tensor, "*shape n"]:
        return x.log_softmax(-1)

    def _inverse(self, y: Float[Tensor, "*shape n"]) -> Float[Tensor, "*shape n"]:
        return y


simplex = Simplex()
log_simplex = LogSimplex()
one_hot = OneHot()
permutation = PermutationMatrix()
doubly_stochastic = DoublyStochastic()
corner = Corner()
cube = Cube()


@biject_to.register(Simplex)
def _bijection_to_simplex(constraint: Simplex) -> StickBreakingTransform:
    return StickBreakingTransform()


@transform_to.register(Simplex)
def _transform_to_simplex(constraint: Simplex) -> SoftmaxTransform:
    return SoftmaxTransform()


@biject_to.register(LogSimplex)
def _bijection_to_log_simplex(constraint: LogSimplex) -> ComposeTransform:
    return ComposeTransform([StickBreakingTransform(), ExpTransform().inv])


@transform_to.register(LogSimplex)
def _transform_to_log_simplex(constraint: LogSimplex) -> LogSoftmaxTransform:
    return LogSoftmaxTransform()


@biject_to.register(Cube)
@transform_to.register(Cube)
def _transform_to_cube(constraint: Cube) -> Transform:
    transform: Transform = biject_to(constraints.independent(constraints.interval(-1.0, 1.0), 1))
    return transform
