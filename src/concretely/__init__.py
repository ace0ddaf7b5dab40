"""Models with discrete random variables: relax every discrete node, train by backpropagation, evaluate discretely."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .distribution import *

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
    "monte_carlo_kl",
]


def __getattr__(name: str) -> Any:
    """Import the library, and with it torch, on first use: the command answers `--help` without either."""
    if name not in __all__:
        raise AttributeError(f"module 'concretely' has no attribute {name!r}")
    return getattr(import_module(".distribution", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
