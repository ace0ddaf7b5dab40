"""One-hot draws with a choice of backward pass."""

import math
from numbers import Real
from typing import get_args

from jaxtyping import Float
from torch import Generator, Tensor

from ..distribution.check import LEAST
from ..functional.arithmetic import cast, compute_dtype, is_finite
from ..functional.categorical import push
from ..functional.noise import gumbel
from ..functional.squashing import straight_through as with_gradient_of
from ..functional.weight import Weight, surrogate
from ..spelling import did_you_mean, shown
from .gumbel import explain, gumbel_softmax, require_floating


def straight_through(
    logits: Float[Tensor, "*batch n"],
    backward: Weight = "softmax",
    *,
    temperature: float = 1.0,
    samples: int = 10,
    generator: Generator | None = None,
) -> Float[Tensor, "*batch n"]:
    r"""Draw exact one-hot vectors D, and backpropagate through them by a surrogate of the derivative.

    The gradient of the logits is W times the gradient of D, where π is the softmax of the logits and
    J(π) = diag(π) - ππᵀ:

    - `"softmax"`: W = J(π), the straight-through estimator [bengio2013estimating]. Unbiased if the loss is linear in D.
    - `"gumbel-softmax"`: W = J(y)/τ for the relaxed value y at temperature τ that gave D [jang2017categorical].
    - `"gumbel-rao"`: the mean of that over several relaxed values that give the same D [paulus2021raoblackwellizing],
      with the same bias and less variance. `samples` is their number.
    - `"reinmax"`: W = 2 J((softmax(logits/τ) + D)/2) - J(π)/2 [liu2023bridging]. At temperature 1 it is unbiased if the
      loss is quadratic in D.

    As in `gumbel_softmax`, noise is always added: use `logits.argmax(-1)` for a deterministic choice.

    >>> import torch
    >>> gate = straight_through(torch.zeros(2, 3, requires_grad=True), "reinmax")
    >>> gate.sum(-1).tolist(), gate.requires_grad
    ([1.0, 1.0], True)
    """
    require_floating(logits)
    if not logits.dim() or not logits.shape[-1]:
        raise ValueError(f"logits must have a last axis of at least one category, got shape {tuple(logits.shape)}")
    if not logits.is_cuda and is_finite(logits) is False:
        explain(logits)
    if not isinstance(backward, str) or backward not in get_args(Weight):
        raise ValueError(f"unknown backward {shown(backward)}{did_you_mean(backward, get_args(Weight))}")
    is_number = isinstance(temperature, Real) and not isinstance(temperature, bool)
    if not is_number or not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be a positive number, got {shown(temperature)}")
    least = LEAST[compute_dtype(logits.dtype)]
    if temperature < least:
        raise ValueError(f"temperature must be at least {least:.2g}, got {shown(temperature)}")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples must be a positive whole number, got {shown(samples)}")
    if backward == "gumbel-softmax":
        return gumbel_softmax(logits, float(temperature), hard=True, generator=generator)
    noise = gumbel(logits.shape, compute_dtype(logits.dtype), device=logits.device, generator=generator)
    state = push(logits.detach(), noise)
    soft = surrogate(logits, state, backward, temperature=float(temperature), samples=samples, generator=generator)
    return with_gradient_of(state, cast(soft, logits.dtype), lambda soft: soft)
