"""The definition of the multi-sample bound."""

import math
from collections.abc import Sequence
from functools import reduce
from operator import add

from jaxtyping import Float
from torch import Tensor


def bound(log_w: Float[Tensor, "members m batch"]) -> Float[Tensor, "members batch"]:
    """The logarithm of the mean weight over samples."""
    return log_w.logsumexp(1) - math.log(log_w.shape[1])


def backward(
    by: Float[Tensor, "members batch"], log_w: Float[Tensor, "members m batch"], bound: Float[Tensor, "members batch"]
) -> Float[Tensor, "members m batch"]:
    """The gradient of the log-weights: the share that each weight has in the sum."""
    return by.unsqueeze(1) * (log_w - bound.unsqueeze(1)).exp() / log_w.shape[1]


def loss(
    log_p: Sequence[Float[Tensor, "members m batch"]], log_q: Sequence[Float[Tensor, "members m batch"]]
) -> tuple[Float[Tensor, " members"], Float[Tensor, "members batch"], Float[Tensor, "members m batch"]]:
    """Minus the mean of the bounds, the bounds, and the log-weights: the sum of some terms less that of others."""
    log_w = reduce(add, log_p) - reduce(add, log_q)
    found = bound(log_w)
    return -found.mean(1), found, log_w


def loss_backward(
    by: Float[Tensor, " members"], log_w: Float[Tensor, "members m batch"], bound: Float[Tensor, "members batch"]
) -> tuple[Float[Tensor, "members m batch"], Float[Tensor, "members m batch"]]:
    """The gradient of every term that is added, and of every one that is subtracted."""
    slope = backward((by / -bound.shape[1]).unsqueeze(-1).expand_as(bound), log_w, bound)
    return slope, -slope
