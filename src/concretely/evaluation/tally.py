"""Running mean and variance of random vectors, and an exact sign-flip test of zero mean.

Vectors are averaged in a few groups, so that memory does not grow with their number. Standard errors come from the
spread of the groups.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor


class Measure(NamedTuple):
    """An estimate and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ± {self.error:.2g}"


class Tally:
    """Running statistics of vectors: the mean, the means of groups, and a squared residual of each but the first."""

    def __init__(self, size: int, *, groups: int) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64)
        self.groups = self.mean.new_zeros(groups, size)
        self.counts = [0] * groups
        self.spreads: list[float] = []

    def add(self, vector: Float64[Tensor, " size"], *, group: int) -> None:
        """Add a vector to a group."""
        before, gap = sum(self.counts), vector - self.mean
        if before:
            # recursive residuals: each has the variance as its expectation, and they are nearly independent
            self.spreads.append(float(gap @ gap) * before / (before + 1))
        self.mean += gap / (before + 1)
        self.counts[group] += 1
        self.groups[group] += (vector - self.groups[group]) / self.counts[group]

    @property
    def variance(self) -> Measure:
        """The trace of the covariance of one vector. With a single residual, its error is infinite."""
        spreads = torch.tensor(self.spreads, dtype=torch.float64)
        error = float(spreads.std()) / math.sqrt(len(spreads)) if len(spreads) > 1 else math.inf
        return Measure(float(spreads.mean()), error)


def squared_expectation(vectors: Float64[Tensor, "groups size"]) -> Measure:
    """Return an unbiased estimate of the squared norm of the expectation of independent vectors; it may be negative.

    The estimate is the mean inner product of two different vectors, with a jackknife error.

    >>> squared_expectation(torch.ones(3, 4, dtype=torch.float64))
    Measure(value=4.0, error=0.0)
    """
    groups, gram = len(vectors), vectors @ vectors.T
    others = (gram.sum(1) - gram.diag()) / (groups - 1)
    squared = others.mean()
    if groups == 2:
        return Measure(float(squared), math.inf)  # two vectors do not determine it
    error = 2 * math.sqrt((groups - 1) / groups) / (groups - 2) * float((others - squared).norm())
    return Measure(float(squared), error)


def p_value(vectors: Float64[Tensor, "groups size"], *, rounding: float = 0.0) -> float:
    """Return the p-value of the exact sign-flip test of zero mean.

    It is the share of all sign flips of the vectors that give a mean of at least the observed norm. If the expectation
    is zero and the vectors are symmetric, as averages nearly are, all flips are equally likely for any covariance.
    A mean with a norm of at most `rounding` counts as zero.

    >>> p_value(torch.ones(3, 4, dtype=torch.float64))
    0.25
    """
    if float(vectors.mean(0).norm()) <= rounding:
        return 1.0
    groups, gram = len(vectors), vectors @ vectors.T
    ways = torch.arange(2 ** (groups - 1)).unsqueeze(-1)  # flipping all changes nothing, so the last sign is fixed
    flips = 1 - 2 * (ways >> torch.arange(groups) & 1).to(gram)
    lengths = ((flips @ gram) * flips).sum(1)
    return float((lengths >= lengths[0] * (1 - 1e-9)).double().mean())  # equal up to rounding counts
