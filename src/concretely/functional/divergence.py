"""KL divergences of discrete laws, as one autograd node where autograd alone records operations.

All are computed in float64 from the logits of p and q, and returned in the dtype of those of p.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from ..kernel.operator import is_plain, is_watched, plain_apply
from .arithmetic import append_axes, cast, compute_dtype, is_finite, sum_to, to_float64
from .bernoulli import EXACT
from .categorical import expectation, share

Terms = tuple[Tensor, ...]


@dataclass(frozen=True)
class Divergence:
    """The divergence KL(p || q) of one family."""

    definition: Callable[[Tensor, Tensor], Tensor]
    """Return the divergence for any logits."""
    slopes: Callable[[Tensor, Tensor], Terms]
    """Return its derivatives by the logits of p and q, before sums over broadcast axes."""
    of_finite: Callable[[Tensor, Tensor, bool], tuple[Tensor, Terms]]
    """Return the divergence and, if requested, its slopes in fewer operations. They are not finite for some logits."""
    axes: int
    """The number of category axes."""

    def __call__(self, logits: Float[Tensor, "..."], other: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the divergence."""
        if is_plain((logits, other)) and not is_watched():
            with_slopes = torch.is_grad_enabled() and (logits.requires_grad or other.requires_grad)
            divergence: Tensor = plain_apply(_Divergence)(logits, other, self, with_slopes)
            return divergence
        return cast(self.definition(to_float64(logits), to_float64(other)), logits.dtype)


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, other: Tensor, family: Divergence, with_slopes: bool) -> Tensor:
        p, q = to_float64(logits), to_float64(other)
        divergence, slopes = family.of_finite(p, q, with_slopes) if logits.is_cpu else (None, ())
        if divergence is None or not is_finite(divergence):
            divergence, slopes = family.definition(p, q), ()
        ctx.family = family
        ctx.save_for_backward(logits, other, *(cast(slope, compute_dtype(logits.dtype)) for slope in slopes))
        return cast(divergence, logits.dtype)

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor, Tensor, None, None]:
        logits, other, *slopes = ctx.saved_tensors
        if not slopes or torch.is_grad_enabled():  # for derivatives of the derivatives
            slopes = ctx.family.slopes(to_float64(logits), to_float64(other))
        factor = append_axes(cast(by[0], slopes[0].dtype), ctx.family.axes)
        both = zip(slopes, (logits, other), strict=True)
        by_p, by_q = (cast(sum_to(factor * slope, one.shape), one.dtype) for slope, one in both)
        return by_p, by_q, None, None


def _of_bits(p: Tensor, q: Tensor) -> Tensor:
    (log_p0, log_q0), (log_p1, log_q1) = ([-softplus(s * x, threshold=EXACT) for x in (p, q)] for s in (1, -1))
    return share(log_p0 - log_q0, log_p0.exp()) + share(log_p1 - log_q1, log_p1.exp())


def _slopes_of_bits(p: Tensor, q: Tensor) -> Terms:
    one, zero = p.sigmoid(), (-p).sigmoid()
    variance = one * zero
    return share(p - q, variance), zero * q.sigmoid() - one * (-q).sigmoid()


def _of_finite_bits(p: Tensor, q: Tensor, with_slopes: bool) -> tuple[Tensor, Terms]:
    """Return the results from the less probable state of p, in whose log-odds nothing cancels."""
    is_one, log_odds = p > 0, p.abs().neg_()
    shift = log_odds - torch.where(is_one, -q, q)
    log_q = torch.where(is_one, softplus(-q, threshold=EXACT), softplus(q, threshold=EXACT))
    divergence = log_q.sub_(softplus(log_odds, threshold=EXACT))
    rare = log_odds.sigmoid_()
    divergence.addcmul_(rare, shift)
    if not with_slopes:
        return divergence, ()
    common = 1 - rare
    one, zero = torch.where(is_one, common, rare), torch.where(is_one, rare, common)
    by_q = torch.addcmul(zero * q.sigmoid(), one, (-q).sigmoid(), value=-1)
    return divergence, ((p - q).mul_(rare.mul_(common)), by_q)


def _of_categories(p: Tensor, q: Tensor) -> Tensor:
    log_p = p.log_softmax(-1)
    return expectation(log_p, log_p - q.log_softmax(-1))


def _slopes_of_categories(p: Tensor, q: Tensor) -> Terms:
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    probs = log_p.exp()
    mean = share(log_p - log_q, probs)
    return mean - probs * mean.sum(-1, keepdim=True), log_q.exp() - probs


def _of_finite_categories(p: Tensor, q: Tensor, with_slopes: bool) -> tuple[Tensor, Terms]:
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    ratio, probs = log_p - log_q, log_p.exp_()
    mean = probs * ratio
    divergence = mean.sum(-1)
    if not with_slopes:
        return divergence, ()
    return divergence, (mean.addcmul_(probs, divergence.unsqueeze(-1), value=-1), log_q.exp_() - probs)


of_bits = Divergence(_of_bits, _slopes_of_bits, _of_finite_bits, axes=0)
of_categories = Divergence(_of_categories, _slopes_of_categories, _of_finite_categories, axes=1)
