"""The binary unit: states by the sign of noisy log-odds, and their log masses."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..noise import logistic as noise
from .cast import cast, compute_dtype

__all__ = ["interpolated_log_mass", "log_mass", "log_mass_of_sign", "noise", "push"]


def push(logits: Float[Tensor, "..."], noise: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """One where the noisy log-odds are not negative."""
    return (logits + noise >= 0).to(logits.dtype)


def log_mass_of_sign(sign: Float[Tensor, "..."], logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The log probability of the upper state, +1, or of the lower one, -1."""
    return logsigmoid(cast(logits, compute_dtype(logits.dtype)) * sign)


def log_mass(value: Float[Tensor, "..."], logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The log probability of a bit."""
    return log_mass_of_sign(2 * value.detach().to(compute_dtype(logits.dtype)) - 1, logits)


def interpolated_log_mass(value: Float[Tensor, "..."], logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The log masses of the two states, weighted as a value between them weights the states."""
    logits, value = (cast(tensor, compute_dtype(tensor.dtype)) for tensor in (logits, value))
    # an impossible state that the value leaves out adds nothing
    one = torch.where(value == 0, 0, logsigmoid(logits))
    zero = torch.where(value == 1, 0, logsigmoid(-logits))
    return value * one + (1 - value) * zero
