"""The only source of randomness: generators of torch, and keys from which noise is computed.

Everything random is made from integers with all their bits random, which `functional.standard_noise` maps to noise.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Int64
from torch import Generator, Tensor
from torch.types import Device


class Keys:
    """A counter-based source of noise: each draw uses one key, and equal keys give equal noise.

    The keys are on the device of the noise, so that a CUDA graph can be replayed with new keys.

    >>> keys = torch.tensor([[0, 1], [0, 2]])
    >>> torch.equal(Keys(keys).next(), Keys(keys).next())
    True
    """

    def __init__(self, keys: Int64[Tensor, "draws 2"]) -> None:
        self._keys = keys
        self.used = 0

    def next(self) -> Int64[Tensor, "1 2"]:
        """Return the key of the next draw."""
        if self.used == len(self._keys):
            raise ValueError(f"keys must have one row for each draw, got only {self.used}")
        self.used += 1
        return self._keys[self.used - 1 : self.used]


Source = Generator | Keys


@contextmanager
def seeded(source: Source | None) -> Iterator[None]:
    """Seed torch's global generators from a source inside the context, for distributions that draw from them."""
    if source is None:
        yield
        return
    if torch.compiler.is_compiling():
        raise TypeError("a generator must be None in a compiled program with distributions of torch, got one")
    if isinstance(source, Keys):
        high, low = source.next().flatten().tolist()
        seed = (high * 0x9E3779B97F4A7C15 + low) % 2**63
    else:
        seed = int(torch.randint(2**62, (), generator=source, device=source.device))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def key_of(source: Source | None, device: Device) -> Int64[Tensor, "1 2"]:
    """Return the key of one draw: the next of `Keys`, or one drawn from a generator."""
    return source.next() if isinstance(source, Keys) else random_words(2, device=device, generator=source).view(1, 2)


def random_words(count: int, *, device: Device, generator: Generator | None) -> Int64[Tensor, " count"]:
    """Draw 64-bit integers, each with the same probability."""
    return torch.randint(-(2**63), 2**63 - 1, (count,), device=device, generator=generator)


def words(key: Int64[Tensor, "members 2"], count: int) -> Int64[Tensor, "members {count}"]:
    """Return random 32-bit words for every key, by Philox4x32-10 [salmon2011parallel].

    Each Philox counter gives four words, which are a quarter of the output apart.

    >>> words(torch.tensor([[0, 0]]), 4).tolist()  # as in the reference implementation
    [[1713891541, 3781805453, 3159862348, 2600524760]]
    """
    mask = 2**32 - 1
    seed, nonce = key.unsqueeze(-1).unbind(1)
    low, high = seed & mask, seed >> 32 & mask
    # if no word depended on the key, the CUDA compiler would multiply in 32 bits
    zero = torch.zeros_like(seed)
    counter = zero + torch.arange(-(-count // 4), device=key.device)
    word = [counter & mask, zero + (counter >> 32), nonce & mask, nonce >> 32 & mask]
    for _ in range(10):
        left, right = word[0] * 0xD2511F53, word[2] * 0xCD9E8D57
        word = [(right >> 32 & mask) ^ word[1] ^ low, right & mask, (left >> 32 & mask) ^ word[3] ^ high, left & mask]
        low, high = low + 0x9E3779B9 & mask, high + 0xBB67AE85 & mask
    return torch.cat(word, -1)[:, :count]
