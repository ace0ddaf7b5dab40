"""The node of the logistic-normal control, in all but its noise an ExpConcrete one."""

from functools import partial

from .. import exp_concrete
from . import naive

__all__ = ["draw", "naive", "score"]

draw = partial(exp_concrete.draw, normal=True)
score = partial(exp_concrete.score, normal=True)
