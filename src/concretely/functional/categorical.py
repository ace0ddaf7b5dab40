"""The n-ary unit: categories by the largest noisy logit, and their log masses."""

import torch
from jaxtyping import Float, Int64
from torch import Size, Tensor

from ..noise import gumbel as noise
from .cast import to_float64
from .log_simplex import one_hot_argmax, perturb

__all__ = ["expectation", "log_mass", "log_probs", "noise", "push", "weighted"]


def push(logits: Float[Tensor, "*batch n"], noise: Float[Tensor, "*shape n"]) -> Float[Tensor, "*out n"]:
    """One at the largest noisy logit, zero elsewhere."""
    return one_hot_argmax(perturb(logits, noise)).to(logits.dtype)


def log_probs(logits: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """The log probabilities of the categories, in float64."""
    return to_float64(logits).log_softmax(-1)


def log_mass(category: Int64[Tensor, "*shape"], logits: Float[Tensor, "*batch n"]) -> Float[Tensor, "*out"]:
    """The log probability of a category."""
    scores = log_probs(logits)
    shape = Size(torch.broadcast_shapes(scores.shape[:-1], category.shape))
    scores = scores.expand(shape + scores.shape[-1:])
    return scores.gather(-1, category.expand(shape).unsqueeze(-1)).squeeze(-1)


def weighted(quantity: Float[Tensor, "*batch n"], weight: Float[Tensor, "*shape n"]) -> Float[Tensor, "*out"]:
    """The weighted sum of a quantity over categories, to which impossible categories of no weight add nothing."""
    return (weight * torch.where(weight == 0, 0, quantity)).sum(-1)


def expectation(log_probs: Float[Tensor, "*batch n"], quantity: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """The expectation of a quantity over categories, to which impossible ones add nothing."""
    return weighted(quantity, log_probs.exp())
