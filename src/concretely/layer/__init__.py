"""Drop-in functions for discrete choices inside a model: gates, selectors and routers."""

from .gumbel import gumbel_sigmoid, gumbel_softmax
from .straight_through import straight_through

__all__ = ["gumbel_sigmoid", "gumbel_softmax", "straight_through"]
