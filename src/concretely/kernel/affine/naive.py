"""The definition of an affine map with or without tanh behind it."""

import torch
from jaxtyping import Float
from torch import Tensor


def affine(
    x: Float[Tensor, "members rows inputs"],
    weight: Float[Tensor, "members outputs inputs"],
    bias: Float[Tensor, "members outputs"],
    tanh: bool,
) -> Float[Tensor, "members rows outputs"]:
    """The map of every member, on its own rows."""
    total = torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
    return total.tanh() if tanh else total


def affine_backward(
    by_out: Float[Tensor, "members rows outputs"],
    x: Float[Tensor, "members rows inputs"],
    weight: Float[Tensor, "members outputs inputs"],
    out: Float[Tensor, "members rows outputs"],
    tanh: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the input, of the weight and of the bias."""
    by = by_total(by_out.to(weight.dtype), out.to(weight.dtype), tanh)
    return (by @ weight).to(x.dtype), by.mT @ x.to(weight.dtype), by.sum(1)


def by_total(
    by_out: Float[Tensor, "members rows outputs"], out: Float[Tensor, "members rows outputs"], tanh: bool
) -> Float[Tensor, "members rows outputs"]:
    """The gradient of what goes into tanh."""
    found: Tensor = torch.ops.aten.tanh_backward(by_out, out) if tanh else by_out
    return found
