"""A logistic node drawn in one pass or scored in one, and the gradients of both in another."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..operator import joined, parted, rows
from ..philox.naive import quarter
from ..philox.triton import fraction, logistic, words_beside
from ..row import summed

BLOCK = 128
TILE = 1024
BUSY = 2048
"""As many programs as keep a device busy."""
STEPS = 8
"""A program adds up at least so many steps before sums are left to another launch."""


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
def times(one, other):
    """The product of two numbers."""
    return one * other


@triton.jit
def both(one, other):
    """The product of two numbers, all kept less 1 so that nothing small is lost."""
    return one + other + one * other


@triton.jit
def placed(first, offset, k, units, total, quarter, LENGTH: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr):
    """The elements of a block in one quarter of a draw, their units, and which of them there are.

    Where rows are as long as a block, one division serves them all.
    """
    place = first + tl.arange(0, BLOCK)
    element = k * quarter + place
    mask = (place < quarter) & (element < total)
    unit = (k * quarter + first) % units + tl.arange(0, BLOCK)
    if LENGTH > 1:
        mask = mask & (offset + tl.arange(0, BLOCK) < LENGTH)
    elif LONG:
        unit = tl.where(unit < units, unit, unit - units)
    else:
        unit = unit % units
    return element, unit, mask


@triton.jit
def load_quarter(
    logits, first, offset, k, units, total, quarter,
    LENGTH: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The logits of a block in one quarter."""
    _, unit, mask = placed(first, offset, k, units, total, quarter, LENGTH, LONG, BLOCK)
    return tl.load(logits + unit, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_four(
    logits, first, offset, units, total, quarter, LENGTH: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr
):
    """The logits of a block in all quarters, on their way before any is needed."""
    return (
        load_quarter(logits, first, offset, 0, units, total, quarter, LENGTH, LONG, BLOCK),
        load_quarter(logits, first, offset, 1, units, total, quarter, LENGTH, LONG, BLOCK),
        load_quarter(logits, first, offset, 2, units, total, quarter, LENGTH, LONG, BLOCK),
        load_quarter(logits, first, offset, 3, units, total, quarter, LENGTH, LONG, BLOCK),
    )


@triton.jit
def in_quarter(k, total):
    """A number of one quarter beside those of the others."""
    return tl.where(tl.arange(0, 4) == k, total, 0.0)


@triton.jit
def store_rows(sums, member, found):
    """Store what a program has for its rows, one in each quarter."""
    row = (member * 4 + tl.arange(0, 4)) * tl.num_programs(0) + tl.program_id(0)
    tl.store(sums + row, found)


@triton.jit
def _draw(
    logits, temperature, key, node, value, log_density,
    units, total, quarter, logits_stride, temperature_stride,
    SQUASH: tl.constexpr, LENGTH: tl.constexpr, WIDE: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    SPAN: tl.constexpr = BLOCK if LENGTH == 1 else LENGTH
    # most draws are numbered in 32 bits, in which division takes a fraction of the time
    start = tl.program_id(0).to(tl.int64 if WIDE else tl.int32) * SPAN
    warmth = tl.load(temperature + member * temperature_stride).to(tl.float32)
    log_warmth, coldness = tl.log(warmth), tl.div_rn(1.0, warmth)
    logits += member * logits_stride
    sums = tl.zeros((4,), tl.float32) + LENGTH * (log_warmth - 1.3862943611198906)  # log 4
    for offset in range(0, SPAN, BLOCK):
        first = start + offset
        held = load_four(logits, first, offset, units, total, quarter, LENGTH, LONG, BLOCK)
        four = words_beside(held[0], key, member, first + tl.arange(0, BLOCK))
        for k in tl.static_range(4):
            element, _, mask = placed(first, offset, k, units, total, quarter, LENGTH, LONG, BLOCK)
            found = (held[k] + logistic(four[k])) * coldness
            at = member * total + element
            tl.store(node + at, found, mask=mask)
            if SQUASH == "corner":
                tl.store(value + at, tanh_half(found), mask=mask)
            if SQUASH == "unit":
                inside = tl.clamp(sigmoid(found), 9.860761315262648e-32, 0.99999994, tl.PropagateNan.ALL)
                tl.store(value + at, inside, mask=mask)
            # the density of the noise is the product of its two tail probabilities
            tail = tl.abs(fraction(four[k], True))
            density = tail * (1 - tail)
            if LENGTH == 1:
                tl.store(log_density + at, log_warmth + tl.log(density), mask=mask)
            else:
                # one logarithm for four: 4 times the density lies between 2⁻³¹ and 1
                product = tl.reduce(tl.reshape(tl.where(mask, 4 * density, 1.0), (BLOCK // 4, 4)), 1, times)
                sums += in_quarter(k, tl.sum(tl.log(product), 0))
    if LENGTH > 1:
        store_rows(log_density, member, sums)


class Strip(NamedTuple):
    """How programs share a draw: each takes blocks of neighbours, in all quarters."""

    length: int
    """The length of the rows that are summed; 1 if none are, as quarters must be of whole rows."""
    block: int
    warps: int
    grid: tuple[int, int]


def strip(members: int, total: int, length: int) -> Strip:
    """The strips of a draw whose rows have so many units."""
    if length == 1 or total // length % 4:
        return Strip(1, BLOCK, 4, (triton.cdiv(quarter(total), BLOCK), members))
    programs = quarter(total) // length
    width = max(triton.next_power_of_2(length), 32)
    # one warp, which need not wait for others to sum, or more of them where programs are few
    block, warps = (min(width, BLOCK), 1) if programs * members >= BUSY else (min(width, 2 * BLOCK), width // 32)
    return Strip(length, block, min(warps, 8), (programs, members))


def draw(
    logits: Tensor, temperature: Tensor, key: Tensor, samples: int, squash: str, length: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes, values and log densities of rows of units."""
    members, units = logits.shape
    node = torch.empty((members, samples, units), dtype=torch.float32, device=logits.device)
    value = torch.empty_like(node) if squash != "none" else node.new_empty((members, 0))
    total, logits = samples * units, rows(logits)
    each = strip(members, total, length)
    log_density = node.new_empty((members, samples, units // each.length))
    if node.numel():
        _draw[each.grid](
            logits, temperature, key.contiguous(), node, value, log_density,
            units, total, quarter(total), logits.stride(0), temperature.stride(0),
            SQUASH=squash, LENGTH=each.length, WIDE=total >= 2**30, LONG=units >= each.block, BLOCK=each.block,
            num_warps=each.warps,
        )  # fmt: skip
    return node, value, summed(log_density, length // each.length)


class Tiling(NamedTuple):
    """How programs share nodes: each takes some units, and of the samples some rows at every step."""

    rows: int
    units: int
    parts: int
    """How many programs share the samples of a unit, and leave sums over parts of them."""
    steps: int
    warps: int
    grid: tuple[int, int]


def tiling(members: int, samples: int, units: int, *, sums: bool) -> Tiling:
    """The tiling of nodes: sums over many samples are in no more parts than it takes to keep the device busy."""
    elements = min(max(triton.next_power_of_2(members * samples * units // BUSY), 128), 512)
    height = min(triton.next_power_of_2(samples), 16, elements // 32)
    width = elements // height
    tall, wide = triton.cdiv(samples, height), triton.cdiv(units, width)
    parts = max(min(triton.cdiv(tall, STEPS), BUSY // (members * wide)), 1)
    steps = triton.cdiv(tall, parts) if sums else 1
    parts = triton.cdiv(tall, steps)
    return Tiling(height, width, parts, steps, elements // 128, (parts * wide, members))


@triton.jit
def corner(units, steps, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """The part of a sum that a program takes, its first rows, and its units."""
    wide = tl.cdiv(units, UNITS)
    part = tl.program_id(0) // wide
    row = part.to(tl.int64) * steps * ROWS + tl.arange(0, ROWS)
    unit = (tl.program_id(0) % wide).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    return part, row[:, None], unit[None, :]


@triton.jit
def point_of(unit, LENGTH: tl.constexpr):
    """The rows that units are in; units are numbered in 32 bits, in which division takes a fraction of the time."""
    return unit if LENGTH == 1 else (unit.to(tl.uint32) // LENGTH).to(tl.int64)


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
        num_warps=tile.warps,
    )  # fmt: skip
    return joined(by_logits, dtype)


class RowTiling(NamedTuple):
    """How programs share rows of units: each takes some rows, those of one data point if it has several samples."""

    shared: bool
    rows: int
    units: int
    """A program takes so many units at a time."""
    warps: int
    grid: tuple[int, int]


def row_tiling(members: int, samples: int, units: int, length: int) -> RowTiling:
    """The programs for rows of so many units."""
    width = min(max(triton.next_power_of_2(length), 4), TILE)
    points = units // length
    height = min(max(triton.next_power_of_2(members * samples * points // BUSY), 1), max(TILE // width, 1))
    height = min(height, triton.next_power_of_2(samples)) if samples > 1 else height
    programs = points * triton.cdiv(samples, height) if samples > 1 else triton.cdiv(points, height)
    return RowTiling(samples > 1, height, width, max(height * width // 256, 1), (programs, members))


@triton.jit
def placed_rows(samples, points, SHARED: tl.constexpr, ROWS: tl.constexpr):
    """The rows of a program, the data point of each or of all, and which of them there are."""
    number = tl.program_id(0)
    if SHARED:
        sample = (number // points).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        point = (number % points).to(tl.int64) + tl.arange(0, 1)[:, None]
        row, inside = sample * points + point, sample < samples
    else:
        row = number.to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        point, inside = row, row < points
    return row, point, inside


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


@triton.jit
def _score_rows(
    node, logits, temperature, log_density, samples, points, node_stride, logits_stride, temperature_stride,
    LENGTH: tl.constexpr, SHARED: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    row, point, inside = placed_rows(samples, points, SHARED, ROWS)
    warmth = tl.load(temperature + member * temperature_stride)
    total = tl.zeros((ROWS,), tl.float32) + LENGTH * tl.log(warmth.to(tl.float32))
    for start in range(0, LENGTH, UNITS):
        unit = start + tl.arange(0, UNITS)[None, :]
        shared, mask = (point < points) & (unit < LENGTH), inside & (unit < LENGTH)
        logit = tl.load(logits + member * logits_stride + point * LENGTH + unit, mask=shared, other=0.0).to(tl.float64)
        found = tl.load(node + member * node_stride + row * LENGTH + unit, mask=mask, other=0.0).to(tl.float64)
        size = tl.abs((warmth * found - logit).to(tl.float32))
        product = tl.reduce(tl.reshape(tl.where(mask, tl.exp(-size), 0.0), (ROWS, UNITS // 4, 4)), 2, both)
        total -= tl.sum(size, 1) + 2 * tl.sum(log1p(product), 1)
    tl.store(log_density + member * samples * points + row, total[:, None], mask=inside)


def score(node: Tensor, logits: Tensor, temperature: Tensor, length: int = 1) -> Tensor:
    """The log density of given nodes, of rows of units."""
    members, samples, units = node.shape
    log_density = torch.empty((members, samples, units // length), dtype=torch.float32, device=node.device)
    if not node.numel():
        return log_density
    node, logits = rows(node), rows(logits)
    strides = node.stride(0), logits.stride(0), temperature.stride(0)
    if length == 1:
        tile = tiling(members, samples, units, sums=False)
        _score[tile.grid](
            node, logits, temperature, log_density, units, samples, *strides,
            ROWS=tile.rows, UNITS=tile.units, num_warps=tile.warps,
        )  # fmt: skip
    else:
        own = row_tiling(members, samples, units, length)
        _score_rows[own.grid](
            node, logits, temperature, log_density, samples, units // length, *strides,
            LENGTH=length, SHARED=own.shared, ROWS=own.rows, UNITS=own.units, num_warps=own.warps,
        )  # fmt: skip
    return log_density


@triton.jit
def _score_backward(
    by, node, logits, temperature, by_node, by_logits, units, samples, parts, steps,
    by_member, by_sample, by_point, node_stride, logits_stride, temperature_stride,
    NODE: tl.constexpr, LOGITS: tl.constexpr, LENGTH: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    part, row, unit = corner(units, steps, ROWS, UNITS)
    by += member * by_member + point_of(unit, LENGTH) * by_point
    warmth = tl.load(temperature + member * temperature_stride)
    logit = tl.load(logits + member * logits_stride + unit, mask=unit < units, other=0.0).to(tl.float64)
    total = tl.zeros((ROWS, UNITS), tl.float32)
    for _ in range(steps):
        mask = (row < samples) & (unit < units)
        found = tl.load(node + member * node_stride + row * units + unit, mask=mask, other=0.0).to(tl.float64)
        pull = tl.load(by + row * by_sample, mask=mask, other=0.0).to(tl.float32)
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
    by: Tensor, node: Tensor, logits: Tensor, temperature: Tensor, needs_node: bool, needs_logits: bool, length: int = 1
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
        NODE=needs_node, LOGITS=needs_logits, LENGTH=length, ROWS=tile.rows, UNITS=tile.units, num_warps=tile.warps,
    )  # fmt: skip
    return by_node, joined(by_logits, dtype) if needs_logits else torch.empty_like(none)
