"""The definition of a step of Adam [kingma2015adam]."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Pace(NamedTuple):
    """How every member moves in a step."""

    rate: Float64[Tensor, " members"]
    """The learning rate, zero for a member that must not move."""
    decay: Float64[Tensor, " members"]
    """The factor of a weight that is added to its gradient."""
    mean: Float64[Tensor, " members"]
    """By what the first moment is multiplied to make up for its start at zero."""
    spread: Float64[Tensor, " members"]
    """Likewise the second."""


def corrections(steps: int) -> tuple[float, float]:
    """By what the moments are multiplied after so many steps."""
    return 1 / (1 - BETA1**steps), 1 / (1 - BETA2**steps)


class Book(NamedTuple):
    """What is kept of the steps of every member."""

    sums: Float64[Tensor, "members 4"]
    """The sum of bounds, and how many there are; of two more, others take care."""
    faults: Int64[Tensor, " members"]
    """The first step that gave what is not finite, minus one if there is none."""


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
    book.sums[:, :2] += torch.stack([-loss, torch.ones_like(loss)], -1)
    sound = torch.stack([each.flatten(1).isfinite().all(1) for each in (loss.unsqueeze(-1), *tensors)]).all(0)
    book.faults.copy_(torch.where((book.faults < 0) & ~sound, step, book.faults))
    return pace._replace(rate=torch.where(book.faults < 0, pace.rate, 0.0))


def adam_(
    parameter: Float[Tensor, "members ..."],
    gradient: Float[Tensor, "members ..."],
    first: Float[Tensor, "members ..."],
    second: Float[Tensor, "members ..."],
    pace: Pace,
    *,
    decays: bool,
) -> None:
    """Move a parameter and the moments of its gradient."""
    axes = [1] * (parameter.dim() - 1)
    rate, decay, mean, spread = (each.to(parameter.dtype).view(-1, *axes) for each in pace)
    moves = rate != 0
    gradient = gradient + decay * parameter if decays else gradient
    torch.where(moves, BETA1 * first + (1 - BETA1) * gradient, first, out=first)
    torch.where(moves, BETA2 * second + (1 - BETA2) * gradient * gradient, second, out=second)
    moved = parameter - rate * (first * mean) / ((second * spread).sqrt() + EPSILON)
    torch.where(moves, moved, parameter, out=parameter)  # what is not sound may be no number
