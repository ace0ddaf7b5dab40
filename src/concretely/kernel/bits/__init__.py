"""Batches of bits, gathered and unpacked in one pass."""

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from ..handwritten import is_fast, operator
from . import naive


@operator("unpack")
def unpack(packed: Tensor, index: Tensor, width: int) -> Tensor:
    """The bits of some points of every member as float32, from bytes with the first bit highest."""
    if is_fast(packed):
        from . import triton

        return triton.unpack(packed, index, width)
    return naive.unpack(packed, index, width)


@unpack.register_fake
def _(
    packed: UInt8[Tensor, "members points bytes"], index: Int64[Tensor, "members batch"], width: int
) -> Float[Tensor, "members batch {width}"]:
    return packed.new_empty((*index.shape, width), dtype=torch.float32)
