"""A step of Muon for matrices of many members: along their momentum, whose singular values are all made about one.

See [jordan2024muon]. Steps are as long as those of Adam at the same learning rate are on average [liu2025muon].
"""

from collections.abc import Sequence
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from ..adam import Pace, State
from ..handwritten import is_fast
from . import naive
from .naive import ROUNDS, SMALL

FEW = 2**21
"""Up to so many elements, launches take longer than products do."""


def muon_(states: Sequence[State], gradients: Sequence[Float[Tensor, "members _ _"]], pace: Pace) -> None:
    """Move matrices, which decay, of all members that move; second moments are left alone."""
    lying = [sorted(state.parameter.shape[1:]) for state in states]
    members, longest = len(pace.rate), max(columns for _, columns in lying)
    # those of one shape, lying or standing, are turned together; where they are few, those of one height, as columns of
    # zeros change nothing
    few = members * sum(rows * longest for rows, _ in lying) <= FEW
    keys = [rows if few else (rows, columns) for rows, columns in lying]
    places = sorted(range(len(states)), key=lambda k: keys[k])
    groups = [list(group) for _, group in groupby(places, key=lambda k: keys[k])]
    stacks = []
    for group in groups:
        rows, columns = lying[group[0]][0], {lying[k][1] for k in group}
        make = states[0].parameter.new_empty if len(columns) == 1 else states[0].parameter.new_zeros
        stacks.append(make((len(group) * members, rows, max(columns))))
    order = [k for group in groups for k in group]
    chosen, slopes = [states[k] for k in order], [gradients[k] for k in order]
    widths = [lying[k][1] for k in order]
    _hasten(chosen, slopes, pace, _parts(groups, stacks, widths))
    _move(chosen, pace, _parts(groups, [orthogonal(stack) for stack in stacks], widths))


def orthogonal(matrix: Float[Tensor, "members rows columns"]) -> Float[Tensor, "members rows columns"]:
    """A matrix with the same singular vectors, and singular values between 0.7 and 1.2 but for the smallest."""
    if matrix.shape[-2] > matrix.shape[-1]:
        return orthogonal(matrix.mT).mT
    found: Tensor = matrix / (torch.linalg.matrix_norm(matrix, keepdim=True) + SMALL)
    for _ in range(ROUNDS):
        found = torch.bmm(_polynomial(torch.bmm(found, found.mT)), found)
    return found


def _polynomial(gram: Tensor) -> Tensor:
    if is_fast(gram) and gram.dtype == torch.float32:
        from . import triton

        return triton.polynomial(gram, "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32")
    return naive.polynomial(gram)


def _parts(groups: Sequence[Sequence[int]], stacks: Sequence[Tensor], widths: Sequence[int]) -> list[Tensor]:
    """What belongs to each matrix of some stacks, of which each has so many columns."""
    pairs = zip(groups, stacks, strict=True)
    parts = [part for group, stack in pairs for part in stack.chunk(len(group))]
    return [part[..., :width] for part, width in zip(parts, widths, strict=True)]


def _hasten(states: list[State], gradients: list[Tensor], pace: Pace, out: list[Tensor]) -> None:
    if is_fast(out[0]) and out[0].dtype == torch.float32:
        from . import triton

        triton.hasten_(states, gradients, pace, out)
        return
    for state, gradient, place in zip(states, gradients, out, strict=True):
        naive.hasten_(state, gradient, pace, place)


def _move(states: list[State], pace: Pace, steps: list[Tensor]) -> None:
    if is_fast(steps[0]) and steps[0].dtype == torch.float32:
        from . import triton

        triton.move_(states, pace, steps)
        return
    for state, step in zip(states, steps, strict=True):
        naive.move_(state, pace, step)
