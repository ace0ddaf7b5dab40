"""The definition: Philox4x32-10 in tensor operations, which the compiler turns into vector instructions."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

MASK = 2**32 - 1
ROUNDS = 10


def words(key: Int64[Tensor, "members 2"], count: int) -> Int64[Tensor, "members {count}"]:
    """Words of 32 random bits for every key, the four of one place a quarter of all apart.

    >>> words(torch.tensor([[0, 0]]), 4).tolist()  # the known answer of the reference implementation
    [[1713891541, 3781805453, 3159862348, 2600524760]]
    """
    seed, nonce = key.unsqueeze(-1).unbind(1)
    low, high = seed & MASK, seed >> 32 & MASK
    # all words depend on the key: of places alone, the compiler for CUDA would form products in 32 bits
    zero = torch.zeros_like(seed)
    place = zero + torch.arange(quarter(count), device=key.device)
    word = [place & MASK, zero + (place >> 32), nonce & MASK, nonce >> 32 & MASK]
    for _ in range(ROUNDS):
        left, right = word[0] * 0xD2511F53, word[2] * 0xCD9E8D57
        word = [(right >> 32 & MASK) ^ word[1] ^ low, right & MASK, (left >> 32 & MASK) ^ word[3] ^ high, left & MASK]
        low, high = low + 0x9E3779B9 & MASK, high + 0xBB67AE85 & MASK
    return torch.cat(word, -1)[:, :count]


def quarter(count: int) -> int:
    """How many places of four words make so many words."""
    return -(-count // 4)


def fractions(key: Int64[Tensor, "members 2"], count: int, dtype: torch.dtype, signed: bool) -> Float[Tensor, "..."]:
    """Words over their number, each in the middle of its cell: 32 bits, or 52 in float64."""
    if dtype == torch.float64:
        high, low = words(key, 2 * count).chunk(2, -1)
        bits, word = 52, high << 20 | low >> 12
    else:
        bits, word = 32, words(key, count)
    half = 2 ** (bits - 1)
    word = (word ^ half) - half if signed else word  # its highest bit is the sign
    return word.to(dtype).add(0.5).mul(2.0**-bits)
