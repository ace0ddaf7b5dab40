r"""The multi-sample bound, and the loss whose gradient estimates the gradient of the bound.

$$\hat L_m = \log \frac1m \sum_{i=1}^m w_i$$

See [burda2016importance] and [maddison2017concrete], section 2.4.

>>> import torch
>>> bound(torch.tensor([[0.0], [0.0]]))
tensor([0.])
"""

import functools
import math
import operator as arithmetic
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..kernel.layout import by_sample
from ..kernel.operator import Arranged, operator

Terms = Sequence[Float[Tensor, "..."]]


def _arrange_bound(log_w: Tensor, axis: int) -> Arranged:
    shape = log_w.shape
    return (log_w, 1), [by_sample(shape, axis)], [shape[:axis] + shape[axis + 1 :]]


@operator(
    "bound",
    kernel="bound",
    eligible=lambda log_w, axis: log_w.dtype == torch.float32 and log_w.dim() > 1,
    arrange=_arrange_bound,
    saved=[0],
)
def bound(log_w: Float[Tensor, "..."], axis: int = 0) -> Float[Tensor, "..."]:
    """Return the multi-sample bound: the log of the mean weight over the samples."""
    if log_w.shape[axis] == 1:
        return log_w.sum(axis)
    return log_w.logsumexp(axis) - math.log(log_w.shape[axis])


def average(log_w: Float[Tensor, "..."], axis: int = 0) -> Float[Tensor, "..."]:
    """Return the mean log-weight over the samples, which estimates the single-sample bound."""
    return log_w.mean(axis)


def effective_sample_size(log_w: Float[Tensor, "m *batch"]) -> Float[Tensor, "*batch"]:
    """Return the effective sample size of importance weights.

    >>> import torch
    >>> effective_sample_size(torch.tensor([0.0, 0.0, -1e4]))
    tensor(2.)
    """
    return 1 / log_w.softmax(0).square().sum(0)


def total(terms: Iterable[Float[Tensor, "..."]]) -> Float[Tensor, "..."]:
    """Return the sum of terms."""
    return functools.reduce(arithmetic.add, terms)


def are_alike(*terms: Tensor) -> bool:
    """Return whether a kernel supports terms of log-weights: all in float32 and of the same shape."""
    shape = terms[0].shape
    fits = len(shape) > 1 and terms[0].numel() > 0
    return fits and all(term.dtype == torch.float32 and term.shape == shape for term in terms)


def _is_eligible(log_p: list[Tensor], log_q: list[Tensor], *given: Any) -> bool:
    signal, baseline, averages, _ = given
    return bool(averages or not baseline) and are_alike(*log_p, *log_q, *signal, *baseline)


def _arrange_loss(log_p: list[Tensor], log_q: list[Tensor], *given: Any) -> Arranged:
    (signal, baseline, averages, axis), shape = given, log_p[0].shape
    count = len(log_p) + len(log_q) + len(signal) + len(baseline)
    returned = shape[:axis], shape[:axis] + shape[axis + 1 :], shape
    return (log_p, log_q, signal, baseline, averages, 1), [by_sample(shape, axis)] * count, returned


@operator(
    "loss",
    kernel="bound",
    eligible=_is_eligible,
    arrange=_arrange_loss,
    takes_any_shape=True,
    nondifferentiable=[1, 2],
    saved=[1, 2],
)
def loss(
    log_p: Terms, log_q: Terms, signal: Terms = (), baseline: Terms = (), averages: bool = False, axis: int = 0
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Return the loss, and the detached bounds and log-weights. The loss is minus the mean bound over data points.

    A log-weight is the sum of `log_p` minus the sum of `log_q`. The bound is the multi-sample bound or, with
    `averages`, the mean log-weight over samples. For every entry of `signal`, the gradient of the loss also subtracts
    the signal times the gradient of (log q + baseline). With `averages` and a signal, log q has no other gradient: the
    omitted term has mean zero.
    """
    subtracted = [term.detach() for term in log_q] if averages and signal else log_q
    return loss_of(total(log_p) - total(subtracted), log_q, signal, baseline, averages, axis)


def loss_of(
    log_w: Tensor, log_q: Terms, signal: Terms, baseline: Terms, averages: bool, axis: int
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Return the results of `loss` for log-weights."""
    value = average(log_w, axis) if averages else bound(log_w, axis)
    result = value + score_function(log_q, signal, baseline, axis) if signal else value
    mean = result.mean(tuple(range(axis, result.dim()))) if axis else result.mean()
    return -mean, value.detach(), log_w.detach()


def score_function(log_q: Terms, signal: Terms, baseline: Terms = (), axis: int = 0) -> Float[Tensor, "..."]:
    """Return zero, with the gradient of signal times (log q + baseline), summed over terms and samples."""
    scored = [one + other for one, other in zip(log_q, baseline, strict=True)] if baseline else log_q
    score = total([own * term for own, term in zip(signal, scored, strict=True)]).sum(axis)
    return score - score.detach()
