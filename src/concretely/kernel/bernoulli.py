"""Draws and scores of binary units in one pass each, and the gradient of their log masses in another."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import row as binary
from .launch import Launched
from .layout import partial_sums, row_sums, rows, sum_parts
from .native import both, exp, log1p, reciprocal, rough_log1p, sigmoid
from .philox import drawing, parts_of, words_beside


@triton.jit
def log_sigmoid(node):
    """Return the logarithm of the sigmoid."""
    return tl.where(node < 0, node, 0.0) - log1p(exp(-tl.abs(node)))


@triton.jit
def sign(value, SQUASH: tl.constexpr):
    """Return +1 for the upper state and -1 for the lower."""
    return value if SQUASH == "corner" else 2 * value - 1


@triton.jit
def is_turned(logit, word):
    """Return whether noise leads to the less likely state. This compares tail probabilities, without a logarithm."""
    small = exp(-tl.abs(logit))
    words = (small * reciprocal(1 + small) * 4294967296.0 + 0.5).to(
        tl.uint32
    )  # the number of words, of all 2³², that lead to this state
    # words next to 0 have the largest noise and, on the other side of 0, the smallest
    return (word.to(tl.int32, bitcast=True) ^ tl.where(logit >= 0, -1, 0)).to(tl.uint32, bitcast=True) < words


@triton.jit
def state_of(logit, turned, SQUASH: tl.constexpr):
    """Return the more likely state or, if `turned`, the other."""
    LOWER: tl.constexpr = -1.0 if SQUASH == "corner" else 0.0
    return tl.where(turned, tl.where(logit >= 0, LOWER, 1.0), tl.where(logit >= 0, 1.0, LOWER))


@drawing
def _draw(
    logits, key, nonce, value, log_mass, units, total, quarter, logits_stride,
    SQUASH: tl.constexpr, WIDE: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0).to(tl.int64 if WIDE else tl.int32) * BLOCK
    held = binary.load_four(logits + member * logits_stride, first, units, total, quarter, LONG, BLOCK)
    four = words_beside(held[0], key, member, first + tl.arange(0, BLOCK), nonce)
    for k in tl.static_range(4):
        element, _, mask = binary.placed(first, k, units, total, quarter, LONG, BLOCK)
        turned, size = is_turned(held[k], four[k]), tl.abs(held[k])
        at = member * total + element
        tl.store(value + at, state_of(held[k], turned, SQUASH), mask=mask)
        tl.store(log_mass + at, log_sigmoid(tl.where(turned, -size, size)), mask=mask)


@triton.jit
def _draw_piece(
    logit, word, value, offset, k, member,
    SQUASH: tl.constexpr, LENGTH: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Draw a piece of a row in one quarter, and return its log mass as one partial sum per lane."""
    turned, size = is_turned(logit, word), tl.abs(logit)
    binary.store_piece(value, state_of(logit, turned, SQUASH), offset, k, member, LENGTH, BLOCK, EVEN)
    lost, small = tl.where(turned, size, 0.0), exp(-size)
    if not EVEN:
        inside = offset + tl.arange(0, BLOCK) < LENGTH
        lost, small = tl.where(inside, lost, 0.0), tl.where(inside, small, 0.0)
    if BLOCK > LANES:  # one logarithm for all units of a thread
        lost = tl.sum(tl.reshape(lost, (LANES, BLOCK // LANES)), 1)
        small = tl.reduce(tl.reshape(small, (LANES, BLOCK // LANES)), 1, both)
    return -lost - rough_log1p(small)


@drawing
def _draw_rows(
    logits, key, nonce, value, log_mass, points, step, logits_stride,
    SQUASH: tl.constexpr, SAME: tl.constexpr, WIDE: tl.constexpr,
    LENGTH: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    total = binary.draw_rows(
        _draw_piece, value, logits + member * logits_stride, key, nonce, member, points, step,
        SQUASH, SAME, WIDE, LENGTH, LANES, BLOCK, WHOLE, REST,
    )  # fmt: skip
    binary.store_rows(log_mass, member, total, 0.0)


def draw(
    logits: Tensor, key: Tensor | tuple[int, int], samples: int, squash: str, length: int = 1
) -> tuple[Tensor, Tensor]:
    """Draw states; return them and their log masses, summed over rows of `length` units."""
    members, units = logits.shape
    value = logits.new_empty(members, samples, units, dtype=torch.float32)
    by_rows = binary.has_quarters(samples * units, length)
    log_mass = value.new_empty(members, samples, units // length if by_rows else units)
    if value.numel():
        logits, own = rows(logits), binary.draws(members, samples, units, length if by_rows else 1)
        given = logits, *parts_of(key), value, log_mass, *own.counts, logits.stride(0)
        if by_rows:
            _draw_rows[own.grid](*given, SQUASH=squash, **own.options)
        else:
            _draw[own.grid](*given, SQUASH=squash, **own.options)
    return value, row_sums(log_mass, 1 if by_rows else length)


@Launched
def _score(
    value, logits, log_mass, units, samples, value_stride, logits_stride,
    SQUASH: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    _, row, unit = binary.corner(units, 1, ROWS, UNITS)
    mask = (row < samples) & (unit < units)
    logit = tl.load(logits + member * logits_stride + unit, mask=unit < units, other=0.0).to(tl.float32)
    state = tl.load(value + member * value_stride + row * units + unit, mask=mask, other=0.0).to(tl.float32)
    tl.store(log_mass + (member * samples + row) * units + unit, log_sigmoid(sign(state, SQUASH) * logit), mask=mask)


@triton.jit
def _score_piece(
    SQUASH: tl.constexpr, given, offset,
    LENGTH: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Return two parts of the log mass of a piece of each row: one that depends on states, one on logits alone."""
    value, logits, row, point, inside, known = given
    state = binary.load_stretch(value, row, inside, offset, 0.0, LENGTH, BLOCK, EVEN)
    logit = binary.load_stretch(logits, point, known, offset, 0.0, LENGTH, BLOCK, EVEN)
    lost, small = tl.minimum(sign(state, SQUASH) * logit, 0.0), exp(-tl.abs(logit))
    if not EVEN:
        small = tl.where(offset + tl.arange(0, BLOCK)[None, :] < LENGTH, small, 0.0)
    if BLOCK > LANES:
        lost = tl.sum(tl.reshape(lost, (row.shape[0], LANES, BLOCK // LANES)), 2)
        small = tl.reduce(tl.reshape(small, (point.shape[0], LANES, BLOCK // LANES)), 2, both)
    return lost, rough_log1p(small)


@Launched
def _score_rows(
    value, logits, log_mass, samples, points, value_stride, logits_stride,
    SQUASH: tl.constexpr, LENGTH: tl.constexpr, SHARED: tl.constexpr, ROWS: tl.constexpr,
    LANES: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    row, point, inside = binary.placed_rows(samples, points, SHARED, ROWS)
    known = point < points
    value += member * value_stride
    logits += member * logits_stride
    zero = tl.zeros((ROWS, LANES), tl.float32), tl.zeros((1 if SHARED else ROWS, LANES), tl.float32)
    given = value, logits, row, point, inside, known
    total, common = binary.over_row(_score_piece, SQUASH, given, zero, LENGTH, LANES, BLOCK, WHOLE, REST)
    rows = tl.sum(total - common, 1, keep_dims=True)
    tl.store(log_mass + member * samples * points + row, rows, mask=inside)


def score(value: Tensor, logits: Tensor, squash: str, length: int = 1) -> Tensor:
    """Return the log mass of given states, summed over rows of `length` units."""
    members, samples, units = value.shape
    log_mass = value.new_empty(members, samples, units // length, dtype=torch.float32)
    if value.numel():
        value, logits, own = rows(value), rows(logits), binary.scores(members, samples, units, length)
        given = value, logits, log_mass, *own.counts, value.stride(0), logits.stride(0)
        if length == 1:
            _score[own.grid](*given, SQUASH=squash, **own.options)
        else:
            _score_rows[own.grid](*given, SQUASH=squash, **own.options)
    return log_mass


@Launched
def _backward(
    by, value, logits, by_logits, units, samples, parts, steps,
    by_member, by_sample, by_point, value_stride, logits_stride,
    LENGTH: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    part, row, unit = binary.corner(units, steps, ROWS, UNITS)
    by += member * by_member + binary.point_of(unit, LENGTH) * by_point
    value += member * value_stride + row * units + unit
    end = tl.where(unit < units, samples, 0)
    logit = tl.load(logits + member * logits_stride + unit, mask=unit < units, other=0.0).to(tl.float32)
    # the derivative is the probability of the other state
    upper, lower = sigmoid(-logit), -sigmoid(logit)
    total = tl.zeros((ROWS, UNITS), tl.float32)
    for _ in range(steps):
        mask = row < end
        state = tl.load(value, mask=mask, other=0.0).to(tl.float32)
        pull = tl.load(by + row * by_sample, mask=mask, other=0.0).to(tl.float32)
        total += pull * tl.where(state > 0, upper, lower)
        value += ROWS * units
        row += ROWS
    summed = tl.sum(total, 0, keep_dims=True)
    tl.store(by_logits + (member * parts + part) * units + unit, summed, mask=unit < units)


def _gradient(by: Tensor, value: Tensor, logits: Tensor, squash: str, length: int) -> Tensor:
    members, samples, units = value.shape
    if not value.numel():
        return torch.zeros_like(logits)
    dtype, tile = logits.dtype, binary.tiling(members, samples, units, sums=True)
    value, logits, by_logits = rows(value), rows(logits), partial_sums(tile.parts, (members, units), value, dtype)
    _backward[tile.grid](
        by, value, logits, by_logits, units, samples, tile.parts, tile.steps,
        *by.stride(), value.stride(0), logits.stride(0),
        LENGTH=length, ROWS=tile.rows, UNITS=tile.units, num_warps=tile.warps,
    )  # fmt: skip
    return sum_parts(by_logits, tile.parts, dtype)


draw_backward, score_backward = binary.gradients_of_mass(_gradient)
