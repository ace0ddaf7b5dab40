"""The definition of a binary unit: how it is drawn, and the log mass of its states."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..handwritten import spread, summed
from ..logistic.naive import noise


def draw(
    logits: Float[Tensor, "members units"], key: Int64[Tensor, "members 2"], samples: int, squash: str, length: int = 1
) -> tuple[Float[Tensor, "members m units"], Float[Tensor, "members m rows"]]:
    """The upper state where the noisy logits are not negative, and the log mass of either, of rows of units."""
    members, units = logits.shape
    drawn = noise(key, samples * units).view(members, samples, units)
    upper = (logits.unsqueeze(1).float() + drawn >= 0).float()
    value = 2 * upper - 1 if squash == "corner" else upper
    return value, score(value, logits, squash, length)


def sign(value: Float[Tensor, "..."], squash: str) -> Float[Tensor, "..."]:
    """Plus one for the upper state, minus one for the lower."""
    return value.float() if squash == "corner" else 2 * value.float() - 1


def score(
    value: Float[Tensor, "members m units"], logits: Float[Tensor, "members units"], squash: str, length: int = 1
) -> Float[Tensor, "members m rows"]:
    """The log mass of given states, of rows of units."""
    return summed(logsigmoid(sign(value, squash) * logits.unsqueeze(1).float()), length)


def backward(
    by: Float[Tensor, "members m rows"],
    value: Float[Tensor, "members m units"],
    logits: Float[Tensor, "members units"],
    squash: str,
    length: int = 1,
) -> Float[Tensor, "members units"]:
    """The gradient of the logits, over all samples, by the probability of the other state."""
    signed = sign(value, squash)
    other = torch.sigmoid(-signed * logits.unsqueeze(1).float())
    return (spread(by, length) * signed * other).sum(1).to(logits.dtype)
