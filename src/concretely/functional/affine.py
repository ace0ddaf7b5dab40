"""Affine maps, optionally followed by tanh, and the log-likelihood of bits whose logits are an affine map.

`torch.set_float32_matmul_precision` sets the precision of products. At "highest" no kernel runs.
"""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.functional import linear

from ..kernel.deferred import is_deferring
from ..kernel.operator import Arranged, is_plain, operator
from .bernoulli import log_likelihood

FEW = 256
"""Up to this number of rows per member, neither bfloat16 products nor a fused likelihood are faster."""

PRODUCTS = {"high": "tf32", "medium": "bfloat16"}
"""The rounding of factors in kernels, for each matmul precision of torch."""


def is_eligible(x: Tensor, weight: Tensor) -> bool:
    """Return whether kernels can compute a product.

    They require float32 weights, float32 or bfloat16 inputs and a matmul precision of "high" or "medium". They run
    neither under autocast nor under `torch.compile`.
    """
    if torch.compiler.is_compiling() or weight.dtype != torch.float32 or x.dtype not in (torch.float32, torch.bfloat16):
        return False
    return torch.get_float32_matmul_precision() in PRODUCTS and not torch.is_autocast_enabled(x.device.type)


def product_of(rows: int) -> str:
    """Return the rounding of the factors of a product with this number of rows per member."""
    return PRODUCTS.get(torch.get_float32_matmul_precision() if rows > FEW else "high", "ieee")


def _arrange(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool, product: str, deferred: bool) -> Arranged:
    if weight.dim() == 3:
        return (x, weight, bias, tanh, product_of(x.shape[1]), is_deferring()), lambda result: result
    rows = x.reshape(1, -1, x.shape[-1])
    given = rows, weight.unsqueeze(0), bias.unsqueeze(0), tanh, product_of(rows.shape[1]), is_deferring()
    return given, lambda result: result.reshape(*x.shape[:-1], -1)


@operator("affine", kernel="affine", eligible=lambda x, weight, *_: is_eligible(x, weight), arrange=_arrange)
def affine(
    x: Float[Tensor, "*rows inputs"],
    weight: Float[Tensor, "*members outputs inputs"],
    bias: Float[Tensor, "*members outputs"],
    tanh: bool,
    product: str = "ieee",
    deferred: bool = False,
) -> Float[Tensor, "*rows outputs"]:
    """Apply an affine map to rows, and tanh if requested. With a member axis, each member has its own weights.

    With bfloat16 products the output of tanh is bfloat16. If `deferred`, the gradient of the weight may stay a pair of
    factors that the optimizer multiplies (see `kernel.deferred`).
    """
    x = x if x.dtype == weight.dtype else x.to(weight.dtype)
    total = linear(x, weight, bias) if weight.dim() == 2 else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
    result = total.tanh() if tanh else total
    return result.bfloat16() if tanh and product == "bfloat16" else result


def _scores_fit(state: Tensor, weight: Tensor, bias: Tensor, bits: Tensor, *_: Any) -> bool:
    members = weight.dim() - 2
    rows, points = state.shape[members:-1], bits.shape[members:-1]
    fits = rows[len(rows) - len(points) :] == points and bits.shape[-1] == weight.shape[-2]
    return fits and rows.numel() > FEW and is_eligible(state, weight)


def _arrange_scores(state: Tensor, weight: Tensor, bias: Tensor, bits: Tensor, *_: Any) -> Arranged:
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
    options = slopes, product_of(lead.numel() * points.numel()), is_deferring()
    return (*given, *options), lambda result: (result[0].view(*shape, *lead, *points), result[1])


@operator(
    "affine_log_likelihood",
    kernel="affine_likelihood",
    eligible=_scores_fit,
    arrange=_arrange_scores,
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
