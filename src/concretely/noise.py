"""The only randomness of the library: noise that a deterministic `push` turns into values.

Every draw starts from 52 random bits placed in the middle of their cell, so a uniform is never 0 or 1,
is symmetric about 1/2, and both tails reach probability 2⁻⁵³. Noise is float64 on every device and under every
dtype of the logits. It is drawn from integers because `torch.compile` replaces `torch.rand` by a generator
with 24 bits whatever dtype is asked for, which cuts the tail that picks rare categories.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Generator, Tensor

BITS = 52


def uniform(
    shape: Sequence[int], *, device: torch.device | None = None, generator: Generator | None = None
) -> Float[Tensor, "..."]:
    """Uniform noise strictly between 0 and 1.

    >>> noise = uniform((1000,), generator=torch.Generator().manual_seed(0))
    >>> bool((noise > 0).all() and (noise < 1).all())
    True
    """
    word = torch.randint(0, 1 << BITS, tuple(shape), device=device, generator=generator)
    return word.to(torch.float64).add_(0.5).mul_(2.0**-BITS)


def logistic(
    shape: Sequence[int], *, device: torch.device | None = None, generator: Generator | None = None
) -> Float[Tensor, "..."]:
    """Standard logistic noise, the difference of two Gumbels."""
    return torch.logit(uniform(shape, device=device, generator=generator))


def gumbel(
    shape: Sequence[int], *, device: torch.device | None = None, generator: Generator | None = None
) -> Float[Tensor, "..."]:
    """Standard Gumbel noise."""
    return uniform(shape, device=device, generator=generator).log_().neg_().log_().neg_()


def normal(
    shape: Sequence[int], *, device: torch.device | None = None, generator: Generator | None = None
) -> Float[Tensor, "..."]:
    """Standard normal noise."""
    quantile: Tensor = torch.special.ndtri(uniform(shape, device=device, generator=generator))
    return quantile
