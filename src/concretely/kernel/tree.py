"""Parts of the kernels of subsets: the centre of logits, and a binary tree with the law of the count below each node.

A program has a row of items. Its tree lies in memory that only this program uses, level after level from the items to
the root, each with one number for each count and node. All numbers are computed in float64, as in the definition.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tile import power

PROGRAMS = 1024
"""The maximum number of programs, which keeps a GPU busy. Each takes several rows, as each needs memory of its own."""
ROOM = 2**26
"""If the trees of all programs would hold more numbers, there are fewer programs."""
STEPS = tl.constexpr(8)
"""The maximum number of steps of Newton's method, as in the definition."""
GAP = tl.constexpr(1400.0)
"""A gap between entries beyond which their sigmoids are 0 and 1 in float64."""


class Tree(NamedTuple):
    """The sizes of a tree, and how programs divide rows."""

    levels: int
    """The number of levels below the root."""
    size: int
    """The number of numbers of a tree, with its root."""
    width: int
    block: int
    """How many numbers of a level a program computes at a time."""
    warps: int
    programs: int
    copies: int
    """How many numbers are stored for each number of a tree."""


def tree_of(rows: int, n: int, k: int, copies: int = 1) -> Tree:
    """Return the sizes of the trees of rows of n items, with counts up to k; `copies` is as in `Tree`."""
    levels, width = (n - 1).bit_length(), power(n)
    size = sum(min((1 << level) + 1, k + 1) * -(-n >> level) for level in range(levels + 1))
    warps = min(max(width // 128, 1), 16)
    programs = min(rows, PROGRAMS, max(ROOM // (copies * size), PROGRAMS // 8))
    return Tree(levels, size, width, 64 * warps, warps, programs, copies)


def room(tree: Tree, device: torch.device) -> Tensor:
    """Return memory for the trees of all programs."""
    return torch.empty((tree.programs, tree.copies * tree.size), dtype=torch.float64, device=device)


@triton.jit
def sigmoid(x):
    """Return the sigmoid in float64, precise at both ends."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x < 0, small, 1.0) / (1 + small)


@triton.jit
def kept_share(held, inside, n, k):
    """Return 1 for the k largest entries of a float32 row and 0 for others. Entries that tie have equal shares."""
    bits = held.to(tl.int32, bitcast=True)
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)  # whole numbers in the same order
    low, high = tl.min(tl.where(inside, key, 2**40), 0), tl.max(tl.where(inside, key, -(2**40)), 0)
    count = n
    while (low < high) & (count != k):  # at least k entries are not below `low`, and fewer are above `high`
        middle = low + (high - low + 1) // 2
        reached = tl.sum((inside & (key >= middle)).to(tl.int32), 0)
        low = tl.where(reached >= k, middle, low)
        high = tl.where(reached >= k, high, middle - 1)
        count = tl.where(reached >= k, reached, count)
    above = tl.sum((inside & (key > low)).to(tl.int32), 0)
    ties = tl.maximum(count - above, 1)
    share = (k - above).to(tl.float64) / ties.to(tl.float64)
    return tl.where(inside & (key > low), 1.0, tl.where(inside & (key == low), share, 0.0))


@triton.jit
def threshold(x, kept, inside, n):
    """Return the number c for which the sum of σ(x - c) is that of `kept`, as `functional.threshold` does."""
    low = tl.min(tl.where(kept > 0, x, float("inf")), 0)
    x = tl.where(x == -float("inf"), low - GAP, x)
    others = inside & (kept < 1)
    high = tl.max(tl.where(others, x, -float("inf")), 0)
    above = tl.exp(tl.where(kept > 0, low - x, 0.0))
    below = tl.exp(tl.where(others, x - high, 0.0))
    rest = tl.where(others, 1 - kept, 0.0)
    margin = tl.log(n.to(tl.float64))
    lower, upper = high - margin, low + margin
    point = (low + high) / 2
    step = 0
    is_moving = True
    while (step < STEPS) & is_moving:
        left, right = tl.exp(point - low), tl.exp(high - point)
        lacking, having = above / (1 + above * left), below / (1 + below * right)
        lack, have = tl.sum(kept * lacking, 0), tl.sum(rest * having, 0)
        ratio = 2 * point - low - high + tl.log(lack) - tl.log(have)
        slope = 2 - left * tl.sum(kept * lacking * lacking, 0) / lack
        slope -= right * tl.sum(rest * having * having, 0) / have
        lower, upper = tl.where(ratio <= 0, point, lower), tl.where(ratio >= 0, point, upper)
        moved = point - ratio / slope
        moved = tl.where((moved >= lower) & (moved <= upper), moved, (lower + upper) / 2)
        is_moving = tl.abs(moved - point) > 7e-15 * (1 + tl.abs(point))
        point = moved
        step += 1
    return point


@triton.jit
def centred(held, inside, n, k):
    """Return logits in float64 minus the number for which their sigmoids sum to k."""
    wide = held.to(tl.float64)
    return wide - threshold(wide, kept_share(held, inside, n, k), inside, n)


@triton.jit
def nodes_of(n, level):
    """Return the number of nodes of a level."""
    return (n + (1 << level) - 1) >> level


@triton.jit
def counts_of(k, level):
    """Return how many counts a node of a level has: from 0 to its items or k."""
    return tl.minimum((1 << level) + 1, k + 1)


@triton.jit
def plant(tree, x, column, inside, n):
    """Store the items of the tree: the probabilities of 0 and of 1."""
    tl.store(tree + column, sigmoid(-x), mask=inside)
    tl.store(tree + n + column, sigmoid(x), mask=inside)
    tl.debug_barrier()


@triton.jit
def grow(tree, size, n, k, levels, MOVES: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the levels of a tree above its items, each from the one below. Return where the last one begins.

    If it moves, it has tangents, `size` numbers further on.
    """
    own = tl.arange(0, BLOCK)
    start = 0
    for level in range(1, levels + 1):
        nodes, counts = nodes_of(n, level - 1), counts_of(k, level - 1)
        parents, width = nodes_of(n, level), counts_of(k, level)
        target = start + counts * nodes
        for first in range(0, width * parents, BLOCK):
            place = first + own
            count, node = place // parents, 2 * (place % parents)
            inside = place < width * parents
            is_paired = node + 1 < nodes
            least = tl.maximum(first // parents - counts + 1, 0)
            most = tl.minimum((first + BLOCK - 1) // parents + 1, counts)
            total, moved = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
            for taken in range(least, most):
                rest = count - taken
                mask = inside & (rest >= 0) & (rest < counts)
                one, other = tree + start + taken * nodes + node, tree + start + rest * nodes + node + 1
                left = tl.load(one, mask=mask, other=0.0)
                right = tl.load(other, mask=mask & is_paired, other=0.0)
                right = tl.where(is_paired, right, tl.where(rest == 0, 1.0, 0.0))  # a node without items
                total += left * right
                if MOVES:
                    moved += left * tl.load(other + size, mask=mask & is_paired, other=0.0)
                    moved += right * tl.load(one + size, mask=mask, other=0.0)
            tl.store(tree + target + place, total, mask=inside)
            if MOVES:
                tl.store(tree + size + target + place, moved, mask=inside)
        tl.debug_barrier()
        start = target
    return start


@triton.jit
def choose(tree, chosen, choices, start, n, k, levels, BLOCK: tl.constexpr):
    """Split the count k from the root to the items, and return where the counts of the items are.

    `start` is where the last level below the root begins. A branch splits its count by the inverse of the CDF.
    """
    own = tl.arange(0, BLOCK)
    tl.store(chosen, k)
    tl.debug_barrier()
    source, target = 0, n
    for back in range(levels):
        level = levels - 1 - back
        nodes, counts = nodes_of(n, level), counts_of(k, level)
        parents, branches = (nodes + 1) // 2, nodes // 2
        for first in range(0, parents, BLOCK):
            branch = first + own
            inside = branch < branches
            count = tl.load(chosen + source + branch, mask=branch < parents, other=0)
            left, right = tree + start + 2 * branch, tree + start + 2 * branch + 1
            total, last = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.int32)
            for taken in range(counts):
                rest = count - taken
                mask = inside & (rest >= 0) & (rest < counts)
                one = tl.load(left + taken * nodes, mask=mask, other=0.0)
                term = one * tl.load(right + rest * nodes, mask=mask, other=0.0)
                total += term
                last = tl.where(term > 0, taken, last)
            goal = total * tl.load(choices + branch, mask=inside, other=0.0).to(tl.float64)
            split = tl.zeros((BLOCK,), tl.int32)
            sofar = tl.zeros((BLOCK,), tl.float64)
            for taken in range(counts):
                rest = count - taken
                mask = inside & (rest >= 0) & (rest < counts)
                one = tl.load(left + taken * nodes, mask=mask, other=0.0)
                sofar += one * tl.load(right + rest * nodes, mask=mask, other=0.0)
                split += (sofar <= goal).to(tl.int32)
            split = tl.minimum(split, last)  # even if sums were rounded differently
            # the last node of an odd number has the count of its parent
            first_child = tl.where(inside, split, count)
            tl.store(chosen + target + 2 * branch, first_child, mask=branch < parents)
            tl.store(chosen + target + 2 * branch + 1, count - split, mask=inside)
        tl.debug_barrier()
        choices += branches
        below = tl.maximum(level - 1, 0)
        start -= nodes_of(n, below) * counts_of(k, below)
        source, target = target, source
    return source


@triton.jit
def descend(tree, back, size, start, n, k, levels, MOVES: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the gradient of the probability of k by all numbers of the tree, whose root begins at `start`.

    If the tree moves, the gradient has tangents too, `size` numbers further on.
    """
    own = tl.arange(0, BLOCK)
    for first in range(0, k + 1, BLOCK):
        place = first + own
        tl.store(back + start + place, tl.where(place == k, 1.0, 0.0).to(tl.float64), mask=place <= k)
        if MOVES:
            tl.store(back + size + start + place, tl.zeros((BLOCK,), tl.float64), mask=place <= k)
    tl.debug_barrier()
    for step in range(levels):
        level = levels - 1 - step
        nodes, counts = nodes_of(n, level), counts_of(k, level)
        parents, width = nodes_of(n, level + 1), counts_of(k, level + 1)
        above, start = start, start - counts * nodes
        for first in range(0, counts * nodes, BLOCK):
            place = first + own
            count, node = place // nodes, place % nodes
            inside = place < counts * nodes
            is_paired = (node ^ 1) < nodes
            total, moved = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
            for rest in range(tl.minimum(counts, width - first // nodes)):
                mask = inside & (count + rest < width)
                one, other = (
                    back + above + (count + rest) * parents + node // 2,
                    tree + start + rest * nodes + (node ^ 1),
                )
                head = tl.load(one, mask=mask, other=0.0)
                beside = tl.load(other, mask=mask & is_paired, other=0.0)
                beside = tl.where(
                    is_paired, beside, tl.where(place - place + rest == 0, 1.0, 0.0)
                )  # a node without items
                total += head * beside
                if MOVES:
                    moved += head * tl.load(other + size, mask=mask & is_paired, other=0.0)
                    moved += beside * tl.load(one + size, mask=mask, other=0.0)
            tl.store(back + start + place, total, mask=inside)
            if MOVES:
                tl.store(back + size + start + place, moved, mask=inside)
        tl.debug_barrier()
