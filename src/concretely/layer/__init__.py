"""Layers with discrete choices inside: gates, selectors, subsets, routers, codebooks, permutations.

`base` has their contract. The drop-in functions `gumbel_softmax`, `gumbel_sigmoid` and `straight_through` are public
names of the package itself.
"""

from .base import advance, decide, penalty, report
from .choice import Choice
from .codebook import Codebook, Coded
from .dropout import ConcreteDropout
from .levels import Leveled, Levels
from .router import Router, Routing

__all__ = [
    "Choice",
    "Codebook",
    "Coded",
    "ConcreteDropout",
    "Leveled",
    "Levels",
    "Router",
    "Routing",
    "advance",
    "decide",
    "penalty",
    "report",
]
