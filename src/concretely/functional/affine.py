"""Affine maps, with or without tanh behind them.

Products are as precise as `torch.set_float32_matmul_precision` says. At "highest", torch's own operations run.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from ..kernel.deferred import is_deferring
from ..kernel.operator import Arranged, operator

FEW = 256
"""Up to so few rows of a member, products of TF32 are as fast as those of bfloat16, to which weights are rounded first.

So few rows are also written and read again in less time than a kernel takes that does not write them.
"""

PRODUCTS = {"high": "tf32", "medium": "bfloat16"}
"""How kernels round the factors of a product at each precision of torch."""


def is_eligible(x: Tensor, weight: Tensor) -> bool:
    """Whether kernels can form a product: of float32, where it need not be as precise; the compiler has its own."""
    if torch.compiler.is_compiling() or weight.dtype != torch.float32 or x.dtype not in (torch.float32, torch.bfloat16):
        return False
    return torch.get_float32_matmul_precision() in PRODUCTS and not torch.is_autocast_enabled(x.device.type)


def product_of(rows: int) -> str:
    """How the factors of a product are rounded, with so many rows of a member."""
    return PRODUCTS.get(torch.get_float32_matmul_precision() if rows > FEW else "high", "ieee")


def _arrange(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool, product: str, deferred: bool) -> Arranged:
    if weight.dim() == 3:
        return (x, weight, bias, tanh, product_of(x.shape[1]), is_deferring()), lambda found: found
    rows = x.reshape(1, -1, x.shape[-1])
    given = rows, weight.unsqueeze(0), bias.unsqueeze(0), tanh, product_of(rows.shape[1]), is_deferring()
    return given, lambda found: found.reshape(*x.shape[:-1], -1)


@operator("affine", kernel="affine", eligible=lambda x, weight, *_: is_eligible(x, weight), arrange=_arrange)
def affine(
    x: Float[Tensor, "*rows inputs"],
    weight: Float[Tensor, "*members outputs inputs"],
    bias: Float[Tensor, "*members outputs"],
    tanh: bool,
    product: str = "ieee",
    deferred: bool = False,
) -> Float[Tensor, "*rows outputs"]:
    """An affine map of rows; where the weight has an axis of members, those of every member by its own map.

    Where products are of bfloat16, so is what comes out of tanh, as it would be rounded in the next product. Gradients
    of the weight may be `deferred`.
    """
    x = x if x.dtype == weight.dtype else x.to(weight.dtype)
    total = linear(x, weight, bias) if weight.dim() == 2 else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
    found = total.tanh() if tanh else total
    return found.bfloat16() if tanh and product == "bfloat16" else found
