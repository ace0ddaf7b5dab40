"""Models with discrete random variables: relax every discrete node, train by backpropagation, evaluate discretely."""

from .distribution import (
    Bernoulli,
    BinaryCircuit,
    BinaryConcrete,
    CircuitNode,
    Concrete,
    Discrete,
    ExpConcrete,
    ExpLogisticNormal,
    Gumbel,
    Hypercube,
    HypercubeConcrete,
    Logistic,
    LogisticNormal,
)

__version__ = "0.1.0"

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
    "Logistic",
    "LogisticNormal",
]
