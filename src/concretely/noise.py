"""The only randomness of the library: noise that a deterministic `push` turns into values.

All noise comes from random integers, each standing for the middle of its cell, and not from `torch.rand`, whose
float32 has 24 bits and includes 0, and whose float64 has no more once `torch.compile` has replaced it. Float32 noise
uses 32 bits and float64 noise 52: no draw is infinite, and the tails that decide rare events reach probabilities of
2⁻³³ and 2⁻⁵³.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Generator, Tensor


def logistic(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    device: torch.device | None = None,
    generator: Generator | None = None,
) -> Float[Tensor, "..."]:
    """Standard logistic noise, the difference of two Gumbels.

    >>> logistic((2, 3), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """
    signed = _words(shape, dtype, device, generator, signed=True)
    return signed.abs().logit_().copysign_(signed)  # by the smaller of the two tail probabilities


def gumbel(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    device: torch.device | None = None,
    generator: Generator | None = None,
) -> Float[Tensor, "..."]:
    """Standard Gumbel noise, minus the logarithm of exponential noise."""
    # by the upper tail probability, which is precise where the noise is large and decides
    return uniform(shape, dtype, device=device, generator=generator).neg_().log1p_().neg_().log_().neg_()


def normal(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    device: torch.device | None = None,
    generator: Generator | None = None,
) -> Float[Tensor, "..."]:
    """Standard normal noise."""
    signed = _words(shape, dtype, device, generator, signed=True)
    quantile: Tensor = torch.special.ndtri(signed.abs())
    return quantile.copysign_(signed)


def uniform(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    device: torch.device | None = None,
    generator: Generator | None = None,
) -> Float[Tensor, "..."]:
    """Uniform noise strictly between 0 and 1, with all its precision near 0."""
    noise = _words(shape, dtype, device, generator, signed=False)
    return noise if dtype == torch.float64 else noise.mul_(1 - 2.0**-24)  # what lies next to 1 was rounded to it


def _words(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | None,
    generator: Generator | None,
    *,
    signed: bool,
) -> Tensor:
    """Random integers over their number, in the middle of their cells: in (0, 1), or in (-1/2, 1/2) if signed.

    All precision lies near 0.
    """
    bits = 52 if dtype == torch.float64 else 32
    count = math.prod(shape)
    if torch.compiler.is_compiling():
        if generator is not None:
            raise ValueError("generator must be None in a compiled program: draw the noise outside and push it inside")
        word = torch.cat(_philox(count, bits, device))
        word = word - 2 ** (bits - 1) if signed else word
    elif bits == 32:  # two words from one draw of the generator, which takes no longer than one
        word = _halves(_integers((count + 1) // 2, 64, device, generator), signed=signed)
    else:
        word = _integers(count, bits, device, generator)
        word = word if signed else word.add_(2 ** (bits - 1))
    return word[:count].view(tuple(shape)).to(dtype).add_(0.5).mul_(2.0**-bits)


def _halves(pairs: Tensor, *, signed: bool) -> Tensor:
    """The two words of 32 bits that an integer of 64 bits consists of."""
    try:
        return pairs.view(torch.int32 if signed else torch.uint32)
    except RuntimeError:  # vmap has no rule for it before torch 2.12
        return torch.cat([pairs >> 32, pairs << 32 >> 32]) if signed else torch.cat([pairs, pairs >> 32]) & 2**32 - 1


def _integers(count: int, bits: int, device: torch.device | None, generator: Generator | None) -> Tensor:
    """Signed integers of so many random bits."""
    low, high = -(2 ** (bits - 1)), min(2 ** (bits - 1), 2**63 - 1)
    return torch.randint(low, high, (count,), device=device, generator=generator)


def _philox(count: int, bits: int, device: torch.device | None) -> list[Tensor]:
    """At least so many integers of 32 or 52 random bits, by Philox4x32-10 in tensor operations [salmon2011parallel].

    The compiler turns these into vector instructions; its own `randint` computes one number at a time, several times
    slower. The key and half of the counter come from the global generator.
    """
    mask = 2**32 - 1
    seed, nonce = torch.randint(-(2**63), 2**63 - 1, (2,), device=device).unbind()
    key = [seed & mask, seed >> 32 & mask]
    place = torch.arange((count + 3) // 4 if bits == 32 else (count + 1) // 2, device=device)
    # all words depend on a drawn one: of places alone, the compiler for CUDA would form products in 32 bits
    zero = torch.zeros_like(place)
    word = [place + (nonce & mask) & mask, zero, zero + (nonce >> 32 & mask), zero]
    for _ in range(10):
        left, right = word[0] * 0xD2511F53, word[2] * 0xCD9E8D57
        word = [
            (right >> 32 & mask) ^ word[1] ^ key[0],
            right & mask,
            (left >> 32 & mask) ^ word[3] ^ key[1],
            left & mask,
        ]
        key = [key[0] + 0x9E3779B9 & mask, key[1] + 0xBB67AE85 & mask]
    if bits == 52:
        word = [high << 20 | low >> 12 for high, low in (word[:2], word[2:])]
    return word
