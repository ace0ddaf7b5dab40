"""The definition of what each sample adds to the multi-sample bound."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def vimco(log_w: Float[Tensor, "members m batch"], geometric: bool) -> Float[Tensor, "members m batch"]:
    """The bound less that with a weight replaced by a mean of the others."""
    m = log_w.shape[1]
    others = torch.logaddexp(*_around(log_w, Tensor.logcumsumexp, nothing=-math.inf))
    whole = torch.logaddexp(others, log_w)
    if not geometric:
        return whole - others - math.log(m / (m - 1))
    before, after = _around(log_w, Tensor.cumsum, nothing=0.0)
    return whole - torch.logaddexp(others, (before + after) / (m - 1))


def _around(
    log_w: Float[Tensor, "members m batch"], cumulated: Callable[[Tensor, int], Tensor], *, nothing: float
) -> tuple[Float[Tensor, "members m batch"], Float[Tensor, "members m batch"]]:
    """What comes before each sample and after it, together: differences of sums would not survive infinite weights."""
    gathered = cumulated(torch.stack([log_w, log_w.flip(1)]), 2)[:, :, :-1]
    before, after = torch.cat([torch.full_like(gathered[:, :, :1], nothing), gathered], 2).unbind()
    return before, after.flip(1)
