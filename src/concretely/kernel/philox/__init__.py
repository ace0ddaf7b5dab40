"""Random fractions from a key, by a counter-based generator [salmon2011parallel]: any step can be drawn again."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..handwritten import is_fast, operator
from . import cpu, naive


@operator("fractions")
def fractions(key: Tensor, count: int, dtype: torch.dtype, signed: bool) -> Tensor:
    """Random fractions for every key, between 0 and 1 or, if signed, between minus and plus one half.

    All precision lies near 0, which is never met, while the other ends may be by rounding. A key is a seed and a number
    that tells draws of the same seed apart. A CPU has a generator of its own.
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
    return key.new_empty((key.shape[0], count), dtype=dtype)
