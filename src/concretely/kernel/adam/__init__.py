"""A step of Adam for all parameters of many members, each with its own pace."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float, Int64
from torch import Tensor

from ..handwritten import is_fast
from . import naive
from .naive import Book, Pace, corrections

__all__ = ["Book", "Pace", "State", "adam_", "allowed_", "corrections"]


class State(NamedTuple):
    """A parameter of all members, and the moments of its gradient."""

    parameter: Float[Tensor, "members ..."]
    first: Float[Tensor, "members ..."]
    second: Float[Tensor, "members ..."]


def allowed_(
    book: Book,
    tensors: Sequence[Float[Tensor, "members ..."]],
    loss: Float[Tensor, " members"],
    step: Int64[Tensor, " members"],
    pace: Pace,
) -> Pace:
    """Enter a step, and say how far members may move: not at all from the first on that gave what is not finite.

    The loss of a step is minus its bound.
    """
    if is_fast(loss):
        from . import triton

        return triton.allowed_(book, list(tensors), loss, step, pace)
    return naive.allowed_(book, tensors, loss, step, pace)


def adam_(states: Sequence[State], gradients: Sequence[Tensor], pace: Pace, *, decays: Sequence[bool]) -> None:
    """Move parameters; whether its weights decay is said for each."""
    if is_fast(states[0].parameter):
        from . import triton

        parameters, firsts, seconds = (list(part) for part in zip(*states, strict=True))
        triton.adam_(parameters, list(gradients), firsts, seconds, pace, list(decays))
        return
    for state, gradient, decay in zip(states, gradients, decays, strict=True):
        naive.adam_(state.parameter, gradient, state.first, state.second, pace, decays=decay)
