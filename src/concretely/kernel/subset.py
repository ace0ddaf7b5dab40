"""Exact draws of k of n items in one pass: a program grows the tree of a row and descends it."""

import torch
import triton.language as tl
from torch import Tensor

from . import tree as parts
from .launch import Launched


@Launched
def _choose(
    logits, noise, value, trees, chosen, rows, units, repeats, n, k, levels, size,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, WIDTH)
    inside = column < n
    program = tl.program_id(0).to(tl.int64)
    tree, own = trees + program * size, chosen + program * 2 * n
    for turn in range(tl.cdiv(rows - tl.program_id(0), tl.num_programs(0))):
        row = program + turn * tl.num_programs(0)
        at = (row // repeats * units + row % units) * n + column  # units repeat in the samples of a member
        held = tl.load(logits + at, mask=inside, other=0.0).to(tl.float32)
        parts.plant(tree, parts.centred(held, inside, n, k), column, inside, n)
        start = parts.grow(tree, size, n, k, levels - 1, False, BLOCK)
        place = parts.choose(tree, own, noise + row * 2 * n, start, n, k, levels, BLOCK)
        count = tl.load(own + place + column, mask=inside, other=0)
        tl.store(value + row * n + column, count.to(tl.float32), mask=inside)
        tl.debug_barrier()  # the next row uses the same memory


def choose(logits: Tensor, noise: Tensor, k: int) -> Tensor:
    """Return the subsets that noise selects, as vectors of k ones and zeros."""
    members, samples, units, _, n = noise.shape
    value = logits.new_empty((members, samples, units, n))
    if value.numel():
        rows = members * samples * units
        tree = parts.tree_of(rows, n, k)
        trees = parts.room(tree, logits.device)
        chosen = logits.new_empty((tree.programs, 2 * n), dtype=torch.int32)
        _choose[tree.programs,](
            logits.contiguous(), noise.contiguous(), value, trees, chosen,
            rows, units, samples * units, n, k, tree.levels, tree.size,
            WIDTH=tree.width, BLOCK=tree.block, num_warps=tree.warps, num_stages=1,
        )  # fmt: skip
    return value
