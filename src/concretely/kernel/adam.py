"""Adam for many tensors in one launch, and the guard against gradients that are not finite."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tile import ceil_div

BLOCK = 1024


@triton.jit
def _finite(tensors, sizes, out, BLOCK: tl.constexpr):
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
def _guard(finite, loss, step, rate, sums, first_nonfinite, out, blocks, BLOCK: tl.constexpr):
    member = tl.program_id(0)
    value = tl.load(loss + member)
    tl.store(sums + 4 * member, tl.load(sums + 4 * member) - value.to(tl.float64))
    tl.store(sums + 4 * member + 1, tl.load(sums + 4 * member + 1) + 1)
    wrong = tl.where(tl.abs(value) < float("inf"), 0, 1)
    for start in range(0, blocks, BLOCK):
        block = start + tl.arange(0, BLOCK)
        fine = tl.load(finite + member * blocks + block, mask=block < blocks, other=1)
        wrong += tl.sum((fine == 0).to(tl.int32))
    first = tl.load(first_nonfinite + member)
    first = tl.where((first < 0) & (wrong > 0), tl.load(step + member), first)
    tl.store(first_nonfinite + member, first)
    tl.store(out + member, tl.where(first < 0, tl.load(rate + member), 0.0))


def guard_(
    sums: Tensor, first_nonfinite: Tensor, tensors: list[Tensor], loss: Tensor, step: Tensor, rate: Tensor
) -> Tensor:
    """Log a step and return the learning rates, which are zero for members with a loss or tensor that is not finite."""
    sizes = [tensor[0].numel() for tensor in tensors]
    blocks, members = sum(ceil_div(size, BLOCK) for size in sizes), len(loss)
    finite = loss.new_empty((members, blocks), dtype=torch.int8)
    _finite[blocks, members](tuple(tensor.contiguous() for tensor in tensors), tuple(sizes), finite, BLOCK=BLOCK)
    allowed = torch.empty_like(rate)
    _guard[members,](finite, loss.contiguous(), step, rate, sums, first_nonfinite, allowed, blocks, BLOCK=BLOCK)
    return allowed


@triton.jit
def _of(numbers, member):
    return tl.load(numbers + member).to(tl.float32)


@triton.jit
def _move(
    parameter, gradient, first, second, at, mask, lr, decay, mean, spread,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    # evicted first, since they are not needed again in this step: gradients need the cache
    p = tl.load(parameter + at, mask=mask, other=0.0, eviction_policy="evict_first")
    m = tl.load(first + at, mask=mask, other=0.0, eviction_policy="evict_first")
    v = tl.load(second + at, mask=mask, other=0.0, eviction_policy="evict_first")
    slope = tl.load(gradient + at, mask=mask, other=0.0) + decay * p
    m = BETA1 * m + (1 - BETA1) * slope
    v = BETA2 * v + (1 - BETA2) * slope * slope
    moved = p - lr * (m * mean) / (tl.sqrt(v * spread) + EPSILON)
    tl.store(parameter + at, moved, mask=mask, eviction_policy="evict_first")
    tl.store(first + at, m, mask=mask, eviction_policy="evict_first")
    tl.store(second + at, v, mask=mask, eviction_policy="evict_first")


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
                _move(
                    parameters[t], gradients[t], firsts[t], seconds[t], at, mask,
                    lr, decays[t] * shrink, steady, wobble, BETA1, BETA2, EPSILON,
                )  # fmt: skip
            block -= blocks


def adam_(
    parameters: list[Tensor], firsts: list[Tensor], seconds: list[Tensor], gradients: list[Tensor], decays: list[bool],
    rate: Tensor, decay: Tensor, mean: Tensor, spread: Tensor, beta1: float, beta2: float, epsilon: float,
) -> None:  # fmt: skip
    """Update parameters by Adam, in place. `decays` says which of the parameters have an L2 penalty.

    Gradients and moments have the memory format of their parameters, which leaves no gaps.
    """
    sizes = [parameter[0].numel() for parameter in parameters]
    grid = (sum(ceil_div(size, BLOCK) for size in sizes), len(parameters[0]))
    _adam[grid](
        tuple(parameters), tuple(gradients), tuple(firsts), tuple(seconds),
        tuple(sizes), tuple(float(has_decay) for has_decay in decays), rate, decay, mean, spread,
        BETA1=beta1, BETA2=beta2, EPSILON=epsilon, BLOCK=BLOCK,
    )  # fmt: skip
