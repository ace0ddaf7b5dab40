"""Random fractions by torch's own generators: on a CPU, drawing from one takes a tenth of the time."""

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

_GOLDEN, _MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
_MASK = 2**64 - 1


def fractions(key: Int64[Tensor, "members 2"], count: int, dtype: torch.dtype, signed: bool) -> Float[Tensor, "..."]:
    """Words over their number, each in the middle of its cell: 32 bits, or 52 in float64."""
    generator = Generator()
    return torch.stack([drawn(generator.manual_seed(_seed(*each)), count, dtype, signed) for each in key.tolist()])


def drawn(
    generator: Generator | None, count: int, dtype: torch.dtype, signed: bool, *, device: torch.device | None = None
) -> Float[Tensor, " {count}"]:
    """Fractions from a generator, or from the global one of a device."""
    if dtype == torch.float64:
        word = torch.randint(-(2**51), 2**51, (count,), device=device, generator=generator)
        return (word if signed else word.add_(2**51)).to(dtype).add_(0.5).mul_(2.0**-52)
    # two words from one draw of the generator, which takes no longer than one
    pairs = torch.randint(-(2**63), 2**63 - 1, (-(-count // 2),), device=device, generator=generator)
    return _halves(pairs, signed)[:count].to(dtype).add_(0.5).mul_(2.0**-32)


def _halves(pairs: Tensor, signed: bool) -> Tensor:
    """The two words of 32 bits that an integer of 64 bits consists of."""
    try:
        return pairs.view(torch.int32 if signed else torch.uint32)
    except RuntimeError:  # vmap has no rule for it before torch 2.12
        return torch.cat([pairs >> 32, pairs << 32 >> 32]) if signed else torch.cat([pairs, pairs >> 32]) & 2**32 - 1


def _seed(seed: int, nonce: int) -> int:
    """One number from two, by the finaliser of SplitMix64, so that neighbours have nothing in common."""
    mixed = (seed ^ nonce * _GOLDEN) & _MASK
    mixed = (mixed ^ mixed >> 30) * _MIX & _MASK
    return (mixed ^ mixed >> 27) & _MASK
