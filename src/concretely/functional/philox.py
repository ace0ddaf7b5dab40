"""Random words and fractions of keys, by Philox4x32-10 [salmon2011parallel]: the definition of the kernels."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..kernel.operator import operator


def words(key: Int64[Tensor, "members 2"], count: int) -> Int64[Tensor, "members {count}"]:
    """Return random 32-bit words for every key, by Philox4x32-10 [salmon2011parallel].

    Each Philox counter gives four words, which are a quarter of the output apart.

    >>> words(torch.tensor([[0, 0]]), 4).tolist()  # as in the reference implementation
    [[1713891541, 3781805453, 3159862348, 2600524760]]
    """
    # an exported program must not distinguish one counter from several, nor counts that four divides from others
    exports = torch.compiler._is_exporting_flag  # in torch 2.11, is_exporting() is true in all compiled programs
    stream = torch.cat(four_words(key, torch.arange(-(-count // 4) + int(exports), device=key.device)), -1)
    return stream[:, torch.arange(count, device=key.device)] if exports else stream[:, :count]


def words_at(
    key: Int64[Tensor, "members 2"], place: Int64[Tensor, " places"], count: int
) -> Int64[Tensor, "members places"]:
    """Return the words at some places among `count` words of every key."""
    counters = -(-count // 4)
    word = four_words(key, place % counters)
    which = (place // counters).expand_as(word[0])
    return torch.stack(word).gather(0, which.unsqueeze(0)).squeeze(0)


def four_words(key: Int64[Tensor, "members 2"], counter: Int64[Tensor, " counters"]) -> list[Tensor]:
    """Return the four words of some counters for every key."""
    mask = 2**32 - 1
    seed, nonce = key.unsqueeze(-1).unbind(1)
    low, high = seed & mask, seed >> 32 & mask
    # if no word depended on the key, the CUDA compiler would multiply in 32 bits
    zero = torch.zeros_like(seed)
    counter = zero + counter
    word = [counter & mask, zero + (counter >> 32), nonce & mask, nonce >> 32 & mask]
    for _ in range(10):
        left, right = word[0] * 0xD2511F53, word[2] * 0xCD9E8D57
        word = [(right >> 32 & mask) ^ word[1] ^ low, right & mask, (left >> 32 & mask) ^ word[3] ^ high, left & mask]
        low, high = low + 0x9E3779B9 & mask, high + 0xBB67AE85 & mask
    return word


def row_fractions(key: Int64[Tensor, "1 2"], first: int, rows: int, n: int) -> Float[Tensor, "{rows} {n}"]:
    """Return fractions in (0, 1) for rows of n, from a counter on: its four words go to the quarters of a row."""
    quarter = -(-n // 4)
    word = four_words(key, torch.arange(rows * quarter, device=key.device) + first)
    row = torch.cat([part.reshape(rows, quarter) for part in word], -1)[:, :n]
    return _midpoints(row, None, torch.float32, signed=False)


@operator("fractions", kernel="philox", eligible=lambda key, count, dtype, signed: dtype == torch.float32)
def fractions(
    key: Int64[Tensor, "members 2"], count: int, dtype: torch.dtype, signed: bool
) -> Float[Tensor, "members {count}"]:
    """Return random fractions for every key, in (0, 1) or, if signed, in (-1/2, 1/2).

    A key is a seed and a draw number. Fractions are midpoints of 2³² intervals, in float64 of 2⁵². They are never 0,
    but rounding can give 1 or, if signed, ±1/2.
    """
    if dtype == torch.float64:
        pairs: Tensor = words(key, 2 * count).view(-1, 2, count)
        return _midpoints(pairs[:, 0], pairs[:, 1], dtype, signed)
    return _midpoints(words(key, count), None, dtype, signed)


@operator("window_fractions", kernel="philox", eligible=lambda key, count, dtype, *_: dtype == torch.float32)
def window_fractions(
    key: Int64[Tensor, "members 2"],
    count: int,
    dtype: torch.dtype,
    signed: bool,
    blocks: int,
    first: int,
    size: int,
    stride: int,
) -> Float[Tensor, "members {count}"]:
    """Return the `count` fractions at the places of a `Window` among `fractions` of the whole."""
    whole = blocks * stride
    start = torch.arange(blocks, device=key.device).unsqueeze(-1) * stride + first
    place = (start + torch.arange(size, device=key.device)).flatten()
    if dtype == torch.float64:
        high, low = (words_at(key, place + shift, 2 * whole) for shift in (0, whole))
        return _midpoints(high, low, dtype, signed)
    return _midpoints(words_at(key, place, whole), None, dtype, signed)


def _midpoints(high: Tensor, low: Tensor | None, dtype: torch.dtype, signed: bool) -> Tensor:
    """Return the midpoints of the intervals of words, of 52 bits if there are lower words."""
    bits, word = (32, high) if low is None else (52, high << 20 | low >> 12)
    half = 2 ** (bits - 1)
    word = (word ^ half) - half if signed else word  # the highest bit is the sign
    return word.to(dtype).add(0.5).mul(2.0**-bits)
