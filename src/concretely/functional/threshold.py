"""The threshold above which soft entries add up to a given count, with an implicit gradient."""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..kernel.library import batched_in_front
from ..kernel.operator import is_plain
from .arithmetic import bool_or_none

STEPS = 8
"""The maximum number of steps, and their number on a GPU. Newton's method takes at most six."""
NEAR = 2.0**-27
"""The size of the last step of Newton's method in float64. The logarithm of the ratio in `_solve` has a slope of at
least 1 and a curvature of at most 2, so that the error after a step is at most the square of the step."""
ROUGH = 2.0**-14
"""The size of the last step in float32. The error after it is about its square."""
FEW = 2**16
"""Up to this number of scores, an operation of numpy takes less time than one of torch."""
GAP = 1400.0
"""A gap between entries beyond which their sigmoids are 0 and 1 in float64."""


def threshold(scores: Float[Tensor, "*batch n"], k: int) -> Float[Tensor, "*batch 1"]:
    """Return the number c for which the sum of σ(scores - c) is k, with 0 < k < n, in the dtype of the scores.

    If at least k scores are finite, others may be minus infinity; then c only separates what is possible.

    >>> threshold(torch.zeros(4, dtype=torch.float64), 1)
    tensor([1.0986], dtype=torch.float64)
    """
    is_jit_traced = torch._C._get_tracing_state() is not None
    if torch.compiler.is_compiling() or is_jit_traced:  # differentiated once at most: this has the same gradient
        point: Tensor = (_solve if is_jit_traced else _point)(scores.detach(), k)
        return point + (_slopes(scores.detach(), point) * (scores - scores.detach())).sum(-1, keepdim=True)
    result: Tensor = _Threshold.apply(scores, k)  # type: ignore[no-untyped-call]
    return result


def largest(scores: Float[Tensor, "*batch n"], k: int) -> Bool[Tensor, "*batch n"]:
    """Return which entries are the k largest: exactly k, also among ties."""
    places = scores.topk(k, -1).indices
    return torch.zeros_like(scores).scatter(-1, places, 1.0) > 0


def point_of(scores: Float[Tensor, "*batch n"], k: int) -> Float[Tensor, "*batch 1"]:
    """Return the threshold without a gradient."""
    if 0 < scores.numel() <= FEW and scores.is_cpu and is_plain((scores,)):
        few = solve_few(scores.detach().reshape(-1, scores.shape[-1]).double().numpy(), k)
        if few is not None:
            return torch.from_numpy(few).to(scores.dtype).view(*scores.shape[:-1], 1)
    point: Tensor = _point(scores, k)
    return point


def solve_few(scores: Any, k: int) -> Any:
    """Solve for the thresholds of the rows of an array as `_solve` does, by few operations.

    Newton's steps need no bracket, as the slope lies between 1 and 2. Return None if they do not converge, or if scores
    are not finite or too far apart.
    """
    others = scores.shape[-1] - k
    share = np.sort(scores, -1).T.copy()  # a column for each row of scores: first the others, then the k largest
    high, low = share[others - 1].copy(), share[others].copy()
    gap = share[-1] - share[0]
    if not gap.max() < GAP / 4:  # also if it is NaN
        return None
    rest, kept = share[:others], share[others:]
    np.subtract(rest, high, out=rest)
    np.subtract(low, kept, out=kept)
    np.exp(share, out=share)
    scale = np.empty((2, len(scores)))  # exp(high - c) and exp(c - low)
    scale[:] = np.exp(0.5 * (high - low))
    side = np.zeros((2, len(share)))
    side[0, :others] = side[1, others:] = 1
    for index in range(STEPS):
        left = side.T @ scale
        left *= share
        left += 1
        np.reciprocal(left, out=left)
        term = share * left
        total = side @ term  # the sum of the others, and the shortfall of the k largest
        term *= left
        slope = side @ term
        slope /= total
        total *= scale
        step = np.log(total[1] / total[0]) / (slope[0] + slope[1])
        moved = np.exp(step)
        scale[0] *= moved
        scale[1] /= moved
        if index > 1 and np.abs(step).max() <= NEAR:
            return low + np.log(scale[1])
    return None


def _solve(scores: Tensor, k: int) -> Tensor:
    """Solve for the threshold by Newton's method inside a bracket.

    The sum is k if the k largest entries fall short of k, by Σσ(c - s), by as much as the others sum to, Σσ(s - c). The
    logarithm of the ratio of these two sums is almost linear in c. Both are computed relative to the entries next to
    the gap, so that none underflows.
    """
    inside = largest(scores, k)
    low = torch.where(inside, scores, math.inf).amin(-1, keepdim=True)
    scores = torch.where(scores == -math.inf, low - GAP, scores)
    high = torch.where(inside, -math.inf, scores).amax(-1, keepdim=True)
    share = torch.where(inside, low - scores, scores - high).exp()
    kept, rest = torch.where(inside, share, 0), torch.where(inside, 0, share)
    lower, upper = high - math.log(scores.shape[-1]), low + math.log(scores.shape[-1])
    point = (low + high) / 2
    for _ in range(STEPS):
        below, above = (point - low).exp(), (high - point).exp()
        lacking, having = kept / (1 + kept * below), rest / (1 + rest * above)
        lack, have = lacking.sum(-1, keepdim=True), having.sum(-1, keepdim=True)
        ratio = 2 * point - low - high + lack.log() - have.log()
        slope = 2 - below * lacking.square().sum(-1, keepdim=True) / lack
        slope = slope - above * having.square().sum(-1, keepdim=True) / have
        lower, upper = torch.where(ratio <= 0, point, lower), torch.where(ratio >= 0, point, upper)
        moved = point - ratio / slope
        moved = torch.where((moved >= lower) & (moved <= upper), moved, (lower + upper) / 2)
        tolerance = 32 * torch.finfo(scores.dtype).eps * (1 + point.abs())
        has_converged = ((moved - point).abs() <= tolerance).all()
        point = moved
        if not scores.is_cuda and bool_or_none(has_converged):  # never wait for a GPU
            break
    return point


# one operator, as its iteration would be a large graph in a compiled program
_point = torch.library.custom_op(
    "concretely::threshold", _solve, mutates_args=(), schema="(Tensor scores, int k) -> Tensor"
)
_point.register_fake(lambda scores, k: scores.new_empty((*scores.shape[:-1], 1)))
_point.register_vmap(lambda *given: batched_in_front(_point, *given))


class _Threshold(torch.autograd.Function):
    """The threshold, whose derivative by an entry is the share of the entry in the total slope."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, k: int) -> Tensor:
        return point_of(scores, k)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor, None]:
        return by[0] * _slopes(*ctx.saved_tensors), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        moved: Tensor = tangent * _slopes(*ctx.saved_tensors)
        return moved.sum(-1, keepdim=True)


def _slopes(scores: Tensor, point: Tensor) -> Tensor:
    # a softmax, since all slopes may be too small for floats
    return (logsigmoid(scores - point) + logsigmoid(point - scores)).softmax(-1)
