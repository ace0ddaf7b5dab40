"""The definition of a step of Muon."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..adam import Pace, State

MOMENTUM, ROUNDS, SMALL, LENGTH = 0.95, 5, 1e-7, 0.2
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of a polynomial that takes singular values from 0 to 1 to numbers about 1 in few rounds."""


def orthogonal(matrix: Float[Tensor, "members rows columns"]) -> Float[Tensor, "members rows columns"]:
    """A matrix with the same singular vectors, and singular values between 0.7 and 1.2 but for the smallest."""
    if matrix.shape[-2] > matrix.shape[-1]:
        return orthogonal(matrix.mT).mT
    a, b, c = COEFFICIENTS
    found: Tensor = matrix / (torch.linalg.matrix_norm(matrix, keepdim=True) + SMALL)
    for _ in range(ROUNDS):
        gram = torch.bmm(found, found.mT)
        found = torch.baddbmm(found, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found


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
