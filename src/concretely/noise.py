"""The only randomness of the library: noise that a deterministic `push` turns into values.

All noise comes from random integers, each standing for the middle of its cell, and not from `torch.rand`, whose
float32 has 24 bits and includes 0, and whose float64 has no more once `torch.compile` has replaced it. Float32 noise
uses 32 bits and float64 noise 52: no draw is infinite, and the tails that decide rare events reach probabilities of
2⁻³³ and 2⁻⁵³.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from .kernel import philox
from .kernel.operator import is_hidden
from .kernel.philox import cpu, naive


class Keys:
    """A source of noise that is a function of its keys, each for one draw: the same keys give the same noise.

    Keys lie where the noise is wanted, so that a captured program can be given others each time it is replayed.

    >>> keys = torch.tensor([[0, 1], [0, 2]])
    >>> torch.equal(logistic((3,), generator=Keys(keys)), logistic((3,), generator=Keys(keys)))
    True
    """

    def __init__(self, keys: Int64[Tensor, "draws 2"]) -> None:
        self._keys = keys
        self.used = 0

    def next(self) -> Int64[Tensor, "1 2"]:
        """The key of the next draw."""
        if self.used == len(self._keys):
            raise ValueError(f"keys must be as many as there are draws, got {self.used}")
        self.used += 1
        return self._keys[self.used - 1 : self.used]


Source = Generator | Keys
"""Where noise comes from."""


def logistic(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    device: torch.device | None = None,
    generator: Source | None = None,
) -> Float[Tensor, "..."]:
    """Standard logistic noise, the difference of two Gumbels.

    >>> logistic((2, 3), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """
    return logistic_of(_fractions(shape, dtype, device, generator, signed=True))


def gumbel(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    device: torch.device | None = None,
    generator: Source | None = None,
) -> Float[Tensor, "..."]:
    """Standard Gumbel noise, minus the logarithm of exponential noise."""
    return gumbel_of(uniform(shape, dtype, device=device, generator=generator))


def normal(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    device: torch.device | None = None,
    generator: Source | None = None,
) -> Float[Tensor, "..."]:
    """Standard normal noise."""
    return normal_of(_fractions(shape, dtype, device, generator, signed=True))


def uniform(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    device: torch.device | None = None,
    generator: Source | None = None,
) -> Float[Tensor, "..."]:
    """Uniform noise strictly between 0 and 1, with all its precision near 0."""
    return uniform_of(_fractions(shape, dtype, device, generator, signed=False))


def logistic_of(signed: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Logistic noise from fractions in (-1/2, 1/2), by the smaller of the two tail probabilities."""
    return signed.abs().logit_().copysign_(signed)


def gumbel_of(tail: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Gumbel noise from its upper tail probability, which is precise where the noise is large; it is overwritten."""
    return tail.neg_().log1p_().neg_().log_().neg_()


def normal_of(signed: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Normal noise from fractions in (-1/2, 1/2), by the smaller of the two tail probabilities."""
    quantile: Tensor = torch.special.ndtri(signed.abs())
    return quantile.copysign_(signed)


def uniform_of(fractions: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Fractions strictly below 1, to which float32 has rounded the last of them; they are overwritten."""
    return fractions if fractions.dtype == torch.float64 else fractions.mul_(1 - 2.0**-24)


def key_of(source: Source | None, device: torch.device) -> Int64[Tensor, "1 2"]:
    """A key for one draw of a kernel: the next of many, or drawn from a generator."""
    if isinstance(source, Keys):
        return source.next()
    return torch.randint(-(2**63), 2**63 - 1, (1, 2), device=device, generator=source)


def _fractions(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | None,
    source: Source | None,
    *,
    signed: bool,
) -> Tensor:
    """Random fractions in (0, 1), or in (-1/2, 1/2) if signed; all precision lies near 0."""
    count = math.prod(shape)
    if isinstance(source, Keys):
        key = source.next()
        plain = key.device.type == "cpu" and not is_hidden(key)  # where a call of an operator costs more than the draw
        found: Tensor = (cpu if plain else philox).fractions(key, count, dtype, signed)
    elif torch.compiler.is_compiling():
        if source is not None:
            raise ValueError("generator must be None in a compiled program: draw the noise outside and push it inside")
        # the compiler's own generator makes one number at a time, several times slower, and 32 bits at most
        key = torch.randint(-(2**63), 2**63 - 1, (1, 2), device=device)
        found = naive.fractions(key, count, dtype, signed)
    else:
        found = cpu.drawn(source, count, dtype, signed, device=device)
    return found.view(tuple(shape))
