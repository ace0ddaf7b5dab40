"""The random words of keys, by Philox4x32-10 [salmon2011parallel]: the definition of the kernels."""

import threading

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor


def words(key: Int64[Tensor, "members 2"], count: int) -> Int64[Tensor, "members {count}"]:
    """Return random 32-bit words for every key, by Philox4x32-10 [salmon2011parallel].

    Each Philox counter gives four words, which are a quarter of the output apart.

    >>> words(torch.tensor([[0, 0]]), 4).tolist()  # as in the reference implementation
    [[1713891541, 3781805453, 3159862348, 2600524760]]
    """
    # an exported program must not distinguish one counter from several, nor counts that four divides from others
    exports = torch.compiler.is_exporting()
    result = torch.cat(four_words(key, torch.arange(-(-count // 4) + exports, device=key.device)), -1)
    return result[:, torch.arange(count, device=key.device)] if exports else result[:, :count]


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


def numpy_words(key: Tensor, first: int, count: int) -> Int64[Tensor, "members {count}"]:
    """Return `count` words of numpy's Philox from a place on, for every key."""
    # torch's generator would use only 32 bits of the seed, so that keys would collide
    counter, skipped = divmod(first, 4)  # each counter gives four words
    drawn = [_philox(pair, counter).random_raw(skipped + count)[skipped:] for pair in key.numpy().view(np.uint64)]
    return torch.from_numpy((drawn[0][None] if len(drawn) == 1 else np.stack(drawn)).view(np.int64))


def _philox(key: np.ndarray, counter: int) -> np.random.Philox:
    """Return numpy's Philox of a key from a counter on, valid until the next call in this thread.

    A new one would first read a seed from the system, which takes longer than to draw thousands of words.
    """
    if not hasattr(_OF_THREAD, "philox"):
        _OF_THREAD.philox = np.random.Philox(0)
    philox: np.random.Philox = _OF_THREAD.philox
    philox.state = {
        "bit_generator": "Philox",
        "state": {"counter": np.array([counter, 0, 0, 0], dtype=np.uint64), "key": key},
        "buffer": _NO_WORDS,
        "buffer_pos": 4,
        "has_uint32": 0,
        "uinteger": 0,
    }
    return philox


_OF_THREAD = threading.local()
_NO_WORDS = np.zeros(4, dtype=np.uint64)
