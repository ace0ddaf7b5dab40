"""The definition of a binary unit: how it is drawn, and the log mass of its states."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..logistic.naive import noise


def draw(
    logits: Float[Tensor, "members units"], key: Int64[Tensor, "members 2"], samples: int, squash: str
) -> tuple[Float[Tensor, "members m units"], Float[Tensor, "members m units"]]:
    """The upper state where the noisy logits are not negative, and the log mass of either."""
    members, units = logits.shape
    drawn = noise(key, samples * units).view(members, samples, units)
    upper = (logits.unsqueeze(1).float() + drawn >= 0).float()
    value = 2 * upper - 1 if squash == "corner" else upper
    return value, score(value, logits, squash)


def sign(value: Float[Tensor, "..."], squash: str) -> Float[Tensor, "..."]:
    """Plus one for the upper state, minus one for the lower."""
    return value.float() if squash == "corner" else 2 * value.float() - 1


def score(
    value: Float[Tensor, "members m units"], logits: Float[Tensor, "members units"], squash: str
) -> Float[Tensor, "members m units"]:
    """The log mass of given states."""
    return logsigmoid(sign(value, squash) * logits.unsqueeze(1).float())


def backward(
    by: Float[Tensor, "members m units"],
    value: Float[Tensor, "members m units"],
    logits: Float[Tensor, "members units"],
    squash: str,
) -> Float[Tensor, "members units"]:
    """The gradient of the logits, over all samples, by the probability of the other state."""
    signed = sign(value, squash)
    other = torch.sigmoid(-signed * logits.unsqueeze(1).float())
    return (by * signed * other).sum(1).to(logits.dtype)
