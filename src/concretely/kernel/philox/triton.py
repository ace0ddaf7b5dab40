"""Random fractions in one pass, four from every call of the generator."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .naive import quarter

BLOCK = 256


@triton.jit
def words(key, member, place):
    """The four words of some places."""
    seed, nonce = tl.load(key + 2 * member), tl.load(key + 2 * member + 1)
    place = place.to(tl.uint64)
    low, high = (nonce & 0xFFFFFFFF).to(tl.uint32), (nonce >> 32 & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox(seed.to(tl.uint64), place.to(tl.uint32), (place >> 32).to(tl.uint32), low, high)


@triton.jit
def words_beside(held, key, member, place):
    """The words of some places, made by the very threads that hold something else of theirs."""
    # false unless there is no number; without it the compiler would make them elsewhere and move them
    return words(key, member, place + (held != held).to(tl.int32))


@triton.jit
def fraction(word, SIGNED: tl.constexpr):
    """A word over the number of all, in the middle of its cell."""
    whole = (
        word.to(tl.int32, bitcast=True).to(tl.float32) if SIGNED else word.to(tl.uint32, bitcast=True).to(tl.float32)
    )
    return (whole + 0.5) * 2.3283064365386963e-10  # 2⁻³²


@triton.jit
def logistic(word):
    """Standard logistic noise, by the smaller of the two tail probabilities."""
    signed = fraction(word, True)
    tail = tl.abs(signed)
    size = -tl.log(tail / (1 - tail))
    return tl.where(signed < 0, -size, size)


@triton.jit
def _fractions(key, out, count, quarter, SIGNED: tl.constexpr, BLOCK: tl.constexpr):
    member = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    four = words(key, member, place)
    for k in tl.static_range(4):
        element = k * quarter + place
        tl.store(out + member * count + element, fraction(four[k], SIGNED), mask=(place < quarter) & (element < count))


def fractions(key: Tensor, count: int, signed: bool) -> Tensor:
    """Fractions in float32 for every key."""
    out = torch.empty((len(key), count), dtype=torch.float32, device=key.device)
    places = quarter(count)
    if out.numel():
        grid = (triton.cdiv(places, BLOCK), len(key))
        _fractions[grid](key.contiguous(), out, count, places, SIGNED=signed, BLOCK=BLOCK)
    return out
