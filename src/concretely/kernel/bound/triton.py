"""The multi-sample bound in one pass, and its gradient in another."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..operator import rows

BLOCK = 64


@triton.jit
def _bound(log_w, out, samples, batch, stride, BLOCK: tl.constexpr):
    member = tl.program_id(1).to(tl.int64)
    point = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = point < batch
    at = log_w + member * stride + point
    largest = tl.load(at, mask=mask, other=0.0)
    total = tl.full((BLOCK,), 1.0, tl.float32)
    for _ in range(1, samples):
        at += batch
        entry = tl.load(at, mask=mask, other=0.0)
        larger = tl.maximum(largest, entry, tl.PropagateNan.ALL)
        # a weight of zero adds nothing, also to nothing
        anchor = tl.where(larger == float("-inf"), 0.0, larger)
        total = total * tl.exp(largest - anchor) + tl.exp(entry - anchor)
        largest = larger
    found = tl.where(total > 0, largest + tl.log(total / samples), largest)
    tl.store(out + member * batch + point, found, mask=mask)


def bound(log_w: Tensor) -> Tensor:
    """The logarithm of the mean weight over samples."""
    members, samples, batch = log_w.shape
    out = torch.empty((members, batch), dtype=torch.float32, device=log_w.device)
    log_w = rows(log_w)
    if out.numel():
        _bound[triton.cdiv(batch, BLOCK), members](log_w, out, samples, batch, log_w.stride(0), BLOCK=BLOCK)
    return out


@triton.jit
def _backward(by, log_w, bound, out, samples, batch, by_stride, by_step, stride, BLOCK: tl.constexpr):
    member, sample = tl.program_id(1).to(tl.int64), tl.program_id(0)
    point = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    mask = point < batch
    slope = tl.load(by + member * by_stride + point * by_step, mask=mask, other=0.0)
    whole = tl.load(bound + member * batch + point, mask=mask, other=0.0)
    entry = tl.load(log_w + member * stride + sample * batch + point, mask=mask, other=0.0)
    share = tl.exp(entry - whole) / samples
    tl.store(out + (member * samples + sample) * batch + point, slope * share, mask=mask)


def backward(by: Tensor, log_w: Tensor, bound: Tensor) -> Tensor:
    """The gradient of the log-weights."""
    members, samples, batch = log_w.shape
    out = torch.empty((members, samples, batch), dtype=torch.float32, device=log_w.device)
    log_w = rows(log_w)
    if out.numel():
        _backward[samples, members, triton.cdiv(batch, BLOCK)](
            by, log_w, bound.contiguous(), out, samples, batch, *by.stride(), log_w.stride(0), BLOCK=BLOCK
        )
    return out
