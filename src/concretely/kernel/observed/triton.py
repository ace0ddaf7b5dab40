"""The log likelihood of bits under an affine map in one pass, a block of logits after another."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..affine.triton import product
from ..logistic.triton import log1p
from ..operator import rows

HIGH, WIDE, DEEP, WARPS, STAGES = 128, 128, 32, 8, 3
"""The rows and units of which logits are worked out at once, how many inputs are multiplied at once, and how."""


@triton.jit
def _log_likelihood(
    state, weight, bias, bits, found, high, batch, wide: tl.constexpr, deep: tl.constexpr,
    state_stride, weight_stride, bias_stride, bits_stride, PRODUCT: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * HIGH + tl.arange(0, HIGH)
    k = tl.arange(0, DEEP)
    left = state + member * state_stride + i[:, None] * deep + k[None, :]
    own = bits + member * bits_stride + (i % batch)[:, None] * wide
    total = tl.zeros((HIGH,), tl.float32)
    for first in range(0, wide, WIDE):
        j = first + tl.arange(0, WIDE)
        right = weight + member * weight_stride + j[None, :] * deep + k[:, None]
        logit = tl.zeros((HIGH, WIDE), tl.float32)
        for start in range(0, deep, DEEP):
            inside = start + k < deep
            a = tl.load(left + start, mask=(i < high)[:, None] & inside[None, :], other=0.0)
            b = tl.load(right + start, mask=inside[:, None] & (j < wide)[None, :], other=0.0)
            logit = product(a, b, logit, PRODUCT)
        logit += tl.load(bias + member * bias_stride + j, mask=j < wide, other=0.0)[None, :]
        mask = (i < high)[:, None] & (j < wide)[None, :]
        on = tl.load(own + j[None, :], mask=mask, other=0) != 0
        against = tl.where(on == (logit < 0), tl.abs(logit), 0.0)  # how far the logit lies on the wrong side
        total -= tl.sum(tl.where(mask, against + log1p(tl.exp(-tl.abs(logit))), 0.0), 1)
    tl.store(found + member * high + i, total, mask=i < high)


def log_likelihood(state: Tensor, weight: Tensor, bias: Tensor, bits: Tensor, product: str) -> Tensor:
    """The log mass of bits, which the samples share."""
    (members, samples, batch, deep), wide = state.shape, weight.shape[1]
    found = torch.empty((members, samples, batch), dtype=torch.float32, device=state.device)
    high, bits = samples * batch, rows(bits.to(torch.uint8))
    state, weight, bias = rows(state), rows(weight), rows(bias)
    if found.numel():
        _log_likelihood[triton.cdiv(high, HIGH), members](
            state, weight, bias, bits, found, high, batch, wide, deep,
            state.stride(0), weight.stride(0), bias.stride(0), bits.stride(0), PRODUCT=product,
            HIGH=HIGH, WIDE=WIDE, DEEP=DEEP, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
    return found
