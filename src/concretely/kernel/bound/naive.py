"""The definition of the multi-sample bound."""

import math

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
