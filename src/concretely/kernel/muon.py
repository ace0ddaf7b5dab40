"""A step of Muon for matrices of many members: along their momentum, whose singular values are all made about one.

See [jordan2024muon]. Steps are as long as those of Adam at the same learning rate are on average [liu2025muon].
"""

from collections.abc import Sequence
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from .adam import Pace, State

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


def muon_(states: Sequence[State], gradients: Sequence[Float[Tensor, "members _ _"]], pace: Pace) -> None:
    """Move matrices, which decay, of all members that move; second moments are left alone."""
    rate, decay = (each.to(states[0].parameter.dtype).view(-1, 1, 1) for each in (pace.rate, pace.decay))
    moves = rate != 0
    ahead = [_ahead(state, gradient, decay, moves) for state, gradient in zip(states, gradients, strict=True)]
    # those of one shape, lying or standing, are worked on together
    order = sorted(range(len(states)), key=lambda k: sorted(ahead[k].shape[1:]))
    for _, group in groupby(order, key=lambda k: sorted(ahead[k].shape[1:])):
        places = list(group)
        stacked = torch.cat([_lying(ahead[k]) for k in places])
        for k, turned in zip(places, orthogonal(stacked).chunk(len(places)), strict=True):
            parameter = states[k].parameter
            step = turned if turned.shape == parameter.shape else turned.mT
            size = LENGTH * max(parameter.shape[1:]) ** 0.5
            # what is not sound may be no number
            parameter.copy_(torch.where(moves, torch.addcmul(parameter, rate, step, value=-size), parameter))


def _ahead(state: State, gradient: Tensor, decay: Tensor, moves: Tensor) -> Tensor:
    """Where the momentum will be after another step of the same gradient."""
    gradient = torch.where(moves, gradient, 0)
    gradient = torch.addcmul(gradient, decay, state.parameter)
    state.first.copy_(torch.where(moves, torch.add(gradient, state.first, alpha=MOMENTUM), state.first))
    return torch.add(gradient, state.first, alpha=MOMENTUM)


def _lying(matrix: Tensor) -> Tensor:
    return matrix if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT
