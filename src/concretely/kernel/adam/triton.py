"""Adam in one pass: for many tensors in one launch, and for a weight whose gradient is left as its factors."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..affine.triton import turned_product
from ..operator import rows
from .naive import BETA1, BETA2, EPSILON, Book, Pace

BLOCK = 1024
WIDE, DEEP, STEP, WARPS, STAGES = 64, 64, 64, 4, 1
"""The tile of a weight that one program moves, how many rows it multiplies at once, and how."""


@triton.jit
def _sound(tensors, sizes, out, BLOCK: tl.constexpr):
    member, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    place, finite = block, True
    for t in tl.static_range(len(sizes)):
        blocks = tl.cdiv(sizes[t], BLOCK)
        if (block >= 0) & (block < blocks):
            at = block * BLOCK + tl.arange(0, BLOCK)
            value = tl.load(tensors[t] + member * sizes[t] + at, mask=at < sizes[t], other=0.0)
            finite = tl.sum((tl.abs(value) < float("inf")).to(tl.int32)) == BLOCK
        block -= blocks
    tl.store(out + member * tl.num_programs(0) + place, finite)


@triton.jit
def _allowed(sound, loss, step, rate, sums, faults, out, blocks, BLOCK: tl.constexpr):
    member = tl.program_id(0)
    found = tl.load(loss + member)
    tl.store(sums + 4 * member, tl.load(sums + 4 * member) - found.to(tl.float64))
    tl.store(sums + 4 * member + 1, tl.load(sums + 4 * member + 1) + 1)
    faulty = tl.where(tl.abs(found) < float("inf"), 0, 1)
    for start in range(0, blocks, BLOCK):
        block = start + tl.arange(0, BLOCK)
        fine = tl.load(sound + member * blocks + block, mask=block < blocks, other=1)
        faulty += tl.sum((fine == 0).to(tl.int32))
    fault = tl.load(faults + member)
    fault = tl.where((fault < 0) & (faulty > 0), tl.load(step + member), fault)
    tl.store(faults + member, fault)
    tl.store(out + member, tl.where(fault < 0, tl.load(rate + member), 0.0))


def allowed_(book: Book, tensors: list[Tensor], loss: Tensor, step: Tensor, pace: Pace) -> Pace:
    """Enter a step, and say how far members may move."""
    sizes = [each[0].numel() for each in tensors]
    blocks, members = sum(triton.cdiv(size, BLOCK) for size in sizes), len(loss)
    sound = torch.empty((members, blocks), dtype=torch.int8, device=loss.device)
    _sound[blocks, members](tuple(each.contiguous() for each in tensors), tuple(sizes), sound, BLOCK=BLOCK)
    rate = torch.empty_like(pace.rate)
    _allowed[members,](sound, loss.contiguous(), step, pace.rate, book.sums, book.faults, rate, blocks, BLOCK=BLOCK)
    return pace._replace(rate=rate)


@triton.jit
def _of(pace, member):
    return tl.load(pace + member).to(tl.float32)


@triton.jit
def _read(parameter, first, second, at, mask):
    p = tl.load(parameter + at, mask=mask, other=0.0)
    m = tl.load(first + at, mask=mask, other=0.0)
    return p, m, tl.load(second + at, mask=mask, other=0.0)


@triton.jit
def _move(
    parameter, first, second, at, mask, p, m, v, slope, lr, decay, mean, spread,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    slope += decay * p
    m = BETA1 * m + (1 - BETA1) * slope
    v = BETA2 * v + (1 - BETA2) * slope * slope
    tl.store(parameter + at, p - lr * (m * mean) / (tl.sqrt(v * spread) + EPSILON), mask=mask)
    tl.store(first + at, m, mask=mask)
    tl.store(second + at, v, mask=mask)


@triton.jit
def _adam(
    parameters, gradients, firsts, seconds, sizes, decays, rate, decay, mean, spread,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    lr, shrink, steady, wobble = _of(rate, member), _of(decay, member), _of(mean, member), _of(spread, member)
    if lr != 0:
        for t in tl.static_range(len(sizes)):
            blocks = tl.cdiv(sizes[t], BLOCK)
            if (block >= 0) & (block < blocks):
                at = block * BLOCK + tl.arange(0, BLOCK)
                mask = at < sizes[t]
                at += member * sizes[t]
                p, m, v = _read(parameters[t], firsts[t], seconds[t], at, mask)
                slope = tl.load(gradients[t] + at, mask=mask, other=0.0)
                _move(
                    parameters[t], firsts[t], seconds[t], at, mask, p, m, v, slope,
                    lr, decays[t] * shrink, steady, wobble, BETA1, BETA2, EPSILON,
                )  # fmt: skip
            block -= blocks


def adam_(
    parameters: list[Tensor], gradients: list[Tensor], firsts: list[Tensor], seconds: list[Tensor],
    pace: Pace, decays: list[bool],
) -> None:  # fmt: skip
    """Move all parameters; whether a parameter decays is said for each."""
    sizes = [each[0].numel() for each in parameters]
    grid = (sum(triton.cdiv(size, BLOCK) for size in sizes), len(parameters[0]))
    _adam[grid](
        tuple(parameters), tuple(each.contiguous() for each in gradients), tuple(firsts), tuple(seconds),
        tuple(sizes), tuple(float(each) for each in decays), *pace,
        BETA1=BETA1, BETA2=BETA2, EPSILON=EPSILON, BLOCK=BLOCK,
    )  # fmt: skip


@triton.jit
def _adam_of_factors(
    x, by_total, weight, w_first, w_second, bias, b_first, b_second, rate, decay, mean, spread, high, x_stride,
    wide: tl.constexpr, deep: tl.constexpr, PRODUCT: tl.constexpr,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr,
    WIDE: tl.constexpr, DEEP: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    member, place = tl.program_id(1).to(tl.int64), tl.program_id(0)
    lr, shrink, steady, wobble = _of(rate, member), _of(decay, member), _of(mean, member), _of(spread, member)
    if lr != 0:
        columns = tl.cdiv(deep, DEEP)
        j = place // columns * WIDE + tl.arange(0, WIDE)
        k = place % columns * DEEP + tl.arange(0, DEEP)
        weight += member * wide * deep
        w_first += member * wide * deep
        w_second += member * wide * deep
        at, inside = j[:, None] * deep + k[None, :], (j < wide)[:, None] & (k < deep)[None, :]
        p, m, v = _read(weight, w_first, w_second, at, inside)  # under way while the factors are multiplied
        out, into = by_total + member * high * wide + j[None, :], x + member * x_stride + k[None, :]
        total = tl.zeros((WIDE, DEEP), tl.float32)
        sums = tl.zeros((WIDE,), tl.float32)
        for start in range(0, high, STEP):
            i = (start + tl.arange(0, STEP))[:, None]
            a = tl.load(out + i * wide, mask=(i < high) & (j < wide)[None, :], other=0.0)
            b = tl.load(into + i * deep, mask=(i < high) & (k < deep)[None, :], other=0.0)
            total = turned_product(a, b, total, PRODUCT)
            sums += tl.sum(a, 0)
        _move(weight, w_first, w_second, at, inside, p, m, v, total, lr, shrink, steady, wobble, BETA1, BETA2, EPSILON)
        if place % columns == 0:
            bp, bm, bv = _read(bias, b_first, b_second, member * wide + j, j < wide)
            _move(
                bias, b_first, b_second, member * wide + j, j < wide, bp, bm, bv, sums, lr, 0.0, steady, wobble,
                BETA1, BETA2, EPSILON,
            )  # fmt: skip


def adam_of_factors_(
    x: Tensor, by_total: Tensor, weight: tuple[Tensor, Tensor, Tensor], bias: tuple[Tensor, Tensor, Tensor],
    pace: Pace, product: str,
) -> None:  # fmt: skip
    """Move a weight, which decays, and a bias, each given with its moments."""
    (members, high, deep), wide = x.shape, by_total.shape[2]
    x = rows(x)
    grid = (triton.cdiv(wide, WIDE) * triton.cdiv(deep, DEEP), members)
    _adam_of_factors[grid](
        x, by_total.contiguous(), *weight, *bias, *pace, high, x.stride(0), wide, deep,
        PRODUCT=product, BETA1=BETA1, BETA2=BETA2, EPSILON=EPSILON, WIDE=WIDE, DEEP=DEEP, STEP=STEP,
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
