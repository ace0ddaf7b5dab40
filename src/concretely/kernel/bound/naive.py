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
    log_p: Sequence[Float[Tensor, "members m batch"]], log_q: Sequence[Float[Tensor, "members m batch"]], averages: bool
) -> tuple[Float[Tensor, " members"], Float[Tensor, "members batch"], Float[Tensor, "members m batch"]]:
    """Minus the mean of the bounds, the bounds, and the log-weights: the sum of some terms less that of others.

    The bounds may be averages over samples instead.
    """
    log_w = reduce(add, log_p) - reduce(add, log_q)
    found = log_w.mean(1) if averages else bound(log_w)
    return -found.mean(1), found, log_w


def loss_backward(
    by: Float[Tensor, " members"],
    log_w: Float[Tensor, "members m batch"],
    bound: Float[Tensor, "members batch"],
    credit: Sequence[Float[Tensor, "members m batch"]],
    averages: bool,
) -> list[Float[Tensor, "members m batch"]]:
    """The gradient of every term that is added, and those of the ones that are subtracted.

    Without credit these are all the same. A term with credit also gets that and, in an average, nothing else.
    """
    each = (by / -bound.shape[1]).view(-1, 1, 1)
    slope = each.expand_as(log_w) / log_w.shape[1] if averages else backward(each[:, 0].expand_as(bound), log_w, bound)
    if not credit:
        return [slope, -slope]
    return [slope, *(each * own if averages else each * own - slope for own in credit)]
