"""Random fractions from a key, by a counter-based generator [salmon2011parallel]: any step can be drawn again."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..operator import is_fast, operator
from . import cpu, naive


@operator("fractions")
def fractions(key: Tensor, count: int, dtype: torch.dtype, signed: bool) -> Tensor:
    """Random fractions for every key: in (0, 1), or in (-1/2, 1/2) if signed, with all precision near 0.

    A key is a seed and a number that tells draws of the same seed apart. A CPU has a generator of its own.
    """
    if is_fast(key) and dtype == torch.float32:
        from . import triton

        return triton.fractions(key, count, signed)
    if key.is_cuda:
        return naive.fractions(key, count, dtype, signed)
    return cpu.fractions(key, count, dtype, signed)


@fractions.register_fake
def _(
    key: Int64[Tensor, "members 2"], count: int, dtype: torch.dtype, signed: bool
) -> Float[Tensor, "members {count}"]:
    return key.new_empty((len(key), count), dtype=dtype)
