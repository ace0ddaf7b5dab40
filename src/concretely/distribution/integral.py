"""The two one-dimensional integrals behind exact divergences, with their gradients.

Both integrands are analytic in a strip about the real line and decay exponentially, so that the trapezoidal rule is
exact to the last bits [trefethen2014exponentially]. The sums run over a few nodes at a time: memory is that of the
arguments and not of the grid.
"""

import math
from typing import Any

import torch
from numpy.polynomial.legendre import leggauss
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from .gumbel import EULER

STEP = 0.25  # within ±iπ/2 both integrands are analytic and bounded: the error is exp(-π²/STEP), or 7e-18


class _MeanLogSum(torch.autograd.Function):
    """The mean of log Σ exp(Δₖ) Eₖ for standard exponential Eₖ, with its gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(shifts: Tensor) -> tuple[Tensor, Tensor]:
        level = shifts.logsumexp(-1, keepdim=True)
        shifts = shifts - level
        mean, gradient = level.squeeze(-1) - EULER, torch.zeros_like(shifts)
        for node in torch.arange(-40, 46, STEP, dtype=shifts.dtype).tolist():
            # by Frullani's integral, log S is that of (1/(1+t) - exp(-tS))/t less Euler's constant; here t = exp(node)
            laplace = torch.exp(-softplus(shifts + node).sum(-1))
            mean = mean + STEP * (1 / (1 + math.exp(node)) - laplace)
            gradient = gradient + STEP * laplace.unsqueeze(-1) * torch.sigmoid(shifts + node)
        return mean, gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad: Tensor) -> Tensor:
        (gradient,) = ctx.saved_tensors
        product: Tensor = grad[0].unsqueeze(-1) * gradient
        return product


def mean_log_sum(shifts: Tensor) -> Tensor:
    """The mean of log Σ exp(Δₖ) Eₖ over the last axis, for independent standard exponential Eₖ.

    Without shifts it is the digamma function of their number.

    >>> mean_log_sum(torch.zeros(3, dtype=torch.float64)), torch.tensor(3.0).digamma()
    (tensor(0.9228, dtype=torch.float64), tensor(0.9228))
    """
    mean: Tensor = _MeanLogSum.apply(shifts)[0]  # type: ignore[no-untyped-call]
    return mean


class _MeanSoftSize(torch.autograd.Function):
    """The mean of the soft size of a stretched and shifted logistic variable, with its gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(stretch: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stretch, shift = torch.broadcast_tensors(stretch, shift)
        narrow = _contracted(stretch.clamp(max=1), shift)
        wide = _stretched(stretch.clamp(min=1), shift)
        mean, by_stretch, by_shift = (torch.where(stretch <= 1, a, b) for a, b in zip(narrow, wide, strict=True))
        return mean, by_stretch, by_shift

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1], output[2])
        ctx.shapes = inputs[0].shape, inputs[1].shape
        ctx.save_for_backward(output[1], output[2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, ...]:
        return tuple((grad[0] * by).sum_to_size(s) for by, s in zip(ctx.saved_tensors, ctx.shapes, strict=True))


def mean_soft_size(stretch: Tensor, shift: Tensor) -> Tensor:
    """The mean of log(2 + 2 cosh(sL + c)), a smooth size of a stretched and shifted standard logistic variable L.

    >>> mean_soft_size(torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))
    tensor(2.0000, dtype=torch.float64)
    """
    mean: Tensor = _MeanSoftSize.apply(stretch, shift)[0]  # type: ignore[no-untyped-call]
    return mean


def _density(noise: Tensor | float) -> Tensor:
    noise = torch.as_tensor(noise, dtype=torch.float64)
    return torch.sigmoid(noise) * torch.sigmoid(-noise)


def _contracted(stretch: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and gradient for a stretch of at most 1, whose integrand is as smooth as the logistic density."""
    mean, by_stretch, by_shift = (torch.zeros_like(shift) for _ in range(3))
    for node in torch.arange(-42, 42.5, STEP, dtype=shift.dtype).tolist():
        point = stretch * node + shift
        weight = STEP * float(_density(node))
        slope = weight * torch.tanh(point / 2)
        mean = mean + weight * (softplus(point) + softplus(-point))
        by_stretch, by_shift = by_stretch + node * slope, by_shift + slope
    return mean, by_stretch, by_shift


def _stretched(stretch: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and gradient for a stretch of at least 1.

    The soft size is the plain one, whose mean is known, plus 2 log(1 + exp(-|t|)), which is integrated over t on either
    side of its kink.
    """
    centre = shift / stretch
    size = softplus(centre) + softplus(-centre)
    slope = torch.tanh(centre / 2)
    mean, by_stretch, by_shift = stretch * size, size - centre * slope, slope
    for low, high in ((0, 2), (2, 6), (6, 16), (16, 40)):
        for root, share in zip(*leggauss(20), strict=True):
            node = low + (high - low) * (float(root) + 1) / 2
            above, below = (node - shift) / stretch, (node + shift) / stretch
            density = [(high - low) / 2 * float(share) * _density(noise) / stretch for noise in (above, below)]
            bump, dip = math.log1p(math.exp(-node)), 1 / (1 + math.exp(node))
            mean = mean + 2 * bump * (density[0] + density[1])
            by_stretch = by_stretch - 2 * dip * (above * density[0] + below * density[1])
            by_shift = by_shift - 2 * dip * (density[0] - density[1])
    return mean, by_stretch, by_shift
