"""One-dimensional integrals that occur in exact KL divergences and means, with their derivatives.

Their integrands are analytic and bounded within ±iπ/2 of the real line and decay exponentially, so the trapezoidal
rule is exact to rounding [trefethen2014exponentially]. The sums run over blocks of quadrature points to save memory.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from numpy.polynomial.legendre import leggauss
from torch import Tensor
from torch.nn.functional import logsigmoid

from .gumbel import EULER

STEP = 0.25  # the error is exp(-π²/STEP), or 7e-18
BLOCK = 32
ROOTS, SHARES = (numbers.tolist() for numbers in leggauss(20))  # torch.compile cannot trace leggauss


def _nodes(low: int, high: int, like: Tensor) -> Iterator[Tensor]:
    """Yield the quadrature points of the trapezoidal rule in blocks."""
    count = round((high - low) / STEP)
    for start in range(0, count, BLOCK):
        block = [low + STEP * i for i in range(start, min(start + BLOCK, count))]
        yield torch.tensor(block, dtype=like.dtype, device=like.device)


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)). Torch's own function returns x above 20, where float64 still has the difference."""
    return -logsigmoid(-x)


def _log_sum(shifts: Tensor) -> Tensor:
    level = shifts.logsumexp(-1, keepdim=True)
    mean = level.squeeze(-1) - EULER
    for node in _nodes(-40, 46, shifts):
        # Frullani: log S = ∫ (1/(1+t) - exp(-tS))/t dt - Euler's constant; here t = exp(node)
        laplace = torch.exp(-softplus((shifts - level).unsqueeze(-1) + node).sum(-2))
        mean = mean + STEP * (torch.sigmoid(-node) - laplace).sum(-1)
    return mean


class _Integral(torch.autograd.Function):
    """A function of the last axis that is computed as an integral. `slopes` returns its derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(argument: Tensor, integral: Callable[[Tensor], Tensor], slopes: Callable[[Tensor], Tensor]) -> Tensor:
        return integral(argument)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Any, Callable[[Tensor], Tensor]], output: Tensor) -> None:
        argument, _, ctx.slopes = inputs
        ctx.save_for_backward(argument)
        ctx.save_for_forward(argument)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None, None]:
        return grad[0].unsqueeze(-1) * ctx.slopes(*ctx.saved_tensors), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        moved: Tensor = tangent * ctx.slopes(*ctx.saved_tensors)
        return moved.sum(-1)


def _integrated(argument: Tensor, integral: Callable[[Tensor], Tensor], slopes: Callable[[Tensor], Tensor]) -> Tensor:
    if torch.compiler.is_compiling():  # the compiler derives its own gradient
        return integral(argument)
    result: Tensor = _Integral.apply(argument, integral, slopes)  # type: ignore[no-untyped-call]
    return result


def _share(shifts: Tensor) -> Tensor:
    """Return the derivatives of `mean_log_sum`: the expected share of each term in the sum."""
    return _weighted_share(shifts, torch.ones_like)


def _weighted_share(shifts: Tensor, weight: Callable[[Tensor], Tensor]) -> Tensor:
    shifts = shifts - shifts.logsumexp(-1, keepdim=True)
    share = torch.zeros_like(shifts)
    for node in _nodes(-40, 46, shifts):
        moved = shifts.unsqueeze(-1) + node
        laplace = torch.exp(-softplus(moved).sum(-2, keepdim=True))
        share = share + STEP * (laplace * torch.sigmoid(moved) * weight(moved)).sum(-1)
    return share


def mean_log_sum(shifts: Tensor) -> Tensor:
    """Return the mean of the log of a sum of scaled standard exponential variables.

    The sum is Σₖ exp(Δₖ) Eₖ over the last axis. For zero shifts the mean is digamma(n).

    >>> mean_log_sum(torch.zeros(3, dtype=torch.float64)), torch.tensor(3.0).digamma()
    (tensor(0.9228, dtype=torch.float64), tensor(0.9228))
    """
    return _integrated(shifts, _log_sum, _share)


def mean_shared_noise(logits: Tensor, shifts: Tensor) -> Tensor:
    """Return the mean of Σₖ wₖ (logitsₖ - log Eₖ), where wₖ is the share of exp(Δₖ) Eₖ in the sum of `mean_log_sum`.

    The noise -log Eₖ is standard Gumbel noise.

    >>> mean_shared_noise(torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    tensor(0.5772, dtype=torch.float64)
    """
    # E log E exp(-cE) has the mean (1 - Euler's constant - log(1 + c)) / (1 + c)²
    noise = _weighted_share(shifts, lambda moved: softplus(moved) - (1 - EULER))
    return (logits * _share(shifts) + noise).sum(-1)


def _soft_size(point: Tensor) -> Tensor:
    stretch, shift = point.unbind(-1)
    near, far = _contracted(stretch.clamp(max=1), shift), _stretched(stretch.clamp(min=1), shift)
    return torch.where(stretch <= 1, near[0], far[0])


def _slopes(point: Tensor) -> Tensor:
    """Return the derivatives of `mean_soft_size` by the stretch and by the shift."""
    stretch, shift = point.unbind(-1)
    near, far = _contracted(stretch.clamp(max=1), shift), _stretched(stretch.clamp(min=1), shift)
    return torch.stack([torch.where(stretch <= 1, near[i], far[i]) for i in (1, 2)], -1)


def mean_soft_size(stretch: Tensor, shift: Tensor) -> Tensor:
    """Return the mean of log(2 + 2 cosh(sL + c)), a smooth |sL + c|, over standard logistic L.

    >>> mean_soft_size(torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))
    tensor(2.0000, dtype=torch.float64)
    """
    return _integrated(torch.stack(torch.broadcast_tensors(stretch, shift), -1), _soft_size, _slopes)


def _density(noise: Tensor) -> Tensor:
    return torch.sigmoid(noise) * torch.sigmoid(-noise)


def _contracted(stretch: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return `mean_soft_size` and its two derivatives for a stretch of at most 1, by the trapezoidal rule."""
    mean, by_stretch, by_shift = (torch.zeros_like(shift) for _ in range(3))
    for node in _nodes(-42, 43, shift):
        point = stretch.unsqueeze(-1) * node + shift.unsqueeze(-1)
        weight = STEP * _density(node)
        slope = weight * torch.tanh(point / 2)
        mean = mean + (weight * (softplus(point) + softplus(-point))).sum(-1)
        by_stretch, by_shift = by_stretch + (node * slope).sum(-1), by_shift + slope.sum(-1)
    return mean, by_stretch, by_shift


def _stretched(stretch: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return `mean_soft_size` and its two derivatives for a stretch of at least 1.

    With t = sL + c, the integrand is |t| + 2 log(1 + exp(-|t|)). The mean of the first term has a closed form; the
    second term is integrated separately for t < 0 and t > 0, as it has a kink at 0.
    """
    centre = shift / stretch
    size = softplus(centre) + softplus(-centre)
    slope = torch.tanh(centre / 2)
    mean, by_stretch, by_shift = stretch * size, size - centre * slope, slope
    stretch, shift = stretch.unsqueeze(-1), shift.unsqueeze(-1)
    roots, shares = (torch.tensor(x, dtype=shift.dtype, device=shift.device) for x in (ROOTS, SHARES))
    for low, high in ((0, 2), (2, 6), (6, 16), (16, 40)):
        node, weight = low + (high - low) * (roots + 1) / 2, (high - low) * shares / stretch
        above, below = (node - shift) / stretch, (node + shift) / stretch
        risen, fallen = weight * _density(above), weight * _density(below)
        dip = torch.sigmoid(-node)
        mean = mean + (softplus(-node) * (risen + fallen)).sum(-1)
        by_stretch = by_stretch - (dip * (above * risen + below * fallen)).sum(-1)
        by_shift = by_shift - (dip * (risen - fallen)).sum(-1)
    return mean, by_stretch, by_shift


def mean_sigmoid(stretch: Tensor, shift: Tensor) -> Tensor:
    """Return the mean of sigmoid(sL + c) over standard logistic L: the mean of a binary Concrete variable.

    With another logistic variable M, it is P(M ≤ sL + c) = P(-L ≤ (c - M) / s), so a stretch above 1 becomes one below.

    >>> mean_sigmoid(torch.tensor(2.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))
    tensor(0.5000, dtype=torch.float64)
    """
    scale = stretch.clamp(min=1)
    stretch, shift = torch.where(stretch > 1, 1 / scale, stretch), shift / scale
    node = STEP * torch.arange(round(-42 / STEP), round(42 / STEP) + 1, dtype=shift.dtype, device=shift.device)
    point = stretch.unsqueeze(-1) * node + shift.unsqueeze(-1)
    return (STEP * _density(node) * torch.sigmoid(point)).sum(-1)
