"""Affine maps, optionally followed by tanh.

`torch.set_float32_matmul_precision` sets the precision of products. At "highest" no kernel runs.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from ..kernel.deferred import is_deferring
from ..kernel.operator import Arranged, operator

FEW = 256
"""Up to this number of rows per member, bfloat16 products and a fused likelihood are not faster."""

PRODUCTS = {"high": "tf32", "medium": "bfloat16"}
"""The rounding of factors in kernels, for each matmul precision of torch."""


def is_eligible(x: Tensor, weight: Tensor) -> bool:
    """Return whether kernels can compute a product: weights in float32, at a reduced matmul precision."""
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
    """Apply an affine map to rows; if the weight has a member axis, each member has its own map.

    With bfloat16 products the output of tanh is bfloat16. Gradients of the weight may be `deferred`.
    """
    x = x if x.dtype == weight.dtype else x.to(weight.dtype)
    total = linear(x, weight, bias) if weight.dim() == 2 else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
    result = total.tanh() if tanh else total
    return result.bfloat16() if tanh and product == "bfloat16" else result
