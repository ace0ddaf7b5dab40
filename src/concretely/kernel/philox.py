"""Random fractions by the Philox generator in one pass, four from every counter."""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import Launched
from .native import LOG_2_BY_EXPONENT, log, log2, product, reciprocal, signed_as
from .tile import ceil_div

BLOCK = 256
ROUNDS = tl.constexpr(10)


@triton.jit
def words(key, member, place, nonce=None):
    """Return the four random words of every counter in `place`, for the key of a member.

    A key is in memory or, with a nonce, two numbers (see `parts_of`).
    """
    if nonce is None:
        seed, number = tl.load(key + 2 * member), tl.load(key + 2 * member + 1)
    else:
        seed, number = key, nonce
    return words_of(seed, number, place)


@triton.jit
def words_of(seed, nonce, place):
    """Return the four random words of every counter in `place`, for a key of two numbers."""
    seed, nonce = seed.to(tl.uint64), nonce.to(tl.uint64)
    low, high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    one, two = place.to(tl.uint32), tl.zeros_like(place).to(tl.uint32)
    if place.dtype == tl.int64:
        two = (place.to(tl.uint64) >> 32).to(tl.uint32)
    three, four = nonce.to(tl.uint32), (nonce >> 32).to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        left, right = product(one, 0xD2511F53), product(three, 0xCD9E8D57)
        one, two, three, four = right[0] ^ two ^ low, right[1], left[0] ^ four ^ high, left[1]
        low = tl.add(low, 0x9E3779B9, sanitize_overflow=False)
        high = tl.add(high, 0xBB67AE85, sanitize_overflow=False)
    return one, two, three, four


@triton.jit
def words_beside(held, key, member, place, nonce=None):
    """Return the words of every counter in `place`, computed by the threads that hold the same entries of `held`."""
    # adds 0 unless NaN; without it the compiler computes the words in other threads and moves them
    return words(key, member, place + (held != held).to(tl.int32), nonce)


@triton.jit
def fraction(word, SIGNED: tl.constexpr):
    """Return (word + 1/2) / 2³², the midpoint of the interval of a word."""
    whole = (
        word.to(tl.int32, bitcast=True).to(tl.float32) if SIGNED else word.to(tl.uint32, bitcast=True).to(tl.float32)
    )
    return whole * 2.3283064365386963e-10 + 1.1641532182693481e-10  # 2⁻³², and half of it


@triton.jit
def logistic(word):
    """Return standard logistic noise, from the smaller of its two tail probabilities."""
    tail = tl.abs(fraction(word, True))
    odds = tail * reciprocal(1 - tail)
    rest = odds - tail - odds * tail  # the error of the odds, about one half of their relative error near 1
    # the power of 2 is added last, so that there is one rounding
    bits = odds.to(tl.int32, bitcast=True)
    power = (bits - 0x3F3504F3) & -0x800000
    part = (bits - power).to(tl.float32, bitcast=True)  # from √½ to √2
    # the logarithm of the third power, whose error near 1 is then divided by 3
    size = log2(part * part * part) * -0.23104906018664842 + (rest + rest)
    return signed_as(size - power.to(tl.float32) * LOG_2_BY_EXPONENT, word)


@triton.jit
def normal(word):
    """Return standard normal noise, from the smaller of its two tail probabilities."""
    tail = tl.abs(fraction(word, True))
    far = -log(4 * tail * (1 - tail))
    # up to 2.9 the probability between the tails times a polynomial in `far`; beyond, a polynomial in its square root
    x = far - 2.5
    near = (((4.0354664e-08 * x + 4.8610366e-07) * x - 4.9905657e-06) * x - 6.2179902e-06) * x + 3.0915020e-04
    near = (((near * x - 1.7730101e-03) * x - 5.9081712e-03) * x + 0.34880266) * x + 2.1233137
    x = tl.sqrt(far) - 3.5
    size = ((2.1433903e-05 * x + 2.7668355e-05) * x - 2.7986558e-04) * x + 8.7951549e-04
    size = (((size * x - 2.4121893e-03) * x + 4.3872315e-03) * x + 1.4247074) * x + 4.7170782
    return signed_as(tl.where(far < 5, near * (1 - 2 * tail), size), word)


@Launched
def _fractions(key, out, count, quarter, SIGNED: tl.constexpr, BLOCK: tl.constexpr):
    member = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    four = words(key, member, place)
    for k in tl.static_range(4):
        element = k * quarter + place
        tl.store(out + member * count + element, fraction(four[k], SIGNED), mask=(place < quarter) & (element < count))


def parts_of(key: Tensor | tuple[int, int]) -> tuple[Tensor | int, int | None]:
    """Return the arguments `key` and `nonce` of a kernel: a tensor of keys and None, or the two numbers of a key."""
    return key if isinstance(key, tuple) else (key.contiguous(), None)


drawing = partial(Launched, free=("key", "nonce"))
"""A kernel with the arguments `key` and `nonce`."""


def quarter(count: int) -> int:
    """Return the number of counters, each of four words, for `count` words."""
    return -(-count // 4)


def fractions(key: Tensor, count: int, dtype: torch.dtype, signed: bool) -> Tensor:
    """Return random fractions for every key. Only float32 is supported."""
    out = key.new_empty((len(key), count), dtype=torch.float32)
    places = quarter(count)
    if out.numel():
        grid = (ceil_div(places, BLOCK), len(key))
        _fractions[grid](key.contiguous(), out, count, places, SIGNED=signed, BLOCK=BLOCK)
    return out


@Launched
def _window_fractions(
    key, out, count, first, size, stride, places, SIGNED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    member = tl.program_id(1).to(tl.int64)
    own = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = own // size * stride + first + own % size
    four = words(key, member, place % places)
    lane = place // places
    word = tl.where(lane == 0, four[0], tl.where(lane == 1, four[1], tl.where(lane == 2, four[2], four[3])))
    tl.store(out + member * count + own, fraction(word, SIGNED), mask=own < count)


def window_fractions(
    key: Tensor, count: int, dtype: torch.dtype, signed: bool, blocks: int, first: int, size: int, stride: int
) -> Tensor:
    """Return the fractions at the places of a window for every key. Only float32 is supported."""
    out = key.new_empty((len(key), count), dtype=torch.float32)
    places = quarter(blocks * stride)
    if out.numel():
        grid = (ceil_div(count, BLOCK), len(key))
        _window_fractions[grid](
            key.contiguous(), out, count, first, size, stride, places, SIGNED=signed, BLOCK=BLOCK
        )  # fmt: skip
    return out
