"""Gradient estimators."""

from .base import Estimate, Estimator, estimate
from .exact import Exact
from .nvil import NVIL
from .pathwise import GumbelSoftmax, Pathwise, StraightThrough, StraightThroughGumbelSoftmax
from .reinforce import RLOO, Reinforce
from .vimco import VIMCO

__all__ = [
    "NVIL",
    "RLOO",
    "VIMCO",
    "Estimate",
    "Estimator",
    "Exact",
    "GumbelSoftmax",
    "Pathwise",
    "Reinforce",
    "StraightThrough",
    "StraightThroughGumbelSoftmax",
    "estimate",
]
