"""Checks of a task before its first step, so that bad input costs no work."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ..graph.program import eval_mode

if TYPE_CHECKING:
    from .train_state import TrainState

NAMED = 5
"""The maximum number of parameters that a sentence names."""
SAME = 1e-3
"""The relative difference between two losses that rounding can explain."""


def examine(state: "TrainState", note: Callable[[str], None]) -> bool:
    """Run the loss of the next step and its gradient, and return whether the step may be captured as a CUDA graph.

    Raise if no parameter gets a gradient. Name parameters without one, and values that do not come from torch.
    """
    named = {name: parameter for name, parameter in state.loss.named_parameters() if parameter.requires_grad}
    if not named:
        raise ValueError("a model must have parameters to train, got none that requires a gradient")
    with eval_mode(state.loss), torch.enable_grad():
        first = state.next_loss()
        if not first.requires_grad:
            raise ValueError("the loss must depend on the parameters of the model, got one without a gradient")
        slopes = torch.autograd.grad(first, list(named.values()), allow_unused=True)
        second = state.next_loss()
    if all(slope is None for slope in slopes):
        raise ValueError("the loss must depend on the parameters of the model, got no gradient for any of them")
    unused = [name.partition(".")[2] for name, slope in zip(named, slopes, strict=True) if slope is None]
    if unused:
        some = ", ".join(unused[:NAMED]) + ", …" * (len(unused) > NAMED)
        note(f"no gradient reaches {len(unused)} of {len(named)} parameters: {some}")
    one, other = first.item(), second.item()
    repeats = one == other or one != one or abs(one - other) <= SAME * max(abs(one), abs(other))
    if not repeats:
        note(
            "the loss differs between two runs on the same batch with the same noise: it uses numbers from outside of "
            "torch, such as Python's random, so that steps are neither captured nor repeated exactly after a resume"
        )
    return repeats
