"""The log-likelihood of bits, given their logits or an affine map to the logits."""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..kernel.deferred import is_deferring
from ..kernel.operator import Arranged, is_plain, operator
from . import affine as maps
from .affine import affine
from .bernoulli import log_mass
from .cast import compute_dtype


def _arrange_bits(logits: Tensor, bits: Tensor, axes: int, members: int) -> Arranged:
    lead, points = logits.shape[members : logits.dim() - bits.dim() + members], bits.shape[members : bits.dim() - axes]
    shape = logits.shape[:members]
    given = (
        logits.reshape(shape.numel(), lead.numel(), points.numel(), -1),
        bits.reshape(shape.numel(), points.numel(), -1),
        1,
        1,
    )
    return given, lambda result: result.view(*shape, *lead, *points)


@operator(
    "log_likelihood",
    kernel="likelihood",
    eligible=lambda logits, bits, axes, members: (
        bool(axes and logits.numel())
        and logits.shape[:members] == bits.shape[:members]
        and logits.shape[logits.dim() - bits.dim() + members :] == bits.shape[members:]
    ),
    arrange=_arrange_bits,
)
def log_likelihood(
    logits: Float[Tensor, "..."], bits: Shaped[Tensor, "..."], axes: int = 1, members: int = 0
) -> Float[Tensor, "..."]:
    """Return the log probability of bits, summed over the last axes, in at least float32.

    Logits may have extra axes after the first `members` axes. Bits may have any dtype and get no gradient.
    """
    bits = bits.to(compute_dtype(logits.dtype))
    if members and logits.dim() > bits.dim():
        bits = bits.view(*bits.shape[:members], *[1] * (logits.dim() - bits.dim()), *bits.shape[members:])
    return log_mass(bits, logits).sum(tuple(range(-axes, 0)))


def _is_eligible(state: Tensor, weight: Tensor, bias: Tensor, bits: Tensor, *_: Any) -> bool:
    members = weight.dim() - 2
    rows, points = state.shape[members:-1], bits.shape[members:-1]
    fits = rows[len(rows) - len(points) :] == points and bits.shape[-1] == weight.shape[-2]
    return fits and rows.numel() > maps.FEW and maps.is_eligible(state, weight)


def _arrange(state: Tensor, weight: Tensor, bias: Tensor, bits: Tensor, *_: Any) -> Arranged:
    members = weight.dim() - 2
    lead, points = state.shape[members : state.dim() - bits.dim() + members], bits.shape[members:-1]
    shape = state.shape[:members]
    given = (
        state.reshape(shape.numel(), lead.numel(), points.numel(), -1),
        weight if members else weight.unsqueeze(0),
        bias if members else bias.unsqueeze(0),
        bits.reshape(shape.numel(), points.numel(), -1),
    )
    # tensors inside vmap do not report requires_grad
    slopes = torch.is_grad_enabled() and (not is_plain(given) or any(each.requires_grad for each in given[:3]))
    options = slopes, maps.product_of(lead.numel() * points.numel()), is_deferring()
    return (*given, *options), lambda result: (result[0].view(*shape, *lead, *points), result[1])


@operator(
    "affine_log_likelihood",
    kernel="affine_likelihood",
    eligible=_is_eligible,
    arrange=_arrange,
    nondifferentiable=[1],
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

    States may have extra axes in front of the axes of the bits, or after the member axis. The kernel never stores the
    logits. With `slopes` it also returns the derivative by each logit, the bit minus its probability; else an empty
    tensor.
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
