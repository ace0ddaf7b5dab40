"""Gather and unpack batches of bits in one pass."""

import torch
import triton.language as tl
from torch import Tensor

from .launch import Launched
from .tile import power

BLOCK = 1024


@Launched
def _unpack(packed, index, out, batch, width, columns, BLOCK: tl.constexpr):
    member, point = tl.program_id(1).to(tl.int64), tl.program_id(0)
    row = tl.load(index + member * batch + point)
    for start in range(0, width, BLOCK):
        bit = start + tl.arange(0, BLOCK)
        byte = tl.load(packed + row * columns + bit // 8, mask=bit < width, other=0)
        value = (byte.to(tl.int32) >> (7 - bit % 8)) & 1
        tl.store(out + (member * batch + point) * width + bit, value.to(tl.float32), mask=bit < width)


def unpack(packed: Tensor, index: Tensor, width: int) -> Tensor:
    """Return the bits of the indexed data points of every member as float32."""
    members, batch = index.shape
    out = packed.new_empty((members, batch, width), dtype=torch.float32)
    block = min(BLOCK, power(width))
    _unpack[batch, members](packed, index.contiguous(), out, batch, width, packed.shape[1], BLOCK=block)
    return out
