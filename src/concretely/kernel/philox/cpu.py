"""Random fractions on a CPU, by generators that are made for one."""

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor


def fractions(key: Int64[Tensor, "members 2"], count: int, dtype: torch.dtype, signed: bool) -> Float[Tensor, "..."]:
    """Words over their number, each in the middle of its cell: 32 bits, or 52 in float64."""
    # torch's own generator would take 32 bits of a seed, and repeat itself after a hundred thousand keys
    words = -(-count // (1 if dtype == torch.float64 else 2))
    drawn = [np.random.Philox(key=each).random_raw(words) for each in key.numpy().view(np.uint64)]
    return _fractions(torch.from_numpy(np.stack(drawn).view(np.int64)), count, dtype, signed)


def drawn(
    generator: Generator | None, count: int, dtype: torch.dtype, signed: bool, *, device: torch.device | None = None
) -> Float[Tensor, " {count}"]:
    """Likewise from a generator of torch, or from the global one of a device."""
    words = -(-count // (1 if dtype == torch.float64 else 2))
    word = torch.randint(-(2**63), 2**63 - 1, (words,), device=device, generator=generator)
    return _fractions(word, count, dtype, signed)


def _fractions(word: Int64[Tensor, "..."], count: int, dtype: torch.dtype, signed: bool) -> Float[Tensor, "..."]:
    """Fractions from words of 64 bits, of which float64 takes the upper 52, and float32 makes two."""
    if dtype == torch.float64:
        word = word >> 12
        return (word if signed else word.add_(2**51)).to(dtype).add_(0.5).mul_(2.0**-52)
    return _halves(word, signed)[..., :count].to(dtype).add_(0.5).mul_(2.0**-32)


def _halves(pairs: Tensor, signed: bool) -> Tensor:
    """The two words of 32 bits that an integer of 64 bits consists of."""
    try:
        return pairs.view(torch.int32 if signed else torch.uint32)
    except RuntimeError:  # vmap has no rule for it before torch 2.12
        low, high = (pairs << 32 >> 32, pairs >> 32) if signed else (pairs & 2**32 - 1, pairs >> 32 & 2**32 - 1)
        return torch.cat([low, high], -1)
