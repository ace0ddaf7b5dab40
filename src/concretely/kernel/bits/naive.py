"""The definition of gathering and unpacking bits."""

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor


def unpack(
    packed: UInt8[Tensor, "members points bytes"], index: Int64[Tensor, "members batch"], width: int
) -> Float[Tensor, "members batch {width}"]:
    """The bits of some points of every member."""
    member = torch.arange(len(packed), device=packed.device).unsqueeze(-1)
    places = 7 - torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[member, index].unsqueeze(-1) >> places) & 1).flatten(-2)[..., :width].float()
