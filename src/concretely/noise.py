"""The only randomness of the library: noise that a deterministic `push` turns into values.

All noise comes from random integers, each standing for the middle of its cell, and not from `torch.rand`, whose
float32 has 24 bits and includes 0, and whose float64 has no more once `torch.compile` has replaced it. Float32 noise
uses 32 bits and float64 noise 52: no draw is infinite, and the tails that decide rare events reach probabilities of
2⁻³³ and 2⁻⁵³.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from .kernel.library import batched
from .kernel.operator import is_plain, operator


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
    """Fractions scaled to be strictly below 1, since float32 rounds the last of them to 1; they are overwritten."""
    return fractions if fractions.dtype == torch.float64 else fractions.mul_(1 - 2.0**-24)


def key_of(source: Source | None, device: torch.device) -> Int64[Tensor, "1 2"]:
    """A key for one draw of a kernel: the next of `Keys`, or a random one from a generator."""
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
        if key.device.type != "cpu":
            found = fractions(key, count, dtype, signed)
        else:
            found = (_numpy_fractions if is_plain([key]) else _cpu_fractions)(key, count, dtype, signed)
    elif torch.compiler.is_compiling():
        if source is not None:
            raise ValueError("generator must be None in a compiled program: draw the noise outside and push it inside")
        # the compiler's own generator makes one number at a time, several times slower, and 32 bits at most
        key = torch.randint(-(2**63), 2**63 - 1, (1, 2), device=device)
        found = fractions.definition(key, count, dtype, signed)
    else:
        words = torch.randint(-(2**63), 2**63 - 1, (_count_words(count, dtype),), device=device, generator=source)
        found = _from_words(words, count, dtype, signed)
    return found.view(tuple(shape))


def words(key: Int64[Tensor, "members 2"], count: int) -> Int64[Tensor, "members {count}"]:
    """Words of 32 random bits for every key, by Philox4x32-10 [salmon2011parallel].

    The four words of one counter lie a quarter of all words apart.

    >>> words(torch.tensor([[0, 0]]), 4).tolist()  # the known answer of the reference implementation
    [[1713891541, 3781805453, 3159862348, 2600524760]]
    """
    mask = 2**32 - 1
    seed, nonce = key.unsqueeze(-1).unbind(1)
    low, high = seed & mask, seed >> 32 & mask
    # all words depend on the key: of counters alone, the compiler for CUDA would form products in 32 bits
    zero = torch.zeros_like(seed)
    counter = zero + torch.arange(-(-count // 4), device=key.device)
    word = [counter & mask, zero + (counter >> 32), nonce & mask, nonce >> 32 & mask]
    for _ in range(10):
        left, right = word[0] * 0xD2511F53, word[2] * 0xCD9E8D57
        word = [(right >> 32 & mask) ^ word[1] ^ low, right & mask, (left >> 32 & mask) ^ word[3] ^ high, left & mask]
        low, high = low + 0x9E3779B9 & mask, high + 0xBB67AE85 & mask
    return torch.cat(word, -1)[:, :count]


@operator("fractions", kernel="philox", eligible=lambda key, count, dtype, signed: dtype == torch.float32)
def fractions(
    key: Int64[Tensor, "members 2"], count: int, dtype: torch.dtype, signed: bool
) -> Float[Tensor, "members {count}"]:
    """Random fractions for every key, between 0 and 1 or, if signed, between -1/2 and 1/2.

    Each is the middle of a cell, of 32 bits or of 52 in float64. All precision lies near 0, which is never met, while
    the other ends may be by rounding. A key is a seed and a number that tells draws of the same seed apart.
    """
    if dtype == torch.float64:
        high, low = words(key, 2 * count).chunk(2, -1)
        bits, word = 52, high << 20 | low >> 12
    else:
        bits, word = 32, words(key, count)
    half = 2 ** (bits - 1)
    word = (word ^ half) - half if signed else word  # its highest bit is the sign
    return word.to(dtype).add(0.5).mul(2.0**-bits)


def _numpy_fractions(key: Tensor, count: int, dtype: torch.dtype, signed: bool) -> Tensor:
    """Fractions on a CPU by numpy's Philox generator, which is faster there and gives other numbers."""
    # torch's own generator would take 32 bits of a seed, and repeat itself after a hundred thousand keys
    size = _count_words(count, dtype)
    drawn = [np.random.Philox(key=each).random_raw(size) for each in key.numpy().view(np.uint64)]
    return _from_words(torch.from_numpy(np.stack(drawn).view(np.int64)), count, dtype, signed)


_cpu_fractions = torch.library.custom_op("concretely::cpu_fractions", _numpy_fractions, mutates_args=())
_cpu_fractions.register_fake(lambda key, count, dtype, signed: key.new_empty((key.shape[0], count), dtype=dtype))
_cpu_fractions.register_vmap(lambda *given: batched(_cpu_fractions, *given))


def _count_words(count: int, dtype: torch.dtype) -> int:
    """The number of 64-bit words that fractions are made of."""
    return -(-count // (1 if dtype == torch.float64 else 2))


def _from_words(word: Int64[Tensor, "..."], count: int, dtype: torch.dtype, signed: bool) -> Float[Tensor, "..."]:
    """Fractions from 64-bit words: one of the upper 52 bits in float64, two of 32 bits each in float32."""
    if dtype == torch.float64:
        word = word >> 12
        return (word if signed else word.add_(2**51)).to(dtype).add_(0.5).mul_(2.0**-52)
    return _halves(word, signed)[..., :count].to(dtype).add_(0.5).mul_(2.0**-32)


def _halves(pairs: Tensor, signed: bool) -> Tensor:
    """The two 32-bit words of a 64-bit integer."""
    try:
        return pairs.view(torch.int32 if signed else torch.uint32)
    except RuntimeError:  # vmap has no rule for it before torch 2.12
        low, high = (pairs << 32 >> 32, pairs >> 32) if signed else (pairs & 2**32 - 1, pairs >> 32 & 2**32 - 1)
        return torch.cat([low, high], -1)
