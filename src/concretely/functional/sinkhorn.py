"""Matrices scaled to be doubly stochastic, with an implicit gradient, and the best matching of rows and columns."""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..kernel.library import batched_in_front

STEPS = 200
"""The maximum number of steps at the last scale."""
RANGE = 300.0
"""Up to this range of scores, neither their exponentials nor products of these overflow or underflow in float64."""
FIRST = 3
"""The number of Sinkhorn's steps before the first of Newton's."""
RIDGE = 1e-14
"""Added to the diagonal of a system that is singular for a permutation. Entries that small do not matter."""


def log_sinkhorn(
    scores: Float[Tensor, "*batch n n"], *, tolerance: float = 1e-10, steps: int = STEPS
) -> Float[Tensor, "*batch n n"]:
    """Return scores plus a number for each row and each column, so that the exponentials sum to 1 over both.

    Rows sum to 1 up to rounding, and columns up to `tolerance`, or to the rounding of large scores. If they do not
    after `steps` steps, an error is raised. The gradient is that of the exact solution. See [mena2018learning].

    >>> log_sinkhorn(torch.zeros(2, 2, dtype=torch.float64)).exp()
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    if torch.compiler.is_compiling():  # the compiler differentiates once: this has the same gradient
        fixed = scores.detach()
        columns = _potentials(fixed, tolerance, steps)
        share = _normalised(fixed, columns).exp()
        moved = scores - fixed
        return _normalised(moved + fixed, columns + _response(share, (share * moved).sum(-2) - _carried(share, moved)))
    columns = _Potentials.apply(scores, tolerance, steps)  # type: ignore[no-untyped-call]
    return _normalised(scores, columns)


def _normalised(scores: Tensor, columns: Tensor) -> Tensor:
    """Add the column numbers to the scores, and row numbers so that each row sums to 1."""
    return (scores + columns.unsqueeze(-2)).log_softmax(-1)


def _carried(share: Tensor, moved: Tensor) -> Tensor:
    """Return by how much a change of the scores lowers the column sums through the normalisation of the rows."""
    return ((share * moved).sum(-1, keepdim=True) * share).sum(-2)


def _response(share: Tensor, excess: Tensor) -> Tensor:
    """Return the change of the column numbers that removes an excess of the column sums."""
    n = share.shape[-1]
    coupling = share.transpose(-1, -2) @ share
    # each row of the Laplacian sums to 0: sum the others instead of subtracting from the column sum
    diagonal = torch.eye(n, dtype=share.dtype, device=share.device)
    others = torch.addcmul(coupling, coupling, diagonal, value=-1)
    # 1/n fixes the sum of the changes, which is free
    system = torch.addcmul(1 / n - others, diagonal, others.sum(-1, keepdim=True) + RIDGE)
    solved: Tensor = torch.linalg.solve(system, -excess)
    return solved


def _solve(scores: Tensor, tolerance: float, steps: int) -> Tensor:
    """Return numbers to add to the columns, for scores of shape (rows, n, n).

    Scaled scores are solved first, and the numbers of one scale are the start of the next, twice as large. A step is
    one of Sinkhorn's, followed by one of Newton's where that makes the sums better.
    """
    if not scores.numel():
        return scores.new_zeros(scores.shape[:-1])
    size = scores.amax((-1, -2)) - scores.amin((-1, -2))
    doublings = max(math.ceil(math.log2(max(size.max().item(), 4.0) / 4)), 0)
    is_narrow = scores.dtype == torch.float64 and size.max().item() <= RANGE
    columns = scores.new_zeros(scores.shape[:-1])
    for scale in range(doublings, -1, -1):
        scaled = scores * 0.5**scale if scale else scores
        columns = columns * 2
        limit = 1e-2 if scale else tolerance + 64 * torch.finfo(scores.dtype).eps * scores.abs().amax().item()
        if is_narrow:
            columns, error = _iterate_narrow(scaled, columns, limit, steps)
        else:
            for _ in range(steps):
                columns, error = _step(scaled, columns)
                if error <= limit:
                    break
        if not error <= limit and not scale:  # also if it is NaN
            raise RuntimeError(
                f"Sinkhorn's iteration must bring all sums within {limit:.2g} of 1, got {error:.2g} after {steps} "
                "steps: use a higher temperature or more steps"
            )
    return columns


def _iterate_narrow(scores: Tensor, columns: Tensor, limit: float, steps: int) -> tuple[Tensor, float]:
    """Repeat `_step` until the error is within a limit, for scores of a narrow range.

    It iterates on exponentials, which takes fewer operations. All terms are positive, so that nothing cancels.
    """
    kernel = (scores - scores.amax(-1, keepdim=True)).exp_()
    column = columns.exp().unsqueeze(-1)
    total = _column_sums(kernel, column)
    for _ in range(min(steps, FIRST)):  # far from the solution, Sinkhorn's steps are as good as Newton's and faster
        column = column / total
        total = _column_sums(kernel, column)
    worst = (total - 1).abs().amax().item()
    for _ in range(steps):
        if worst <= limit:
            break
        column = column / total
        share = kernel / (kernel @ column) * column.mT
        excess = share.sum(-2) - 1
        newton = column * _response(share, excess).clamp_(-3, 3).exp_().unsqueeze(-1)
        total, total_after = excess.unsqueeze(-1) + 1, _column_sums(kernel, newton)
        error, error_after = excess.abs().amax(-1, keepdim=True), (total_after - 1).abs().amax(-2)
        is_better = (error_after < error).unsqueeze(-1)
        column, total = torch.where(is_better, newton, column), torch.where(is_better, total_after, total)
        worst = torch.minimum(error, error_after).amax().item()  # the smaller one is NaN if any of them is
    columns = column.squeeze(-1).log()
    return columns - columns.mean(-1, keepdim=True), worst


def _column_sums(kernel: Tensor, column: Tensor) -> Tensor:
    """Return the sums of columns after rows have been scaled to sum to 1."""
    return column * (kernel.mT @ (kernel @ column).reciprocal_())


def _step(scores: Tensor, columns: Tensor) -> tuple[Tensor, float]:
    """Return better numbers for the columns, and the largest error of a column sum."""
    columns = columns - _normalised(scores, columns).logsumexp(-2)
    share = _normalised(scores, columns).exp()
    excess = share.sum(-2) - 1
    move = _response(share, excess)
    newton = columns + move.clamp(-3, 3)  # the quadratic approximation is no longer good for more
    after = _normalised(scores, newton).exp().sum(-2) - 1
    error, error_after = (excesses.abs().amax(-1, keepdim=True) for excesses in (excess, after))
    is_better = error_after < error
    columns = torch.where(is_better, newton, columns)
    return columns - columns.mean(-1, keepdim=True), torch.where(is_better, error_after, error).amax().item()


def _solve_rows(scores: Tensor, tolerance: float, steps: int) -> Tensor:
    columns = _solve(scores.reshape(math.prod(scores.shape[:-2]), *scores.shape[-2:]), tolerance, steps)
    return columns.reshape(scores.shape[:-1]).clone()  # an operator must not return a view


_potentials = torch.library.custom_op(
    "concretely::sinkhorn_potentials",
    _solve_rows,
    mutates_args=(),
    schema="(Tensor scores, float tolerance, int steps) -> Tensor",
)
_potentials.register_fake(lambda scores, tolerance, steps: scores.new_empty(scores.shape[:-1]))
_potentials.register_vmap(lambda *given: batched_in_front(_potentials, *given))


class _Potentials(torch.autograd.Function):
    """The numbers of the columns as a function of the scores, by the implicit function theorem."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, tolerance: float, steps: int) -> Tensor:
        columns: Tensor = _potentials(scores, tolerance, steps)
        return columns

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, int], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor, None, None]:
        share = _normalised(*ctx.saved_tensors).exp()
        weight = _response(share, by[0]).unsqueeze(-2)
        return share * (weight - (share * weight).sum(-1, keepdim=True)), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        share = _normalised(*ctx.saved_tensors).exp()
        return _response(share, (share * tangent).sum(-2) - _carried(share, tangent))


def matching(scores: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """Return the permutation matrix with the largest sum of scores, by the Hungarian algorithm on the CPU.

    >>> matching(torch.tensor([[0.0, 1.0], [2.0, 0.0]]))
    tensor([[0., 1.],
            [1., 0.]])
    """
    chosen: Tensor = _matching(scores.detach())
    return chosen


def _match(scores: Tensor) -> Tensor:
    """Return the permutation matrices of the best matchings, by the Hungarian algorithm on the CPU."""
    try:
        from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("a matching needs scipy, which is not installed: run pip install scipy") from error
    rows = scores.detach().double().cpu().reshape(-1, *scores.shape[-2:]).numpy()
    chosen = np.zeros(rows.shape)
    for row, out in zip(rows, chosen, strict=True):
        out[linear_sum_assignment(row, maximize=True)] = 1
    return torch.from_numpy(chosen).view(scores.shape).to(scores.device, scores.dtype)


_matching = torch.library.custom_op("concretely::matching", _match, mutates_args=(), schema="(Tensor scores) -> Tensor")
_matching.register_fake(lambda scores: torch.empty_like(scores, memory_format=torch.contiguous_format))
_matching.register_vmap(lambda *given: batched_in_front(_matching, *given))
