"""Draws and scores of logistic variables in one pass each, and their gradients in another.

A node is here the unbounded variable before squashing.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import row as binary
from .launch import Launched
from .layout import partial_sums, row_sums, rows, sum_parts
from .native import LARGEST_BELOW_ONE, SMALLEST, difference, exp, log, reciprocal, sigmoid, tanh_half, times
from .philox import drawing, fraction, logistic, parts_of, words_beside


@triton.jit
def squashed(node, SQUASH: tl.constexpr):
    """Return the squashed value of a node. On the unit interval it is clamped away from 0 and 1."""
    if SQUASH == "corner":
        value = tanh_half(node)
    elif SQUASH == "bit":
        value = (node >= 0).to(tl.float32)
    else:
        value = tl.clamp(sigmoid(node), SMALLEST, LARGEST_BELOW_ONE, tl.PropagateNan.ALL)
    return value


@drawing
def _draw(
    logits, temperature, key, nonce, node, value, log_density, units, total, quarter, logits_stride, temperature_stride,
    SQUASH: tl.constexpr, WIDE: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0).to(tl.int64 if WIDE else tl.int32) * BLOCK
    lam = tl.load(temperature + member * temperature_stride).to(tl.float32)
    inverse = tl.div_rn(1.0, lam)
    near = tl.maximum(lam, 8.673617379884035e-19)  # 2⁻⁶⁰, so that densities are normal numbers
    far = tl.log(tl.div_rn(lam, near))
    held = binary.load_four(logits + member * logits_stride, first, units, total, quarter, LONG, BLOCK)
    four = words_beside(held[0], key, member, first + tl.arange(0, BLOCK), nonce)
    for k in tl.static_range(4):
        element, _, mask = binary.placed(first, k, units, total, quarter, LONG, BLOCK)
        drawn_node = (held[k] + logistic(four[k])) * inverse
        at = member * total + element
        tl.store(node + at, drawn_node, mask=mask)
        if SQUASH != "none":
            tl.store(value + at, squashed(drawn_node, SQUASH), mask=mask)
        # the density of the noise is the product of its two tail probabilities, which sum to 1; the temperature is
        # multiplied before the logarithm, since two logarithms would cancel and keep their errors
        tail = tl.abs(fraction(four[k], True))
        tl.store(log_density + at, log(near * tl.fma(-tail, tail, tail)) + far, mask=mask)


@triton.jit
def _draw_piece(
    logit, word, own, offset, k, member,
    SQUASH: tl.constexpr, LENGTH: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Draw a piece of a row in one quarter; return the noise's part of its log density, one partial sum per lane."""
    inverse, node, value = own
    drawn = logistic(word)
    drawn_node = (logit + drawn) * inverse
    binary.store_piece(node, drawn_node, offset, k, member, LENGTH, BLOCK, EVEN)
    if SQUASH != "none":
        binary.store_piece(value, squashed(drawn_node, SQUASH), offset, k, member, LENGTH, BLOCK, EVEN)
    # the density of the noise is the product of its two tail probabilities, whose ratio is the noise
    size, rest = tl.abs(drawn), 1 - tl.abs(fraction(word, True))
    if not EVEN:
        inside = offset + tl.arange(0, BLOCK) < LENGTH
        size, rest = tl.where(inside, size, 0.0), tl.where(inside, rest, 1.0)
    if BLOCK > LANES:
        size = tl.sum(tl.reshape(size, (LANES, BLOCK // LANES)), 1)
        rest = tl.reduce(tl.reshape(rest, (LANES, BLOCK // LANES)), 1, times)
    return 2 * log(rest) - size


@drawing
def _draw_rows(
    logits, temperature, key, nonce, node, value, log_density, points, step, logits_stride, temperature_stride,
    SQUASH: tl.constexpr, SAME: tl.constexpr, WIDE: tl.constexpr,
    LENGTH: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    lam = tl.load(temperature + member * temperature_stride).to(tl.float32)
    own = tl.div_rn(1.0, lam), node, value
    total = binary.draw_rows(
        _draw_piece, own, logits + member * logits_stride, key, nonce, member, points, step,
        SQUASH, SAME, WIDE, LENGTH, LANES, BLOCK, WHOLE, REST,
    )  # fmt: skip
    binary.store_rows(log_density, member, total, LENGTH * tl.log(lam))


def draw(
    logits: Tensor, temperature: Tensor, key: Tensor | tuple[int, int], samples: int, squash: str, length: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return nodes, their squashed values, and log densities summed over rows of `length` units."""
    members, units = logits.shape
    node = logits.new_empty(members, samples, units, dtype=torch.float32)
    value = torch.empty_like(node) if squash != "none" else node.new_empty(members, 0)
    by_rows = binary.has_quarters(samples * units, length)
    log_density = node.new_empty(members, samples, units // length if by_rows else units)
    if node.numel():
        logits, own = rows(logits), binary.draws(members, samples, units, length if by_rows else 1)
        given = logits, temperature, *parts_of(key), node, value, log_density
        numbers = *own.counts, logits.stride(0), temperature.stride(0)
        if by_rows:
            _draw_rows[own.grid](*given, *numbers, SQUASH=squash, **own.options)
        else:
            _draw[own.grid](*given, *numbers, SQUASH=squash, **own.options)
    return node, value, row_sums(log_density, 1 if by_rows else length)


@Launched
def _draw_backward(
    by_node, by_value, node, temperature, by_logits, units, samples, parts, steps,
    node_member, node_sample, node_unit, value_member, value_sample, value_unit, temperature_stride,
    NODE: tl.constexpr, VALUE: tl.constexpr, SQUASH: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    part, row, unit = binary.corner(units, steps, ROWS, UNITS)
    by_node += member * node_member + row * node_sample + unit * node_unit
    by_value += member * value_member + row * value_sample + unit * value_unit
    node += (member * samples + row) * units + unit
    left = tl.where(unit < units, samples - row, 0)
    total = tl.zeros((ROWS, UNITS), tl.float32)
    for _ in range(steps):
        mask = left > 0
        if NODE:
            total += tl.load(by_node, mask=mask, other=0.0).to(tl.float32)
        if VALUE:
            small = exp(-tl.abs(tl.load(node, mask=mask, other=0.0)))
            share = reciprocal(1 + small)
            slope = small * share * share * (2 if SQUASH == "corner" else 1)
            total += slope * tl.load(by_value, mask=mask, other=0.0).to(tl.float32)
        by_node += ROWS * node_sample
        by_value += ROWS * value_sample
        node += ROWS * units
        left -= ROWS
    gradient = tl.sum(total, 0, keep_dims=True) / tl.load(temperature + member * temperature_stride).to(tl.float32)
    tl.store(by_logits + (member * parts + part) * units + unit, gradient, mask=unit < units)


def draw_backward(by: Any, needs: Any, inputs: Any, outputs: Any) -> tuple[Tensor | None]:
    """Return the gradient of the logits, summed over all samples."""
    (logits, temperature, _, _, squash, _), node = inputs, outputs[0]
    by_node, by_value = by[0], None if squash == "none" else by[1]
    if by_node is None and by_value is None:
        return (None,)
    (members, samples, units), dtype = node.shape, logits.dtype
    if not node.numel():
        return (torch.zeros_like(logits),)
    tile, node = binary.tiling(members, samples, units, sums=True), node.contiguous()
    by_both = [node if gradient is None else gradient for gradient in (by_node, by_value)]
    by_logits = partial_sums(tile.parts, (members, units), node, dtype)
    _draw_backward[tile.grid](
        *by_both, node, temperature, by_logits, units, samples, tile.parts, tile.steps,
        *by_both[0].stride(), *by_both[1].stride(), temperature.stride(0),
        NODE=by_node is not None, VALUE=by_value is not None, SQUASH=squash, ROWS=tile.rows, UNITS=tile.units,
        num_warps=tile.warps,
    )  # fmt: skip
    return (sum_parts(by_logits, tile.parts, dtype),)


@Launched
def _score(
    node, logits, temperature, log_density, units, samples, node_stride, logits_stride, temperature_stride,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    _, row, unit = binary.corner(units, 1, ROWS, UNITS)
    mask = (row < samples) & (unit < units)
    lam = tl.load(temperature + member * temperature_stride)
    logit = tl.load(logits + member * logits_stride + unit, mask=unit < units, other=0.0).to(tl.float32)
    value = tl.load(node + member * node_stride + row * units + unit, mask=mask, other=0.0).to(tl.float32)
    size = tl.abs(difference(lam, value, logit))
    # the absolute value is at least log 4, so that the log of the sum loses nothing; large values are rounded once
    scored = (tl.log(lam.to(tl.float32)) - 2 * log(1 + exp(-size))) - size
    tl.store(log_density + (member * samples + row) * units + unit, scored, mask=mask)


@triton.jit
def _score_piece(
    HOW: tl.constexpr, given, offset, LENGTH: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """Return the log density of a piece of each row at temperature 1, as one partial sum per lane."""
    node, logits, row, point, inside, known, lam = given
    value = binary.load_stretch(node, row, inside, offset, 0.0, LENGTH, BLOCK, EVEN)
    logit = binary.load_stretch(logits, point, known, offset, float("inf"), LENGTH, BLOCK, EVEN)
    size = tl.abs(difference(lam, value, logit))
    total = 1 + exp(-size)
    if not EVEN:
        size = tl.where(offset + tl.arange(0, BLOCK)[None, :] < LENGTH, size, 0.0)
    if BLOCK > LANES:
        size = tl.sum(tl.reshape(size, (row.shape[0], LANES, BLOCK // LANES)), 2)
        total = tl.reduce(tl.reshape(total, (row.shape[0], LANES, BLOCK // LANES)), 2, times)
    return (-size - 2 * log(total),)


@Launched
def _score_rows(
    node, logits, temperature, log_density, samples, points, node_stride, logits_stride, temperature_stride,
    LENGTH: tl.constexpr, SHARED: tl.constexpr, ROWS: tl.constexpr,
    LANES: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    row, point, inside = binary.placed_rows(samples, points, SHARED, ROWS)
    known = point < points
    lam = tl.load(temperature + member * temperature_stride)
    node += member * node_stride
    logits += member * logits_stride
    given, zero = (node, logits, row, point, inside, known, lam), (tl.zeros((ROWS, LANES), tl.float32),)
    (total,) = binary.over_row(_score_piece, None, given, zero, LENGTH, LANES, BLOCK, WHOLE, REST)
    density = tl.sum(total, 1, keep_dims=True) + LENGTH * tl.log(lam.to(tl.float32))
    tl.store(log_density + member * samples * points + row, density, mask=inside)


def score(node: Tensor, logits: Tensor, temperature: Tensor, length: int = 1) -> Tensor:
    """Return the log density of given nodes, summed over rows of `length` units."""
    members, samples, units = node.shape
    log_density = node.new_empty(members, samples, units // length, dtype=torch.float32)
    if node.numel():
        node, logits, own = rows(node), rows(logits), binary.scores(members, samples, units, length)
        given = node, logits, temperature, log_density, *own.counts
        strides = node.stride(0), logits.stride(0), temperature.stride(0)
        if length == 1:
            _score[own.grid](*given, *strides, **own.options)
        else:
            _score_rows[own.grid](*given, *strides, **own.options)
    return log_density


@Launched
def _score_backward(
    by, node, logits, temperature, by_node, by_logits, units, samples, parts, steps,
    by_member, by_sample, by_point, node_stride, logits_stride, temperature_stride,
    NODE: tl.constexpr, LOGITS: tl.constexpr, LENGTH: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    part, row, unit = binary.corner(units, steps, ROWS, UNITS)
    by += member * by_member + binary.point_of(unit, LENGTH) * by_point
    node += member * node_stride + row * units + unit
    by_node += (member * samples + row) * units + unit
    end = tl.where(unit < units, samples, 0)
    lam = tl.load(temperature + member * temperature_stride)
    logit = tl.load(logits + member * logits_stride + unit, mask=unit < units, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, UNITS), tl.float32)
    for _ in range(steps):
        mask = row < end
        value = tl.load(node, mask=mask, other=0.0).to(tl.float32)
        pull = tl.load(by + row * by_sample, mask=mask, other=0.0).to(tl.float32)
        pull *= tanh_half(difference(lam, value, logit))
        if NODE:
            tl.store(by_node, -lam.to(tl.float32) * pull, mask=mask)
        if LOGITS:
            total += pull
        node += ROWS * units
        by_node += ROWS * units
        row += ROWS
    if LOGITS:
        value = tl.sum(total, 0, keep_dims=True)
        tl.store(by_logits + (member * parts + part) * units + unit, value, mask=unit < units)


def score_backward(by: Any, needs: Any, inputs: Any, outputs: Any) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the nodes and of the logits, the latter summed over samples (None if not needed)."""
    (pull,), (needs_node, needs_logits, *_), (node, logits, temperature, length) = by, needs, inputs
    (members, samples, units), dtype = node.shape, logits.dtype
    if not node.numel():
        return torch.empty_like(node), torch.zeros_like(logits)
    node, logits, tile = rows(node), rows(logits), binary.tiling(members, samples, units, sums=needs_logits)
    by_node = node.new_empty(members, samples, units if needs_node else 0)
    by_logits = partial_sums(tile.parts, (members, units), node, dtype) if needs_logits else by_node
    _score_backward[tile.grid](
        pull, node, logits, temperature, by_node, by_logits, units, samples, tile.parts, tile.steps,
        *pull.stride(), node.stride(0), logits.stride(0), temperature.stride(0),
        NODE=needs_node, LOGITS=needs_logits, LENGTH=length, ROWS=tile.rows, UNITS=tile.units, num_warps=tile.warps,
    )  # fmt: skip
    return by_node, sum_parts(by_logits, tile.parts, dtype) if needs_logits else None
