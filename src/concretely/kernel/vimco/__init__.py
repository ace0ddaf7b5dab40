"""What each sample adds to the multi-sample bound, in one pass over the log-weights."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..handwritten import is_fast, operator
from . import naive


@operator("vimco")
def vimco(log_w: Tensor, geometric: bool) -> Tensor:
    """The bound less that with a weight replaced by the geometric or else the arithmetic mean of the others.

    It has no gradient.
    """
    if is_fast(log_w) and log_w.dtype == torch.float32:
        from . import triton

        return triton.vimco(log_w, geometric)
    return naive.vimco(log_w, geometric)


@vimco.register_fake
def _(log_w: Float[Tensor, "members m batch"], geometric: bool) -> Float[Tensor, "members m batch"]:
    return log_w.new_empty(log_w.shape)
