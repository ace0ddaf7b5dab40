"""The definition of the log likelihood of bits."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.functional import logsigmoid


def sign(bits: Shaped[Tensor, "members batch units"]) -> Float[Tensor, "members 1 batch units"]:
    """Plus one for a bit that is set, minus one for another."""
    return (2 * bits.float() - 1).unsqueeze(1)


def log_likelihood(
    logits: Float[Tensor, "members m batch units"], bits: Shaped[Tensor, "members batch units"]
) -> Float[Tensor, "members m batch"]:
    """The log mass of all units together."""
    return logsigmoid(sign(bits) * logits.float()).sum(-1)


def backward(
    by: Float[Tensor, "members m batch"],
    logits: Float[Tensor, "members m batch units"],
    bits: Shaped[Tensor, "members batch units"],
) -> Float[Tensor, "members m batch units"]:
    """The gradient of the logits, by the probability of the other bit."""
    signed = sign(bits)
    return (by.unsqueeze(-1) * signed * torch.sigmoid(-signed * logits.float())).to(logits.dtype)
