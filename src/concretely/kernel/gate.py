"""Inputs times drawn gates in one launch, and their gradients in another, with little work on the host."""

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import row as binary
from .launch import Launched
from .layout import sum_parts
from .native import LARGEST_BELOW_ONE, SMALLEST, sigmoid
from .philox import logistic, words, words_of


@triton.jit
def words_at(key, seed, nonce, held, first, KEYED: tl.constexpr, BLOCK: tl.constexpr):
    """Return the words of a block of places, for a key in memory (KEYED) or a key of two numbers."""
    # adds 0 unless NaN, so that the threads that hold the same places compute the words
    place = first + tl.arange(0, BLOCK) + (held != held).to(tl.int32)
    return words(key, 0, place) if KEYED else words_of(seed, nonce, place)


@partial(Launched, free=("seed", "nonce"))
def _draw(
    x, logits, key, out, gates, seed, nonce, cold, low, width, start, end, units, total, quarter,
    KEYED: tl.constexpr, WIDE: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64 if WIDE else tl.int32) * BLOCK
    held = binary.load_four(logits, first, units, total, quarter, LONG, BLOCK)
    four = words_at(key, seed, nonce, held[0], first, KEYED, BLOCK)
    for k in tl.static_range(4):
        element, _, mask = binary.placed(first, k, units, total, quarter, LONG, BLOCK)
        node = (held[k] + logistic(four[k])) * cold
        between = tl.clamp(sigmoid(node) * width + low, SMALLEST, LARGEST_BELOW_ONE, tl.PropagateNan.ALL)
        gate = tl.where(node <= start, 0.0, tl.where(node >= end, 1.0, between))
        tl.store(gates + element, gate, mask=mask)
        tl.store(out + element, tl.load(x + element, mask=mask, other=0.0).to(tl.float32) * gate, mask=mask)


@Launched
def _pull(
    by, x, gates, by_x, by_logits, low, high, factor, units, points, steps,
    INPUTS: tl.constexpr, LOGITS: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    part, row, unit = binary.corner(units, steps, ROWS, UNITS)
    at, end = row * units + unit, tl.where(unit < units, points, 0)
    total = tl.zeros((ROWS, UNITS), tl.float32)
    for _ in range(steps):
        mask = row < end
        slope = tl.load(by + at, mask=mask, other=0.0).to(tl.float32)
        gate = tl.load(gates + at, mask=mask, other=0.0)
        if INPUTS:
            tl.store(by_x + at, slope * gate, mask=mask)
        if LOGITS:
            # σ (1 - σ) of the node, which is not differentiated where it is clipped
            inside = tl.where((gate > 0) & (gate < 1), (gate - low) * (high - gate), 0.0)
            total += slope * tl.load(x + at, mask=mask, other=0.0).to(tl.float32) * inside
        at += ROWS * units
        row += ROWS
    if LOGITS:
        gradient = tl.sum(total, 0, keep_dims=True) * factor
        tl.store(by_logits + part * units + unit, gradient, mask=unit < units)


def draw(
    x: Tensor, logits: Tensor, key: Any, temperature: float, stretch: tuple[float, float], ends: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Return inputs times gates, and the gates in float32. `ends` are the nodes that lead to 0 and to 1."""
    x, logits = x.contiguous(), logits.contiguous()
    out, gates = torch.empty_like(x), torch.empty_like(x, dtype=torch.float32)
    units = logits.numel()
    own, keyed = binary.draws(1, x.numel() // units, units, 1), isinstance(key, Tensor)
    seed = (2**62, 2**62) if keyed else key
    _draw[own.grid](
        x, logits, key.contiguous() if keyed else logits, out, gates, *seed,
        1 / temperature, stretch[0], stretch[1] - stretch[0], *ends, *own.counts, KEYED=keyed, **own.options,
    )  # fmt: skip
    return out, gates


def pull(
    by: Tensor,
    x: Tensor,
    gates: Tensor,
    shape: torch.Size,
    temperature: float,
    stretch: tuple[float, float],
    needs: Any,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of the inputs and, in float32, of logits of a shape, or None for those not needed."""
    by, x, (low, high), units = by.contiguous(), x.contiguous(), stretch, shape.numel()
    points = x.numel() // units
    tile = binary.tiling(1, points, units, sums=needs[1])
    by_x = torch.empty_like(x) if needs[0] else None
    by_logits = gates.new_empty((1, tile.parts, units)) if needs[1] else None
    _pull[tile.grid[0],](
        by, x, gates, x if by_x is None else by_x, gates if by_logits is None else by_logits,
        low, high, 1 / ((high - low) * temperature), units, points, tile.steps,
        INPUTS=needs[0], LOGITS=needs[1], ROWS=tile.rows, UNITS=tile.units, num_warps=tile.warps,
    )  # fmt: skip
    return by_x, None if by_logits is None else sum_parts(by_logits, tile.parts, torch.float32).view(shape)
