"""Learning signals of score-function estimators: for each sample, the factor of the gradient of its log q.

>>> import torch
>>> vimco(torch.zeros(3))
tensor([0., 0., 0.])
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..kernel.layout import by_sample
from ..kernel.operator import Arranged, operator
from .bound import Terms, are_alike, average, bound, loss_of, total
from .slice import Slice

Mean = Literal["geometric", "arithmetic"]
Method = Literal["reinforce", "leave-one-out", "geometric", "arithmetic"]
"""How a signal follows from the log-weights (see `signal_of`)."""


def signal_of(
    log_w: Float[Tensor, "..."], method: Method, objective: Callable[..., Tensor], axis: int = 0
) -> Float[Tensor, "..."]:
    """Return the signal of every sample: the objective, or that of `leave_one_out`, or of `vimco` with a mean."""
    if method == "leave-one-out":
        return leave_one_out(log_w, axis)
    if method != "reinforce":
        return vimco(log_w, method, axis)
    if objective is average:
        return log_w / log_w.shape[axis]
    value = bound(log_w, axis) if objective is bound else objective(log_w)
    return value.unsqueeze(axis).expand_as(log_w)


def _arrange_loss(log_p: list[Tensor], log_q: list[Tensor], method: Method, averages: bool, axis: int) -> Arranged:
    shape, count = log_p[0].shape, len(log_p) + len(log_q)
    returned = shape[:axis], shape[:axis] + shape[axis + 1 :], shape, shape
    return (log_p, log_q, method, averages, 1), [by_sample(shape, axis)] * count, returned


@operator(
    "score_function_loss",
    kernel="bound",
    eligible=lambda log_p, log_q, method, averages, _: (
        (averages or method != "leave-one-out") and are_alike(*log_p, *log_q)
    ),
    arrange=_arrange_loss,
    takes_any_shape=True,
    nondifferentiable=[1, 2, 3],
    saved=[1, 2, 3],
)
def score_function_loss(
    log_p: Terms, log_q: Terms, method: Method, averages: bool = False, axis: int = 0
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."], Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Return the results of `loss` with a signal that follows from the log-weights (see `signal_of`), and this signal.

    All terms of log q have the same signal. It has no gradient.
    """
    log_w = total(log_p) - total([term.detach() for term in log_q] if averages else log_q)
    with torch.no_grad():  # autograd need not record how the signal is computed
        signal = signal_of(log_w.detach(), method, average if averages else bound, axis)
    return *loss_of(log_w, log_q, [signal] * len(log_q), (), averages, axis), signal


def leave_one_out(log_w: Float[Tensor, "..."], axis: int = 0) -> Float[Tensor, "..."]:
    """Subtract from each log-weight the mean of the others, and divide by m [kool2019buy]."""
    return (log_w - log_w.mean(axis, keepdim=True)) / (log_w.shape[axis] - 1)


def _arrange_vimco(log_w: Tensor, mean: Mean, axis: int) -> Arranged:
    return (log_w, mean, 1), [by_sample(log_w.shape, axis)], [log_w.shape]


@operator("vimco", kernel="vimco", eligible=lambda log_w, *_: log_w.dtype == torch.float32, arrange=_arrange_vimco)
def vimco(log_w: Float[Tensor, "..."], mean: Mean = "geometric", axis: int = 0) -> Float[Tensor, "..."]:
    r"""Return the contribution of each sample to the multi-sample bound [mnih2016variational].

    $$\hat L - \hat L_{-i}, \quad \hat L_{-i} \text{ with } w_i \text{ replaced by a mean of the others}$$
    """
    m = log_w.shape[axis]
    others = torch.logaddexp(*_around(log_w, Tensor.logcumsumexp, axis, nothing=-math.inf))
    whole = torch.logaddexp(others, log_w)
    if mean == "arithmetic":
        return whole - others - math.log(m / (m - 1))
    before, after = _around(log_w, Tensor.cumsum, axis, nothing=0.0)
    return whole - torch.logaddexp(others, (before + after) / (m - 1))


def _around(
    log_w: Tensor, cumulate: Callable[[Tensor, int], Tensor], axis: int, *, nothing: float
) -> tuple[Tensor, Tensor]:
    """Return the sums over the samples before and after each sample.

    Subtracting a sample from the total sum would fail at infinite weights.
    """
    sums = cumulate(torch.stack([log_w, log_w.flip(axis)]), axis + 1).narrow(axis + 1, 0, log_w.shape[axis] - 1)
    before, after = torch.cat([torch.full_like(sums.narrow(axis + 1, 0, 1), nothing), sums], axis + 1).unbind()
    return before, after.flip(axis)


def _arrange_normalize(
    signal: Tensor, mean: Tensor, variance: Tensor, rate: float, centre: bool, scale: bool, axis: int
) -> Arranged:
    taken = by_sample(signal.shape, axis), (mean.numel(),), (variance.numel(),)
    return (signal, mean, variance, rate, centre, scale, 1), taken, (signal.shape, mean.shape, variance.shape)


@operator(
    "nvil",
    kernel="nvil",
    eligible=lambda signal, *_: signal.dtype == torch.float32 and signal.dim() > 1 and signal.numel(),
    arrange=_arrange_normalize,
)
def normalize(
    signal: Float[Tensor, "..."],
    mean: Float[Tensor, "..."],
    variance: Float[Tensor, "..."],
    rate: float,
    centre: bool = True,
    scale: bool = True,
    axis: int = 0,
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Return NVIL's normalised signal, and the updated running mean and variance [mnih2014neural].

    `rate` is the decay of the running averages. `centre` subtracts the running mean; `scale` divides by the running
    standard deviation if it exceeds 1.
    """
    spread, middle = torch.var_mean(signal, tuple(range(axis, signal.dim())), correction=0)
    return _normalized(signal, mean, variance, spread, middle, rate, centre, scale)


def normalize_slice(
    signal: Float[Tensor, "..."],
    mean: Float[Tensor, ""],
    variance: Float[Tensor, ""],
    rate: float,
    centre: bool,
    scale: bool,
    source: Slice,
) -> tuple[Float[Tensor, "..."], Float[Tensor, ""], Float[Tensor, ""]]:
    """Normalize the signal of a slice of a batch by the mean and variance of the whole batch."""
    own_spread, own_middle = torch.var_mean(signal.double(), correction=0)
    middle, square = source.mean(torch.stack([own_middle, own_spread + own_middle.square()])).unbind()
    spread = (square - middle.square()).clamp(min=0)  # in float64, where little cancels
    return _normalized(signal, mean, variance, spread.to(signal), middle.to(signal), rate, centre, scale)


def _normalized(
    signal: Tensor,
    mean: Tensor,
    variance: Tensor,
    spread: Tensor,
    middle: Tensor,
    rate: float,
    centre: bool,
    scale: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize a signal by running averages, after adding the mean and variance of a batch to them."""
    mean, variance = mean.mul(rate).add(middle, alpha=1 - rate), variance.mul(rate).add(spread, alpha=1 - rate)
    result = signal - _along(mean, signal) if centre else signal.clone()
    return result / _along(variance, signal).sqrt().clamp(min=1) if scale else result, mean, variance


def _along(number: Tensor, signal: Tensor) -> Tensor:
    """Reshape one number per member to broadcast with the signal."""
    return number.view(-1, *[1] * (signal.dim() - 1)) if number.dim() else number
