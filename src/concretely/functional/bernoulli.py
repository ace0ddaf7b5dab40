"""The Bernoulli variable: states drawn by the sign of noisy log-odds, and their log probabilities."""

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..kernel.layout import row_sums
from ..kernel.operator import Arranged, operator
from .arithmetic import cast, compute_dtype
from .noise import fractions, logistic_of
from .noise import logistic as noise

__all__ = ["draw", "interpolated_log_mass", "log_likelihood", "log_mass", "noise", "push", "score"]

category_axes = 0


def push(logits: Float[Tensor, "..."], noise: Float[Tensor, "..."], squash: str = "bit") -> Float[Tensor, "..."]:
    """Return 1 where the noisy log-odds are at least 0, else 0 ("bit") or -1 ("corner")."""
    upper = (logits + noise >= 0).to(logits.dtype)
    return 2 * upper - 1 if squash == "corner" else upper


def log_mass(value: Float[Tensor, "..."], logits: Float[Tensor, "..."], squash: str = "bit") -> Float[Tensor, "..."]:
    """Return the log probability of a state."""
    logits = cast(logits, compute_dtype(logits.dtype))
    state = value.detach().to(logits.dtype)
    # one pass; torch.where on the sign would take three
    return logsigmoid(logits * (state if squash == "corner" else 2 * state - 1))


def interpolated_log_mass(value: Float[Tensor, "..."], logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return value · log P(1) + (1 - value) · log P(0), for a value in [0, 1]."""
    logits, value = (cast(tensor, compute_dtype(tensor.dtype)) for tensor in (logits, value))
    # avoid 0 times minus infinity
    one = torch.where(value == 0, 0, logsigmoid(logits))
    zero = torch.where(value == 1, 0, logsigmoid(-logits))
    return value * one + (1 - value) * zero


@operator("bernoulli_draw", kernel="bernoulli", nondifferentiable=[0])
def draw(
    logits: Float[Tensor, "members units"], key: Int64[Tensor, "members 2"], samples: int, squash: str, length: int = 1
) -> tuple[Tensor, Tensor]:
    """Draw states in {0, 1} ("bit") or {-1, +1} ("corner"), and sum their log probabilities over `length` units.

    Each member has its own key. A draw of `logistic` with the same key and logits has the signs of these states.
    """
    members, units = logits.shape
    signed = fractions(key, samples * units, torch.float32, True).view(members, samples, units)
    value = push(logits.detach().float().unsqueeze(1), logistic_of(signed), squash)
    return value, score.definition(value, logits, squash, length)


@operator("bernoulli_score", kernel="bernoulli")
def score(
    value: Float[Tensor, "members m units"], logits: Float[Tensor, "members units"], squash: str, length: int = 1
) -> Float[Tensor, "members m rows"]:
    """Return the log probabilities of states, summed over rows of `length` units. All samples share the logits."""
    return row_sums(log_mass(value, logits.float().unsqueeze(1), squash), length)


def _arrange_bits(logits: Tensor, bits: Tensor, axes: int, members: int) -> Arranged:
    lead, points = logits.shape[members : logits.dim() - bits.dim() + members], bits.shape[members : bits.dim() - axes]
    shape = logits.shape[:members]
    flat = logits.reshape(shape.numel(), lead.numel(), points.numel(), -1)
    given = flat, bits.reshape(shape.numel(), points.numel(), -1), 1, 1
    return given, lambda result: result.view(*shape, *lead, *points)


@operator(
    "log_likelihood",
    kernel="likelihood",
    eligible=lambda logits, bits, axes, members: (
        bool(axes and logits.numel())
        and logits.shape[:members] == bits.shape[:members]
        and logits.shape[logits.dim() - bits.dim() + members :] == bits.shape[members:]
    ),
    arrange=_arrange_bits,
)
def log_likelihood(
    logits: Float[Tensor, "..."], bits: Shaped[Tensor, "..."], axes: int = 1, members: int = 0
) -> Float[Tensor, "..."]:
    """Return the log probability of bits, summed over the last `axes` axes, in at least float32.

    Logits may have extra axes after the first `members` axes. Bits may have any dtype and get no gradient.
    """
    bits = bits.to(compute_dtype(logits.dtype))
    if members and logits.dim() > bits.dim():
        bits = bits.view(*bits.shape[:members], *[1] * (logits.dim() - bits.dim()), *bits.shape[members:])
    return log_mass(bits, logits).sum(tuple(range(-axes, 0)))
