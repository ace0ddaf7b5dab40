"""The Bernoulli variable: states drawn by the sign of noisy log-odds, and their log probabilities.

The logits of observed bits may be an affine map, which a kernel computes together with the log-likelihood.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.nn.functional import logsigmoid, softplus

from ..kernel.deferred import is_deferring
from ..kernel.layout import by_bits, row_sums
from ..kernel.operator import Arranged, is_plain, operator, plain_apply
from . import arithmetic
from .arithmetic import affine, append_axes, cast, compute_dtype, may_multiply, product_of, sum_to
from .draw import is_recorded, sum_axes
from .noise import logistic as noise
from .noise import logistic_of
from .philox import fractions

__all__ = [
    "affine_log_likelihood",
    "draw",
    "interpolated_log_mass",
    "log_likelihood",
    "log_mass",
    "noise",
    "push",
    "score",
]

category_axes = 0
EXACT = 40.0
"""Above this, softplus is the identity in float64."""


def push(logits: Float[Tensor, "..."], noise: Float[Tensor, "..."], squash: str = "bit") -> Float[Tensor, "..."]:
    """Return 1 where the noisy log-odds are at least 0, else 0 ("bit") or -1 ("corner")."""
    upper = (logits + noise >= 0).to(logits.dtype)
    return 2 * upper - 1 if squash == "corner" else upper


def log_mass(
    value: Float[Tensor, "..."], logits: Float[Tensor, "..."], squash: str = "bit", axes: int = 0
) -> Float[Tensor, "..."]:
    """Return the log probability of a state, summed over the last `axes` axes."""
    logits = cast(logits, compute_dtype(logits.dtype))
    bits = value.detach().to(logits.dtype)
    bits = (1 + bits) / 2 if squash == "corner" else bits
    if is_recorded(logits):
        log_prob: Tensor = plain_apply(_LogMass)(logits, bits, axes)[0]
        return log_prob
    return _log_mass_against(logits * _sign_against(bits), axes)


def _sign_against(bits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the sign with which logits are the log-odds against bits: 1 - 2 bits."""
    return torch.rsub(bits, 1, alpha=2)


def _log_mass_against(log_odds: Float[Tensor, "..."], axes: int) -> Float[Tensor, "..."]:
    """Return the log probability of a state from the log-odds against it, summed over the last `axes` axes."""
    return sum_axes(softplus(log_odds, threshold=EXACT), axes).neg_()


class _LogMass(torch.autograd.Function):
    """The log probabilities of bits, and the log-odds against them, as one autograd node.

    Torch's derivative of softplus takes twice as long.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, bits: Tensor, axes: int) -> tuple[Tensor, Tensor]:
        ctx.shape, ctx.axes = logits.shape, axes
        ctx.set_materialize_grads(False)
        is_quick = axes > 0 and logits.is_cpu
        # logits times 1 - 2 bits in one pass, which gives NaN for infinite logits
        against = torch.addcmul(logits, bits, logits, value=-2) if is_quick else logits * _sign_against(bits)
        log_mass = _log_mass_against(against, axes)
        if is_quick and not math.isfinite(log_mass.sum().item()):
            against = logits * _sign_against(bits)
            log_mass = _log_mass_against(against, axes)
        ctx.save_for_backward(bits, against)
        return log_mass, against

    @staticmethod
    def backward(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, None, None]:
        (bits, against), (by_log_mass, by_against) = ctx.saved_tensors, by
        gradient = None if by_against is None else by_against * _sign_against(bits)
        if by_log_mass is not None:
            slope, factor = torch.sigmoid(against), -append_axes(by_log_mass, ctx.axes)
            # in place unless there may be derivatives of it, or a batch of gradients
            if not torch.is_grad_enabled() and is_plain((factor,)) and not is_legacy_batchedtensor(factor):
                slope = slope.addcmul_(bits, slope, value=-2).mul_(factor)
            else:
                slope = slope * _sign_against(bits) * factor
            gradient = slope if gradient is None else gradient + slope
        return None if gradient is None else sum_to(gradient, ctx.shape), None, None


def interpolated_log_mass(value: Float[Tensor, "..."], logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return value · log P(1) + (1 - value) · log P(0), for a value in [0, 1]."""
    logits, value = (cast(tensor, compute_dtype(tensor.dtype)) for tensor in (logits, value))
    # avoid 0 times minus infinity
    one = torch.where(value == 0, 0, logsigmoid(logits))
    zero = torch.where(value == 1, 0, logsigmoid(-logits))
    return value * one + (1 - value) * zero


@operator("bernoulli_draw", kernel="bernoulli", nondifferentiable=[0], saved=[0])
def draw(
    logits: Float[Tensor, "members units"], key: Int64[Tensor, "members 2"], samples: int, squash: str, length: int = 1
) -> tuple[Tensor, Tensor]:
    """Draw states in {0, 1} ("bit") or {-1, +1} ("corner"), and sum their log probabilities over `length` units.

    Each member has its own key. A draw of `logistic` with the same key and logits has the signs of these states.
    """
    members, units = logits.shape
    signed = fractions(key, samples * units, torch.float32, True).view(members, samples, units)
    value = push(logits.detach().float().unsqueeze(1), logistic_of(signed), squash)
    return value, score.definition(value, logits, squash, length)


@operator("bernoulli_score", kernel="bernoulli")
def score(
    value: Float[Tensor, "members m units"], logits: Float[Tensor, "members units"], squash: str, length: int = 1
) -> Float[Tensor, "members m rows"]:
    """Return the log probabilities of states, summed over rows of `length` units. All samples share the logits."""
    return row_sums(log_mass(value, logits.float().unsqueeze(1), squash), length)


def _arrange_bits(logits: Tensor, bits: Tensor, axes: int, members: int) -> Arranged:
    shape, (count, samples, batch, units) = by_bits(logits, bits, axes, members)
    return (logits, bits, 1, 1), ((count, samples, batch, units), (count, batch, units)), [shape]


@operator(
    "log_likelihood",
    kernel="likelihood",
    eligible=lambda logits, bits, axes, members: (
        bool(axes and logits.numel())
        and logits.shape[:members] == bits.shape[:members]
        and logits.shape[logits.dim() - bits.dim() + members :] == bits.shape[members:]
    ),
    arrange=_arrange_bits,
    takes_any_shape=True,
)
def log_likelihood(
    logits: Float[Tensor, "..."], bits: Shaped[Tensor, "..."], axes: int = 1, members: int = 0
) -> Float[Tensor, "..."]:
    """Return the log probability of bits, summed over the last `axes` axes, in at least float32.

    Logits may have extra axes after the first `members` axes. Bits may have any dtype and get no gradient.
    """
    bits = bits.to(compute_dtype(logits.dtype))
    if members and logits.dim() > bits.dim():
        bits = bits.view(*bits.shape[:members], *[1] * (logits.dim() - bits.dim()), *bits.shape[members:])
    return log_mass(bits, logits, axes=axes)


def _scores_fit(state: Tensor, weight: Tensor, bias: Tensor, bits: Tensor, *_: Any) -> bool:
    members = weight.dim() - 2
    rows, points = state.shape[members:-1], bits.shape[members:-1]
    fits = rows[len(rows) - len(points) :] == points and bits.shape[-1] == weight.shape[-2]
    return fits and rows.numel() > arithmetic.FEW and may_multiply(state, weight)


def _arrange_scores(state: Tensor, weight: Tensor, bias: Tensor, bits: Tensor, *_: Any) -> Arranged:
    members = weight.dim() - 2
    lead, points = state.shape[members : state.dim() - bits.dim() + members], bits.shape[members:-1]
    shape, given = state.shape[:members], (state, weight, bias, bits)
    count, samples, batch = math.prod(shape), math.prod(lead), math.prod(points)
    # tensors inside vmap do not report requires_grad
    slopes = torch.is_grad_enabled() and (not is_plain(given) or any(argument.requires_grad for argument in given[:3]))
    options = slopes, product_of(samples * batch), is_deferring()
    of_member = None if members else (1, *weight.shape), None if members else (1, *bias.shape)
    taken = (count, samples, batch, state.shape[-1]), *of_member, (count, batch, bits.shape[-1])
    return (*given, *options), taken, ((*shape, *lead, *points), None)


@operator(
    "affine_log_likelihood",
    kernel="affine_likelihood",
    eligible=_scores_fit,
    arrange=_arrange_scores,
    nondifferentiable=[1],
    saved=[1],
)
def affine_log_likelihood(
    state: Float[Tensor, "*rows inputs"],
    weight: Float[Tensor, "*members units inputs"],
    bias: Float[Tensor, "*members units"],
    bits: Shaped[Tensor, "*points units"],
    slopes: bool = False,
    product: str = "ieee",
    deferred: bool = False,
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Return the log probability of bits whose logits are an affine map of states, summed over units.

    States may have extra axes before those of the bits (after the member axis, if there is one). The kernel never
    stores the logits. The second result is empty or, with `slopes`, the derivative by each logit: the bit minus its
    probability.
    """
    members = weight.dim() - 2
    logits = affine(state.flatten(1, -2) if members else state, weight, bias, False)
    logits = logits.view(*state.shape[:-1], -1) if members else logits
    result = log_likelihood(logits, bits, 1, members)
    if not slopes:
        return result, state.new_empty((*state.shape[:members], 0), dtype=_slope_dtype(product))
    with torch.no_grad():
        sign = 2 * bits.to(logits.dtype) - 1
        sign = sign.unsqueeze(1) if members else sign
        slope = sign * torch.sigmoid(-sign * logits)
    return result, slope.view(*state.shape[:members], -1, weight.shape[-2]).to(_slope_dtype(product))


def _slope_dtype(product: str) -> torch.dtype:
    return torch.bfloat16 if product == "bfloat16" else torch.float32
