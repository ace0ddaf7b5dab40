"""A logistic node drawn in one pass or scored in one, and the gradients of both in another."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..operator import joined, parted, rows
from ..philox.naive import quarter
from ..philox.triton import fraction, logistic, words

BLOCK = 128
TILE = 1024
BUSY = 256
"""As many programs as keep a device busy."""


@triton.jit
def sigmoid(node):
    """The sigmoid, precise at both ends."""
    small = tl.exp(-tl.abs(node))
    return tl.where(node < 0, small, 1.0) / (1 + small)


@triton.jit
def tanh_half(node):
    """The hyperbolic tangent of one half of a number."""
    small = tl.exp(-tl.abs(node))
    size = (1 - small) / (1 + small)
    return tl.where(node < 0, -size, size)


@triton.jit
def log1p(small):
    """The logarithm of one plus a number that is not negative, by the rounding error of the sum."""
    total = 1 + small
    return tl.where(total == 1, small, tl.log(total) * (small / (total - 1)))


@triton.jit
def wrapped(start, units, BLOCK: tl.constexpr, LONG: tl.constexpr):
    """The units of neighbouring elements; where rows are as long as a block, one division serves them all."""
    unit = start % units + tl.arange(0, BLOCK)
    return tl.where(unit < units, unit, unit - units) if LONG else unit % units


@triton.jit
def _draw(
    logits, temperature, key, node, value, log_density,
    units, total, quarter, logits_stride, temperature_stride,
    SQUASH: tl.constexpr, WIDE: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    # most draws are numbered in 32 bits, in which division takes a fraction of the time
    first = tl.program_id(0).to(tl.int64 if WIDE else tl.int32) * BLOCK
    place = first + tl.arange(0, BLOCK)
    four = words(key, member, place)
    warmth = tl.load(temperature + member * temperature_stride).to(tl.float32)
    log_warmth, coldness = tl.log(warmth), tl.div_rn(1.0, warmth)
    for k in tl.static_range(4):
        element = k * quarter + place
        mask = (place < quarter) & (element < total)
        unit = wrapped(k * quarter + first, units, BLOCK, LONG)
        logit = tl.load(logits + member * logits_stride + unit, mask=mask).to(tl.float32)
        found = (logit + logistic(four[k])) * coldness
        at = member * total + element
        tl.store(node + at, found, mask=mask)
        # the density of the noise is the product of its two tail probabilities
        tail = tl.abs(fraction(four[k], True))
        tl.store(log_density + at, log_warmth + tl.log(tail * (1 - tail)), mask=mask)
        if SQUASH == "corner":
            tl.store(value + at, tanh_half(found), mask=mask)
        if SQUASH == "unit":
            inside = tl.clamp(sigmoid(found), 9.860761315262648e-32, 0.99999994, tl.PropagateNan.ALL)
            tl.store(value + at, inside, mask=mask)


def draw(logits: Tensor, temperature: Tensor, key: Tensor, samples: int, squash: str) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes, values and log densities."""
    members, units = logits.shape
    node = torch.empty((members, samples, units), dtype=torch.float32, device=logits.device)
    value = torch.empty_like(node) if squash != "none" else node.new_empty((members, 0))
    log_density = torch.empty_like(node)
    if node.numel():
        total, logits = samples * units, rows(logits)
        grid = (triton.cdiv(quarter(total), BLOCK), members)
        _draw[grid](
            logits, temperature, key.contiguous(), node, value, log_density,
            units, total, quarter(total), logits.stride(0), temperature.stride(0),
            SQUASH=squash, WIDE=total >= 2**30, LONG=units >= BLOCK, BLOCK=BLOCK,
        )  # fmt: skip
    return node, value, log_density


class Tiling(NamedTuple):
    """How programs share nodes: each takes some units, and of the samples some rows at every step."""

    rows: int
    units: int
    parts: int
    """How many programs share the samples of a unit, and leave sums over parts of them."""
    steps: int
    grid: tuple[int, int]


def tiling(members: int, samples: int, units: int, *, sums: bool) -> Tiling:
    """The tiling of nodes: sums over samples are in no more parts than it takes to keep the device busy."""
    height = min(triton.next_power_of_2(samples), 16)
    width = TILE // height
    tall, wide = triton.cdiv(samples, height), triton.cdiv(units, width)
    steps = triton.cdiv(tall, min(tall, triton.cdiv(BUSY, members * wide))) if sums else 1
    parts = triton.cdiv(tall, steps)
    return Tiling(height, width, parts, steps, (parts * wide, members))


@triton.jit
def corner(units, steps, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """The part of a sum that a program takes, its first rows, and its units."""
    wide = tl.cdiv(units, UNITS)
    part = tl.program_id(0) // wide
    row = part.to(tl.int64) * steps * ROWS + tl.arange(0, ROWS)
    unit = (tl.program_id(0) % wide).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    return part, row[:, None], unit[None, :]


@triton.jit
def _draw_backward(
    by_node, by_value, node, temperature, by_logits, units, samples, parts, steps,
    node_member, node_sample, node_unit, value_member, value_sample, value_unit, temperature_stride,
    NODE: tl.constexpr, VALUE: tl.constexpr, SQUASH: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    part, row, unit = corner(units, steps, ROWS, UNITS)
    total = tl.zeros((ROWS, UNITS), tl.float32)
    for _ in range(steps):
        mask = (row < samples) & (unit < units)
        if NODE:
            at = member * node_member + row * node_sample + unit * node_unit
            total += tl.load(by_node + at, mask=mask, other=0.0).to(tl.float32)
        if VALUE:
            low = sigmoid(-tl.abs(tl.load(node + (member * samples + row) * units + unit, mask=mask, other=0.0)))
            slope = low * (1 - low) * (2 if SQUASH == "corner" else 1)
            at = member * value_member + row * value_sample + unit * value_unit
            total += slope * tl.load(by_value + at, mask=mask, other=0.0).to(tl.float32)
        row += ROWS
    found = tl.sum(total, 0, keep_dims=True) / tl.load(temperature + member * temperature_stride).to(tl.float32)
    tl.store(by_logits + (member * parts + part) * units + unit, found, mask=unit < units)


def draw_backward(
    by_node: Tensor | None,
    by_value: Tensor | None,
    node: Tensor,
    temperature: Tensor,
    squash: str,
    dtype: torch.dtype,
) -> Tensor:
    """The gradient of the logits, over all samples."""
    members, samples, units = node.shape
    if not node.numel():
        return node.new_zeros((members, units), dtype=dtype)
    tile, node = tiling(members, samples, units, sums=True), node.contiguous()
    by = [node if each is None else each for each in (by_node, by_value)]
    by_logits = parted(tile.parts, node[:, 0], dtype)
    _draw_backward[tile.grid](
        *by, node, temperature, by_logits, units, samples, tile.parts, tile.steps,
        *by[0].stride(), *by[1].stride(), temperature.stride(0),
        NODE=by_node is not None, VALUE=by_value is not None, SQUASH=squash, ROWS=tile.rows, UNITS=tile.units,
    )  # fmt: skip
    return joined(by_logits, dtype)


@triton.jit
def _score(
    node, logits, temperature, log_density, units, samples, node_stride, logits_stride, temperature_stride,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    _, row, unit = corner(units, 1, ROWS, UNITS)
    mask = (row < samples) & (unit < units)
    warmth = tl.load(temperature + member * temperature_stride)
    logit = tl.load(logits + member * logits_stride + unit, mask=unit < units, other=0.0).to(tl.float64)
    found = tl.load(node + member * node_stride + row * units + unit, mask=mask, other=0.0).to(tl.float64)
    size = tl.abs((warmth * found - logit).to(tl.float32))
    scored = tl.log(warmth.to(tl.float32)) - size - 2 * log1p(tl.exp(-size))
    tl.store(log_density + (member * samples + row) * units + unit, scored, mask=mask)


def score(node: Tensor, logits: Tensor, temperature: Tensor) -> Tensor:
    """The log density of given nodes."""
    members, samples, units = node.shape
    log_density = torch.empty((members, samples, units), dtype=torch.float32, device=node.device)
    if node.numel():
        node, logits, tile = rows(node), rows(logits), tiling(members, samples, units, sums=False)
        _score[tile.grid](
            node, logits, temperature, log_density, units, samples,
            node.stride(0), logits.stride(0), temperature.stride(0), ROWS=tile.rows, UNITS=tile.units,
        )  # fmt: skip
    return log_density


@triton.jit
def _score_backward(
    by, node, logits, temperature, by_node, by_logits, units, samples, parts, steps,
    by_member, by_sample, by_unit, node_stride, logits_stride, temperature_stride,
    NODE: tl.constexpr, LOGITS: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    part, row, unit = corner(units, steps, ROWS, UNITS)
    warmth = tl.load(temperature + member * temperature_stride)
    logit = tl.load(logits + member * logits_stride + unit, mask=unit < units, other=0.0).to(tl.float64)
    total = tl.zeros((ROWS, UNITS), tl.float32)
    for _ in range(steps):
        mask = (row < samples) & (unit < units)
        found = tl.load(node + member * node_stride + row * units + unit, mask=mask, other=0.0).to(tl.float64)
        at = member * by_member + row * by_sample + unit * by_unit
        pull = tl.load(by + at, mask=mask, other=0.0).to(tl.float32)
        pull *= tanh_half((warmth * found - logit).to(tl.float32))
        if NODE:
            tl.store(by_node + (member * samples + row) * units + unit, -warmth.to(tl.float32) * pull, mask=mask)
        if LOGITS:
            total += pull
        row += ROWS
    if LOGITS:
        found = tl.sum(total, 0, keep_dims=True)
        tl.store(by_logits + (member * parts + part) * units + unit, found, mask=unit < units)


def score_backward(
    by: Tensor, node: Tensor, logits: Tensor, temperature: Tensor, needs_node: bool, needs_logits: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of the nodes and of the logits, the latter over all samples."""
    members, samples, units = node.shape
    dtype, none = logits.dtype, by.new_empty((members, 0))
    if not node.numel():
        return torch.empty_like(node if needs_node else none), torch.zeros_like(logits if needs_logits else none)
    node, logits, tile = rows(node), rows(logits), tiling(members, samples, units, sums=needs_logits)
    by_node = torch.empty((members, samples, units), dtype=node.dtype, device=node.device) if needs_node else none
    by_logits = parted(tile.parts, node[:, 0], dtype) if needs_logits else by_node
    _score_backward[tile.grid](
        by, node, logits, temperature, by_node, by_logits, units, samples, tile.parts, tile.steps,
        *by.stride(), node.stride(0), logits.stride(0), temperature.stride(0),
        NODE=needs_node, LOGITS=needs_logits, ROWS=tile.rows, UNITS=tile.units,
    )  # fmt: skip
    return by_node, joined(by_logits, dtype) if needs_logits else torch.empty_like(none)
