"""Many random vectors, tallied as they come: their mean, their variance, and whether their expectation is zero.

They are averaged in a few groups, so that memory does not grow with their number; errors are the spread of the groups.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor


class Measure(NamedTuple):
    """An estimate, and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ± {self.error:.2g}"


class Tally:
    """What is kept of vectors: their mean, the means of groups, and a spread for each but the first."""

    def __init__(self, size: int, *, groups: int) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64)
        self.groups = self.mean.new_zeros(groups, size)
        self.counts = [0] * groups
        self.spreads: list[float] = []

    def add(self, vector: Float64[Tensor, " size"], *, group: int) -> None:
        """Take a vector into a group."""
        before, gap = sum(self.counts), vector - self.mean
        if before:
            # recursive residuals: each has the variance as its mean, and hardly depends on the others
            self.spreads.append(float(gap @ gap) * before / (before + 1))
        self.mean += gap / (before + 1)
        self.counts[group] += 1
        self.groups[group] += (vector - self.groups[group]) / self.counts[group]

    @property
    def variance(self) -> Measure:
        """The trace of the covariance of one vector; the error of a single spread is anyone's guess."""
        spreads = torch.tensor(self.spreads, dtype=torch.float64)
        error = float(spreads.std()) / math.sqrt(len(spreads)) if len(spreads) > 1 else math.inf
        return Measure(float(spreads.mean()), error)


def squared_expectation(vectors: Float64[Tensor, "groups size"]) -> Measure:
    """The squared length of the expectation of independent vectors, without what noise adds: it may be negative.

    It is the mean product of two different vectors, with the error of the jackknife.

    >>> squared_expectation(torch.ones(3, 4, dtype=torch.float64))
    Measure(value=4.0, error=0.0)
    """
    groups, gram = len(vectors), vectors @ vectors.T
    others = (gram.sum(1) - gram.diag()) / (groups - 1)
    squared = others.mean()
    if groups == 2:
        return Measure(float(squared), math.inf)  # two vectors do not tell
    error = 2 * math.sqrt((groups - 1) / groups) / (groups - 2) * float((others - squared).norm())
    return Measure(float(squared), error)


def p_value(vectors: Float64[Tensor, "groups size"], *, rounding: float = 0.0) -> float:
    """How often independent vectors of expectation zero have as long a mean, whatever their covariance.

    It is the share of all ways to flip vectors that give a mean as long: if the expectation is zero and the vectors
    are symmetric, as means nearly are, all ways are as likely. A mean within rounding is as good as none.

    >>> p_value(torch.ones(3, 4, dtype=torch.float64))
    0.25
    """
    if float(vectors.mean(0).norm()) <= rounding:
        return 1.0
    groups, gram = len(vectors), vectors @ vectors.T
    ways = torch.arange(2 ** (groups - 1)).unsqueeze(-1)  # but for a flip of all, which changes nothing
    flips = 1 - 2 * (ways >> torch.arange(groups) & 1).to(gram)
    lengths = ((flips @ gram) * flips).sum(1)
    return float((lengths >= lengths[0] * (1 - 1e-9)).double().mean())  # what is equal on paper counts
