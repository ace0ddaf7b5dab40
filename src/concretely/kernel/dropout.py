"""Inputs times a relaxed mask of mean 1 in one launch, and their gradients in another."""

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import row as binary
from .gate import words_at
from .launch import Launched
from .native import exp, reciprocal, sigmoid
from .philox import logistic
from .tile import ceil_div

BLOCK = 1024
FEW = 2**14
"""Up to this number of inputs, one program computes the gradient of the logit, so that no launch adds parts."""
STEP = tl.constexpr(0.5)
"""The step of the trapezoidal rule of `functional.integral.mean_sigmoid`, whose error is below that of float32."""
LAST = tl.constexpr(84)
"""The number of points on either side of 0."""


@triton.jit
def mean_and_slope(odds, stretch, scale):
    """Return the mean of a mask before it is divided by its mean, and the derivative of the mean's logarithm.

    See `functional.dropout`: the stretch is at most 1.
    """
    index = tl.arange(0, 256)  # the smallest power of two with all points
    point = STEP * (index - LAST).to(tl.float32)
    small = exp(-tl.abs(point))
    share = reciprocal(1 + small)
    weight = tl.where(index <= 2 * LAST, STEP * small * share * share, 0.0)
    node = stretch * point + scale * odds
    weighted = weight * sigmoid(node)
    mean = tl.sum(weighted, 0)
    return mean, scale * tl.sum(weighted * sigmoid(-node), 0) / mean


@partial(Launched, free=("seed", "nonce"))
def _draw(
    x, logit, key, out, shares, moments, seed, nonce, cold, stretch, scale, total, quarter,
    KEYED: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64 if WIDE else tl.int32) * BLOCK
    odds = -tl.load(logit).to(tl.float32)
    mean, slope = mean_and_slope(odds, stretch, scale)
    if tl.program_id(0) == 0:
        tl.store(moments, mean)
        tl.store(moments + 1, slope)
    held = binary.load_four(x, first, total, total, quarter, False, BLOCK)
    four = words_at(key, seed, nonce, held[0], first, KEYED, BLOCK)
    for k in tl.static_range(4):
        element, _, mask = binary.placed(first, k, total, total, quarter, False, BLOCK)
        share = sigmoid((odds + logistic(four[k])) * cold)
        tl.store(shares + element, share, mask=mask)
        tl.store(out + element, held[k] * (share / mean), mask=mask)


@Launched
def _pull(
    by, x, shares, moments, by_x, by_logit, cold, total, steps,
    INPUTS: tl.constexpr, LOGIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * steps * BLOCK + tl.arange(0, BLOCK)
    mean, slope = tl.load(moments), tl.load(moments + 1)
    sums = tl.zeros((BLOCK,), tl.float32)
    for _ in range(steps):
        mask = at < total
        share = tl.load(shares + at, mask=mask, other=0.0)
        pulled = tl.load(by + at, mask=mask, other=0.0).to(tl.float32) * (share / mean)
        if INPUTS:
            tl.store(by_x + at, pulled, mask=mask)
        if LOGIT:
            # the logarithm of the mask has the derivative σ(-node) / λ minus that of the mean's logarithm
            sums += pulled * tl.load(x + at, mask=mask, other=0.0).to(tl.float32) * ((1 - share) * cold - slope)
        at += BLOCK
    if LOGIT:
        tl.store(by_logit + tl.program_id(0), -tl.sum(sums, 0))  # the logit is that of dropping an input


def draw(
    x: Tensor, logit: Tensor, key: Any, temperature: float, stretch: float, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return masked inputs, the masks before they are divided by their mean, and what `mean_and_slope` returns.

    `logit` is the log-odds of dropping an input.
    """
    x = x.contiguous()
    out, shares = torch.empty_like(x), torch.empty_like(x, dtype=torch.float32)
    moments = shares.new_empty(2)
    own, keyed = binary.draws(1, 1, x.numel(), 1), isinstance(key, Tensor)
    _draw[own.grid](
        x, logit, key.contiguous() if keyed else logit, out, shares, moments, *((2**62, 2**62) if keyed else key),
        1 / temperature, stretch, scale, *own.counts[1:],
        KEYED=keyed, WIDE=own.options["WIDE"], BLOCK=own.options["BLOCK"], num_warps=own.options["num_warps"],
    )  # fmt: skip
    return out, shares, moments


def pull(
    by: Tensor, x: Tensor, shares: Tensor, moments: Tensor, temperature: float, needs: Any
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of the inputs and, in float32, of the logit, or None for those not needed."""
    by, x, total = by.contiguous(), x.contiguous(), x.numel()
    programs = 1 if total <= FEW else min(ceil_div(total, 4 * BLOCK), binary.BUSY)
    by_x = torch.empty_like(x) if needs[0] else None
    parts = shares.new_empty(programs)
    _pull[programs,](
        by, x, shares, moments, x if by_x is None else by_x, parts,
        1 / temperature, total, ceil_div(total, programs * BLOCK),
        INPUTS=needs[0], LOGIT=needs[1], BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    if not needs[1]:
        return by_x, None
    return by_x, parts if programs == 1 else parts.sum(0, keepdim=True)
