"""The definition of the log likelihood of bits under an affine map, and of its slope in every logit."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..affine import naive as affine
from ..likelihood import naive as likelihood


def log_likelihood(
    state: Float[Tensor, "members m batch inputs"],
    weight: Float[Tensor, "members units inputs"],
    bias: Float[Tensor, "members units"],
    bits: Shaped[Tensor, "members batch units"],
) -> Float[Tensor, "members m batch"]:
    """The log mass of bits, which the samples share."""
    return likelihood.log_likelihood(_logits(state, weight, bias), bits)


def slope(
    state: Float[Tensor, "members m batch inputs"],
    weight: Float[Tensor, "members units inputs"],
    bias: Float[Tensor, "members units"],
    bits: Shaped[Tensor, "members batch units"],
) -> Float[Tensor, "members m*batch units"]:
    """What the log mass gains with each logit: a bit less its probability."""
    signed = likelihood.sign(bits)
    found: Tensor = signed * torch.sigmoid(-signed * _logits(state, weight, bias).float())
    return found.flatten(1, 2)


def weigh(
    pull: Float[Tensor, "members rows"],
    by_state: Float[Tensor, "members rows inputs"],
    state: Float[Tensor, "members rows inputs"],
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "members rows inputs"], Float[Tensor, "members rows inputs"]]:
    """Rows of gradients and of states, each times its pull; the former in the dtype of the states."""
    pull = pull.unsqueeze(-1)
    return (pull * by_state).to(state.dtype), (pull * state).to(dtype)


def _logits(state: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    logits = affine.affine(state.flatten(1, 2).to(weight.dtype), weight, bias, tanh=False)
    return logits.view(*state.shape[:3], weight.shape[1])
