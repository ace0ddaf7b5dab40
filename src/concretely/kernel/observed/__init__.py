"""The log likelihood of bits whose logits, an affine map of states, are never written down; without a gradient."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..affine import PRODUCTS, suits
from ..operator import operator
from . import naive


def log_likelihood(
    state: Float[Tensor, "members m batch inputs"],
    weight: Float[Tensor, "members units inputs"],
    bias: Float[Tensor, "members units"],
    bits: Shaped[Tensor, "members batch units"],
) -> Float[Tensor, "members m batch"]:
    """The log mass of bits, which the samples share."""
    found: Tensor = _log_likelihood(state, weight, bias, bits)
    return found


@operator("observed_log_likelihood")
def _log_likelihood(state: Tensor, weight: Tensor, bias: Tensor, bits: Tensor) -> Tensor:
    if suits(state, weight):
        from . import triton

        return triton.log_likelihood(state, weight, bias, bits, PRODUCTS[torch.get_float32_matmul_precision()])
    return naive.log_likelihood(state, weight, bias, bits)


@_log_likelihood.register_fake
def _(state: Tensor, weight: Tensor, bias: Tensor, bits: Tensor) -> Tensor:
    return state.new_empty(state.shape[:3], dtype=torch.float32)
