"""Layers with discrete choices inside: gates, selectors, subsets, routers, codebooks, permutations.

`base` has their contract. The drop-in functions `gumbel_softmax`, `gumbel_sigmoid` and `straight_through` are public
names of the package itself.
"""

from .base import advance, decide, penalty, report
from .choice import Choice
from .choose import Choose
from .codebook import Codebook, Coded
from .dropout import ConcreteDropout
from .gate import Gate
from .levels import Leveled, Levels
from .permute import Permute, sinkhorn
from .router import Router, Routing
from .selector import Selector
from .target import Target
from .top_k import gumbel_top_k

__all__ = [
    "Choice",
    "Choose",
    "Codebook",
    "Coded",
    "ConcreteDropout",
    "Gate",
    "Leveled",
    "Levels",
    "Permute",
    "Router",
    "Routing",
    "Selector",
    "Target",
    "advance",
    "decide",
    "gumbel_top_k",
    "penalty",
    "report",
    "sinkhorn",
]
