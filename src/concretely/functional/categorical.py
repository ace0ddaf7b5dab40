"""The categorical variable: categories drawn by the largest noisy logit, and their log probabilities."""

import math

import torch
from jaxtyping import Float, Int64
from torch import Size, Tensor

from ..kernel.layout import row_sums
from ..kernel.operator import operator
from ..kernel.tile import fits
from .arithmetic import to_float64
from .hypercube import category_of, corner_of
from .log_simplex import noise_of_key, one_hot_argmax, perturb
from .noise import gumbel as noise

__all__ = ["draw", "expectation", "log_mass", "log_probs", "noise", "push", "score", "share", "weighted"]

category_axes = 1


def push(
    logits: Float[Tensor, "*batch n"], noise: Float[Tensor, "*shape n"], squash: str = "one-hot"
) -> Float[Tensor, "*out width"]:
    """Return the argmax of the noisy logits as a one-hot vector ("one-hot") or a hypercube corner ("corner")."""
    noisy = perturb(logits, noise)
    if squash == "corner":
        return corner_of(noisy.argmax(-1), logits.shape[-1], dtype=logits.dtype)
    return one_hot_argmax(noisy).to(logits.dtype)


def log_probs(logits: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """Return the log probabilities of the categories in float64."""
    return to_float64(logits).log_softmax(-1)


def log_mass(
    value: Float[Tensor, "*shape width"], logits: Float[Tensor, "*batch n"], squash: str = "one-hot"
) -> Float[Tensor, "*out"]:
    """Return the log probability of a value in float64."""
    category, scores = category_of(value) if squash == "corner" else value.argmax(-1), log_probs(logits)
    shape = Size(torch.broadcast_shapes(scores.shape[:-1], category.shape))
    scores = scores.expand(shape + scores.shape[-1:])
    return scores.gather(-1, category.expand(shape).unsqueeze(-1)).squeeze(-1)


def share(quantity: Float[Tensor, "..."], weight: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return a weight times a quantity. A weight of 0 gives 0 even where the quantity is infinite."""
    return weight * torch.where(weight == 0, 0, quantity)


def weighted(quantity: Float[Tensor, "*batch n"], weight: Float[Tensor, "*shape n"]) -> Float[Tensor, "*out"]:
    """Return the weighted sum over categories (see `share`)."""
    return share(quantity, weight).sum(-1)


def expectation(log_probs: Float[Tensor, "*batch n"], quantity: Float[Tensor, "*shape n"]) -> Float[Tensor, "*out"]:
    """Return the expectation of a quantity over categories."""
    return weighted(quantity, log_probs.exp())


@operator(
    "categorical_draw",
    kernel="categorical",
    eligible=lambda logits, key, samples, *_: fits(samples * math.prod(logits.shape[:-1]), logits.shape[-1]),
    nondifferentiable=[0],
    saved=[0],
)
def draw(
    logits: Float[Tensor, "members units n"],
    key: Int64[Tensor, "members 2"],
    samples: int,
    squash: str,
    length: int = 1,
) -> tuple[Tensor, Tensor]:
    """Draw one-hot vectors ("one-hot") or hypercube corners ("corner"), and their log probabilities.

    Each member has its own key. Log probabilities are summed over rows of `length` units.
    """
    _, units, n = logits.shape
    value = push(logits.detach().float().unsqueeze(1), noise_of_key(key, samples, units, n), squash)
    return value, score.definition(value, logits, squash, length)


@operator(
    "categorical_score",
    kernel="categorical",
    eligible=lambda value, logits, *_: fits(math.prod(value.shape[:-1]), logits.shape[-1]),
)
def score(
    value: Float[Tensor, "members m units width"],
    logits: Float[Tensor, "members units n"],
    squash: str,
    length: int = 1,
) -> Float[Tensor, "members m rows"]:
    """Return the log probabilities of values, summed over rows of `length` units. All samples share the logits."""
    return row_sums(log_mass(value, logits.unsqueeze(1), squash).float(), length)
