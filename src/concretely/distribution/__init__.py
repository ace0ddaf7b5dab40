"""Random variables, one family per file."""

from ..functional.squashing import EdgeWarning
from .binary import Bernoulli, BinaryConcrete
from .circuit import BinaryCircuit, CircuitNode
from .concrete import Concrete, LogisticNormal, OneHotCategorical
from .divergence import monte_carlo_kl
from .exp_concrete import ExpConcrete, ExpLogisticNormal
from .gumbel import Gumbel
from .hard_concrete import HardConcrete
from .hypercube import Hypercube, HypercubeConcrete, HypercubeLogisticNormal
from .logistic import Logistic
from .permutation import GumbelSinkhorn, Permutation
from .subset import Subset, SubsetConcrete

__all__ = [
    "Bernoulli",
    "BinaryCircuit",
    "BinaryConcrete",
    "CircuitNode",
    "Concrete",
    "EdgeWarning",
    "ExpConcrete",
    "ExpLogisticNormal",
    "Gumbel",
    "GumbelSinkhorn",
    "HardConcrete",
    "Hypercube",
    "HypercubeConcrete",
    "HypercubeLogisticNormal",
    "Logistic",
    "LogisticNormal",
    "OneHotCategorical",
    "Permutation",
    "Subset",
    "SubsetConcrete",
    "monte_carlo_kl",
]
