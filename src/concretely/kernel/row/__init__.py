"""Rows of neighbouring units, whose log probabilities are summed; in a row of length 1 a unit is alone."""

from jaxtyping import Float
from torch import Tensor


def summed(log_prob: Float[Tensor, "members m units"], length: int) -> Float[Tensor, "members m rows"]:
    """The sums over rows of so many units."""
    return log_prob if length == 1 else log_prob.unflatten(-1, (log_prob.shape[-1] // length, length)).sum(-1)


def spread(by: Float[Tensor, "members m rows"], length: int) -> Float[Tensor, "members m units"]:
    """A number of every row for each of its units."""
    return by if length == 1 else by.repeat_interleave(length, -1)
