"""The contribution of each sample to the multi-sample bound, by one pass up the samples and one down."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Launched
from .layout import by_sample, laid
from .native import log1p
from .tile import ceil_div

BLOCK = 64


@triton.jit
def _add(left, right):
    """Return log(exp(left) + exp(right)). Either argument, or both, may be -inf."""
    larger = tl.maximum(left, right, tl.PropagateNan.ALL)
    smaller = tl.minimum(left, right, tl.PropagateNan.ALL)
    small = tl.exp(smaller - tl.where(larger == float("-inf"), 0.0, larger))
    rest = log1p(small)
    return tl.where((larger == smaller) & (tl.abs(larger) == float("inf")), larger, larger + rest)


@Launched
def _vimco(log_w, out, sums, samples, batch, stride, GEOMETRIC: tl.constexpr, BLOCK: tl.constexpr):
    member = tl.program_id(1).to(tl.int64)
    point = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = point < batch
    entry = log_w + member * stride + point
    # the sum of the samples before each is stored in place of the result until the pass down
    at = member * samples * batch + point
    below, before = tl.full((BLOCK,), float("-inf"), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for _ in range(samples):
        tl.store(out + at, below, mask=mask)
        if GEOMETRIC:
            tl.store(sums + at, before, mask=mask)
        own = tl.load(entry, mask=mask, other=0.0)
        below, before = _add(below, own), before + own
        entry += batch
        at += batch
    above, after = tl.full((BLOCK,), float("-inf"), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for _ in range(samples):
        entry -= batch
        at -= batch
        own = tl.load(entry, mask=mask, other=0.0)
        others = _add(tl.load(out + at, mask=mask, other=0.0), above)
        if GEOMETRIC:
            mean = (tl.load(sums + at, mask=mask, other=0.0) + after) / (samples - 1)
            replaced = _add(others, mean)
        else:
            replaced = others + tl.log(samples * 1.0) - tl.log(samples - 1.0)
        tl.store(out + at, _add(others, own) - replaced, mask=mask)
        above, after = _add(above, own), after + own


def vimco(log_w: Tensor, mean: str, axis: int = 1) -> Tensor:
    """Return, for every sample, the bound minus the bound with its weight replaced by a mean of the others."""
    members, samples, batch = by_sample(log_w.shape, axis)
    out, sums = (log_w.new_empty(*log_w.shape, dtype=torch.float32) for _ in range(2))
    (log_w,), (stride,) = laid([log_w], axis)
    if out.numel():
        grid = (ceil_div(batch, BLOCK), members)
        _vimco[grid](log_w, out, sums, samples, batch, stride, GEOMETRIC=mean == "geometric", BLOCK=BLOCK)
    return out
