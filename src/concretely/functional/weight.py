"""Surrogates of the derivative of a one-hot draw by its logits: the matrices W of straight-through estimators.

Here φ are the logits, π their softmax, D the one-hot draw and J(π) = diag(π) - ππᵀ.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from .arithmetic import cast, compute_dtype
from .noise import Source, exponential

Weight = Literal["softmax", "gumbel-softmax", "gumbel-rao", "reinmax"]
"""The names of the surrogates."""
FLOOR = -1e30
"""A logit that is lower than the largest one by this has probability 0 in every dtype, and can be subtracted."""


def surrogate(
    logits: Float[Tensor, "*batch n"],
    state: Float[Tensor, "*batch n"],
    weight: Weight,
    *,
    temperature: float,
    samples: int,
    generator: Source | None = None,
) -> Float[Tensor, "*batch n"]:
    """Return a function of the logits, at least in float32, whose derivative is W for a given draw.

    For "gumbel-softmax" it is a relaxed value whose argmax is the draw; for "gumbel-rao" the mean of `samples` such
    values.
    """
    logits, state = (cast(tensor, compute_dtype(tensor.dtype)) for tensor in (logits, state))
    if weight == "softmax":
        return logits.softmax(-1)
    logits = (logits - logits.detach().amax(-1, keepdim=True)).clamp(min=FLOOR)
    if weight == "reinmax":
        middle = ((logits.detach() / temperature).softmax(-1) + state) / 2
        # the softmax of shifted logits has the value `middle` here, and so the derivative J(middle)
        return 2 * (middle.log() + (logits - logits.detach())).softmax(-1) - logits.softmax(-1) / 2
    count = samples if weight == "gumbel-rao" else 1
    noise = conditional_noise(logits.detach(), state, count, generator=generator)
    return ((logits + noise) / temperature).softmax(-1).mean(0)


def conditional_noise(
    logits: Float[Tensor, "*batch n"], state: Float[Tensor, "*batch n"], samples: int, *, generator: Source | None
) -> Float[Tensor, "m *batch n"]:
    r"""Draw Gumbel noise given that its sum with the logits is largest at a state.

    With exponential noise E, the noisy logits are $-\log E_i$ at the state i, and
    $-\log(E_j / π_j + E_i)$ elsewhere. Their gradient must not pass through this noise.
    """
    log_probs = logits.log_softmax(-1)
    wait = exponential((samples, *logits.shape), logits.dtype, device=logits.device, generator=generator).log_()
    first = (wait * state).sum(-1, keepdim=True)
    other = torch.logaddexp(wait - log_probs, first)
    return -torch.where(state > 0, first, other) - log_probs
