"""The probability of each item to be in a subset, and its gradient, in one pass each.

The Jacobian of the marginals is the covariance, which is symmetric. So their gradient is also the tangent of the
marginals in the direction of the given gradient, and is computed along with them.
"""

import torch
import triton.language as tl
from torch import Tensor

from . import tree as parts
from .launch import Launched


@Launched
def _include(
    logits, by, out, trees, rows, n, k, levels, size, MOVES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    column = tl.arange(0, WIDTH)
    inside = column < n
    program = tl.program_id(0).to(tl.int64)
    copies = 2 if MOVES else 1
    tree = trees + program * 2 * copies * size
    back = tree + copies * size
    for turn in range(tl.cdiv(rows - tl.program_id(0), tl.num_programs(0))):
        row = program + turn * tl.num_programs(0)
        at = row * n + column
        x = parts.centred(tl.load(logits + at, mask=inside, other=0.0).to(tl.float32), inside, n, k)
        own = parts.sigmoid(x)
        if MOVES:
            moved = own * parts.sigmoid(-x) * tl.load(by + at, mask=inside, other=0.0).to(tl.float64)
            tl.store(tree + size + column, -moved, mask=inside)
            tl.store(tree + size + n + column, moved, mask=inside)
        parts.plant(tree, x, column, inside, n)
        start = parts.grow(tree, size, n, k, levels, MOVES, BLOCK)
        parts.descend(tree, back, size, start, n, k, levels, MOVES, BLOCK)
        whole = tl.load(tree + start + k)
        head = tl.load(back + n + column, mask=inside, other=0.0)
        result = own * head / whole
        if MOVES:
            pushed = moved * head + own * tl.load(back + size + n + column, mask=inside, other=0.0)
            result = (pushed - result * tl.load(tree + size + start + k)) / whole
        tl.store(out + at, result, mask=inside)
        tl.debug_barrier()  # the next row uses the same memory


def _launch(logits: Tensor, by: Tensor | None, k: int) -> Tensor:
    out = logits.new_empty(logits.shape, dtype=torch.float64)
    if out.numel():
        n = logits.shape[-1]
        rows = logits.numel() // n
        tree = parts.tree_of(rows, n, k, copies=2 if by is None else 4)
        logits = logits.contiguous()
        _include[tree.programs,](
            logits, logits if by is None else by.contiguous(), out, parts.room(tree, logits.device),
            rows, n, k, tree.levels, tree.size,
            MOVES=by is not None, WIDTH=tree.width, BLOCK=tree.block, num_warps=tree.warps, num_stages=1,
        )  # fmt: skip
    return out


def include(logits: Tensor, k: int) -> Tensor:
    """Return the marginals in float64."""
    return _launch(logits, None, k)


def include_backward(
    by: tuple[Tensor], needs: tuple[bool, ...], inputs: tuple[Tensor, int], outputs: tuple[Tensor]
) -> tuple[Tensor]:
    """Return the gradient of the logits."""
    logits, k = inputs
    gradient = _launch(logits, by[0], k)
    if logits.dtype == torch.float16:  # no finite number overflows
        gradient.clamp_(-torch.finfo(logits.dtype).max, torch.finfo(logits.dtype).max)
    return (gradient.to(logits.dtype),)
