"""NVIL's normalised signal. Each member has one program, since mean and variance need all of the signal."""

import torch
import triton.language as tl
from torch import Tensor

from .launch import Launched
from .layout import rows
from .tile import power

BLOCK = 4096


@Launched
def _normalize(
    signal, mean, variance, out, means, variances, size, rate, signal_stride, mean_stride, variance_stride,
    CENTRE: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(0).to(tl.int64)
    signal += member * signal_stride
    along = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        total += tl.load(signal + start + along, mask=start + along < size, other=0.0)
    middle = tl.sum(total, 0) / size
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        inside = start + along < size
        apart = tl.load(signal + start + along, mask=inside, other=0.0) - middle
        total += tl.where(inside, apart * apart, 0.0)
    lasting = rate * tl.load(mean + member * mean_stride) + (1 - rate) * middle
    spread = rate * tl.load(variance + member * variance_stride) + (1 - rate) * (tl.sum(total, 0) / size)
    tl.store(means + member, lasting)
    tl.store(variances + member, spread)
    for start in range(0, size, BLOCK):
        inside = start + along < size
        value = tl.load(signal + start + along, mask=inside, other=0.0)
        if CENTRE:
            value -= lasting
        if SCALE:
            value = tl.div_rn(value, tl.maximum(tl.sqrt_rn(spread), 1.0, tl.PropagateNan.ALL))
        tl.store(out + member * size + start + along, value, mask=inside)


def normalize(
    signal: Tensor, mean: Tensor, variance: Tensor, rate: float, centre: bool, scale: bool, axis: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised signal, and the updated running mean and variance."""
    members, size = len(signal), signal[0].numel()
    signal = rows(signal)
    out, means, variances = (signal.new_empty(shape, dtype=torch.float32) for shape in (signal.shape, members, members))
    block = min(power(size), BLOCK)
    _normalize[members,](
        signal, mean, variance, out, means, variances, size, rate, signal.stride(0), mean.stride(0), variance.stride(0),
        CENTRE=centre, SCALE=scale, BLOCK=block, num_warps=max(1, min(block // 128, 16)),
    )  # fmt: skip
    return out, means, variances
