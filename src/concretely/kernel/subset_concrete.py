"""Relaxed draws of k of n items in one pass, and their gradient in another."""

import torch
import triton.language as tl
from torch import Tensor

from . import tree as parts
from .launch import Launched
from .native import log1p
from .tile import ceil_div, power


@Launched
def _relax(
    logits, temperature, noise, value, slope, trees, chosen, rows, units, repeats, n, k, levels, size,
    EPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, WIDTH)
    inside = column < n
    program = tl.program_id(0).to(tl.int64)
    tree, own = trees + program * size, chosen + program * 2 * n
    for turn in range(tl.cdiv(rows - tl.program_id(0), tl.num_programs(0))):
        row = program + turn * tl.num_programs(0)
        at = (row // repeats * units + row % units) * n + column  # units repeat in the samples of a member
        held = tl.load(logits + at, mask=inside, other=0.0).to(tl.float32)
        x = parts.centred(held, inside, n, k)
        parts.plant(tree, x, column, inside, n)
        start = parts.grow(tree, size, n, k, levels - 1, False, BLOCK)
        uniform = noise + row * 2 * n
        place = parts.choose(tree, own, uniform, start, n, k, levels, BLOCK)
        is_chosen = tl.load(own + place + column, mask=inside, other=0) > 0
        # scores with these signs, by the inverse CDF of a logistic variable above zero
        sign = tl.where(is_chosen, 1.0, -1.0).to(tl.float64)
        fraction = tl.load(uniform + n + column, mask=inside, other=0.5).to(tl.float64)
        x = sign * x + log1p(-fraction)
        score = (tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x))) - tl.log(fraction)) * sign
        warm = tl.load(temperature + row // repeats).to(tl.float64)
        node = score / tl.where(warm > 0, warm, 1.0)
        kept = tl.where(inside & is_chosen, 1.0, 0.0).to(tl.float64)
        node -= parts.threshold(node, kept, inside, n)
        # at temperature zero, values are 0 and 1
        soft = tl.where(warm > 0, parts.sigmoid(node), kept).to(tl.float32).to(value.dtype.element_ty)
        small = tl.exp(-tl.abs(node))
        steep = tl.where(warm > 0, small / ((1 + small) * (1 + small)), 0.0)
        # rounding must not raise the value of another item to that of a chosen one
        lowest = tl.min(tl.where(kept > 0, soft.to(tl.float64), float("inf")), 0)
        below = (lowest * (1 - 0.75 * EPS)).to(tl.float32).to(value.dtype.element_ty)
        soft = tl.where(is_chosen | (soft < below), soft, below)
        at = row * n + column
        tl.store(value + at, soft, mask=inside)
        tl.store(slope + at, steep, mask=inside)
        tl.debug_barrier()  # the next row uses the same memory


@Launched
def _pull(
    by, slope, temperature, out, rows, repeats, n, MOST: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)[None, :]
    mask = (row < rows)[:, None] & (column < n)
    at = row.to(tl.int64)[:, None] * n + column
    steep = tl.load(slope + at, mask=mask, other=0.0).to(tl.float64)
    pulled = tl.load(by + at, mask=mask, other=0.0).to(tl.float64)
    total = tl.maximum(tl.sum(steep, 1), 2.2250738585072014e-308)  # all slopes may be too small for floats
    common = tl.sum(steep * pulled, 1) / total
    warm = tl.load(temperature + row // repeats, mask=row < rows, other=1.0).to(tl.float64)
    cold = 1 / tl.where(warm > 0, warm, 1.0)
    pulled = steep * (pulled - common[:, None]) * cold[:, None]
    if MOST > 0:  # no finite number overflows in float16
        pulled = tl.where(tl.abs(pulled) < float("inf"), tl.minimum(tl.maximum(pulled, -MOST), MOST), pulled)
    rounded = pulled if out.dtype.element_ty == tl.float64 else pulled.to(tl.float32)
    tl.store(out + at, rounded, mask=mask)


def relax(logits: Tensor, temperature: Tensor, noise: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the relaxed values that noise leads to, and their slopes by their own scores divided by temperature."""
    members, samples, units, _, n = noise.shape
    value = logits.new_empty((members, samples, units, n))
    slope = logits.new_empty(value.shape, dtype=torch.float32)
    if value.numel():
        rows = members * samples * units
        tree = parts.tree_of(rows, n, k)
        trees = parts.room(tree, logits.device)
        chosen = logits.new_empty((tree.programs, 2 * n), dtype=torch.int32)
        _relax[tree.programs,](
            logits.contiguous(), temperature.contiguous(), noise.contiguous(), value, slope, trees, chosen,
            rows, units, samples * units, n, k, tree.levels, tree.size,
            EPS=torch.finfo(logits.dtype).eps, WIDTH=tree.width, BLOCK=tree.block, num_warps=tree.warps, num_stages=1,
        )  # fmt: skip
    return value, slope


def relax_backward(
    by: tuple[Tensor | None, ...], needs: tuple[bool, ...], inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> tuple[Tensor | None]:
    """Return the gradient of the logits."""
    logits, temperature = inputs[:2]
    head, slope = by[0], outputs[1]
    if not needs[0] or head is None:
        return (None,)
    members, samples, units, n = slope.shape
    most = torch.finfo(logits.dtype).max if logits.dtype == torch.float16 else 0.0
    # the sum over samples is rounded once
    out = slope.new_empty(slope.shape, dtype=torch.float64 if samples > 1 else logits.dtype)
    if out.numel():
        rows, width = members * samples * units, power(n)
        block = min(max(512 // width, 1), power(rows))
        _pull[ceil_div(rows, block),](
            head.contiguous(), slope, temperature.contiguous(), out, rows, samples * units, n,
            MOST=most, ROWS=block, WIDTH=width, num_warps=min(max(block * width // 128, 1), 16),
        )  # fmt: skip
    if samples == 1:
        return (out.view(logits.shape),)
    total = out.sum(1)
    return ((total.clamp_(-most, most) if most else total).to(logits.dtype),)
