"""The definition of a discrete draw, and of its log mass."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..exp_concrete.naive import corners, noisy
from ..handwritten import spread, summed


def value_shape(node: Sequence[int], squash: str) -> tuple[int, ...]:
    """The shape of values: as many numbers as categories, or as bits that number them."""
    return (*node[:-1], int(node[-1]).bit_length() - 1) if squash == "corner" else tuple(node)


def draw(
    logits: Float[Tensor, "members units n"],
    key: Int64[Tensor, "members 2"],
    samples: int,
    squash: str,
    length: int = 1,
) -> tuple[Float[Tensor, "members m units width"], Float[Tensor, "members m rows"]]:
    """One-hot vectors or corners for the largest noisy logits, and their log masses, of rows of units."""
    chosen = noisy(logits, key, samples)[0].argmax(-1)
    return state(chosen, logits.shape[-1], squash), summed(log_mass(chosen, logits), length)


def state(chosen: Int64[Tensor, "*shape"], n: int, squash: str) -> Float[Tensor, "*shape width"]:
    """The value that stands for a category."""
    if squash == "corner":
        return corners(n, dtype=torch.float32, device=chosen.device)[chosen]
    return (chosen.unsqueeze(-1) == torch.arange(n, device=chosen.device)).float()


def chosen(value: Float[Tensor, "*shape width"], squash: str) -> Int64[Tensor, "*shape"]:
    """The category that a value stands for."""
    if squash == "corner":
        place = 2 ** torch.arange(value.shape[-1] - 1, -1, -1, device=value.device)
        return ((value > 0) * place).sum(-1)
    return value.argmax(-1)


def log_mass(
    chosen: Int64[Tensor, "members m units"], logits: Float[Tensor, "members units n"]
) -> Float[Tensor, "members m units"]:
    """The log probability of categories under logits that the samples share."""
    log_probs = logits.float().log_softmax(-1).unsqueeze(1).expand(*chosen.shape, -1)
    return log_probs.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)


def score(
    value: Float[Tensor, "members m units width"],
    logits: Float[Tensor, "members units n"],
    squash: str,
    length: int = 1,
) -> Float[Tensor, "members m rows"]:
    """The log mass of given values, of rows of units."""
    return summed(log_mass(chosen(value, squash), logits), length)


def score_backward(
    by: Float[Tensor, "members m rows"],
    value: Float[Tensor, "members m units width"],
    logits: Float[Tensor, "members units n"],
    squash: str,
    length: int = 1,
) -> Float[Tensor, "members units n"]:
    """The gradient of the logits, over all samples."""
    by = spread(by, length)
    picked = by.unsqueeze(-1) * state(chosen(value, squash), logits.shape[-1], "one-hot")
    return (picked.sum(1) - logits.float().softmax(-1) * by.sum(1).unsqueeze(-1)).to(logits.dtype)
