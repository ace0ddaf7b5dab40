"""The definition of a step of Muon."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..adam import Pace, State

MOMENTUM, ROUNDS, SMALL, LENGTH = 0.95, 5, 1e-7, 0.2
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of a polynomial that takes singular values from 0 to 1 to numbers about 1 in few rounds."""


def polynomial(gram: Float[Tensor, "members rows rows"]) -> Float[Tensor, "members rows rows"]:
    """What a matrix is multiplied by in a round, of the products of its rows."""
    a, b, c = COEFFICIENTS
    return torch.baddbmm(a * torch.eye(gram.shape[1]).to(gram) + b * gram, gram, gram, alpha=c)


def hasten_(
    state: State, gradient: Float[Tensor, "members rows columns"], pace: Pace, out: Float[Tensor, "members _ _"]
) -> None:
    """Add a gradient to the momentum, and find where it will be after another; members at rest keep theirs."""
    moves, decay = (_of(state, each) for each in (pace.rate != 0, pace.decay))
    gradient = torch.addcmul(torch.where(moves, gradient, 0), decay, state.parameter)
    state.first.copy_(torch.where(moves, torch.add(gradient, state.first, alpha=MOMENTUM), state.first))
    ahead = torch.where(moves, torch.add(gradient, state.first, alpha=MOMENTUM), 0)
    out.copy_(ahead if ahead.shape == out.shape else ahead.mT)


def move_(state: State, pace: Pace, step: Float[Tensor, "members _ _"]) -> None:
    """Move a matrix, which may stand where its step lies."""
    parameter = state.parameter
    step = step if step.shape == parameter.shape else step.mT
    parameter.addcmul_(_of(state, pace.rate), step, value=-length(parameter))


def length(matrix: Float[Tensor, "members rows columns"]) -> float:
    """How long a step is in units of the learning rate."""
    return float(LENGTH * max(matrix.shape[1:]) ** 0.5)


def _of(state: State, numbers: Tensor) -> Tensor:
    """A number of every member, for all of its matrix."""
    return numbers.to(state.parameter.dtype if numbers.is_floating_point() else torch.bool).view(-1, 1, 1)
