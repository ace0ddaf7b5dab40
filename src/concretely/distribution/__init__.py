"""Random variables, one family a file."""

from .binary import Bernoulli, BinaryConcrete
from .circuit import BinaryCircuit, CircuitNode
from .concrete import Concrete, Discrete
from .divergence import monte_carlo_kl
from .exp_concrete import ExpConcrete
from .gumbel import Gumbel
from .hypercube import Hypercube, HypercubeConcrete, HypercubeLogisticNormal
from .logistic import Logistic
from .logistic_normal import ExpLogisticNormal, LogisticNormal

__all__ = [
    "Bernoulli",
    "BinaryCircuit",
    "BinaryConcrete",
    "CircuitNode",
    "Concrete",
    "Discrete",
    "ExpConcrete",
    "ExpLogisticNormal",
    "Gumbel",
    "Hypercube",
    "HypercubeConcrete",
    "HypercubeLogisticNormal",
    "Logistic",
    "LogisticNormal",
    "monte_carlo_kl",
]
