"""Noise, the only source of randomness; a deterministic `push` maps it to values.

Noise is computed from random integers, each mapped to the midpoint of its interval. Float32 noise uses 32 bits and
float64 noise 52, so noise is always finite and its tails reach probabilities of 2⁻³³ and 2⁻⁵³. `torch.rand`
has only 24 bits and includes 0, in float32 and, under `torch.compile`, also in float64.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from threading import local
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor
from torch.nn.functional import pad
from torch.types import Device

from ..kernel.library import batched
from ..kernel.operator import is_plain
from .arithmetic import scalar
from .philox import fractions, window_fractions
from .slice import Slice
from .torch_draw import sliced_draws, sliced_source, whole_count


class Keys:
    """A counter-based source of noise: each draw uses one key, and equal keys give equal noise.

    The keys are on the device of the noise, so that a CUDA graph can be replayed with new keys. Up to `more` draws
    beyond them count on from the last key.

    >>> keys = torch.tensor([[0, 1], [0, 2]])
    >>> torch.equal(logistic((3,), generator=Keys(keys)), logistic((3,), generator=Keys(keys)))
    True
    """

    def __init__(self, keys: Int64[Tensor, "draws 2"], *, seeds_torch: bool = True, more: int = 0) -> None:
        self._keys, self._more = keys, more if keys.shape[0] else 0
        self._numbers: list[list[int]] | None = None
        self.used = 0
        self.seeds_torch = seeds_torch
        """Whether distributions of torch use a key each. If False, they draw from torch's global generators, which the
        caller has seeded; then nothing waits for the device."""

    def next(self) -> Int64[Tensor, "1 2"]:
        """Return the key of the next draw."""
        place, last = self._advance(), self._keys.shape[0] - 1
        if place > last:
            return self._keys[last:] + pad(self._keys.new_full((1, 1), place - last), (1, 0))
        return self._keys[place : place + 1]

    def next_numbers(self) -> list[int]:
        """Return the key of the next draw as two numbers, if `are_numbers`."""
        if self._numbers is None:
            self._numbers = self._keys.tolist()
        place, last = self._advance(), len(self._numbers) - 1
        if place > last:
            return [self._numbers[last][0], self._numbers[last][1] + place - last]
        return self._numbers[place]

    @property
    def are_numbers(self) -> bool:
        """Whether the keys can be read as numbers, without waiting for a device and unseen by compilers or `vmap`."""
        return self._keys.is_cpu and is_plain((self._keys,))

    def _advance(self) -> int:
        if self.used >= self._keys.shape[0] + self._more:
            raise ValueError(f"keys must have one row for each draw, got only {self.used}")
        self.used += 1
        return self.used - 1


FEW = {"cpu": 2**11, "cuda": 2**22}
"""Up to this number of draws, the time depends on the number of operations, and not on their work."""
_OF_THREAD = local()
Source = Keys | Slice | Generator


def require_source(source: object) -> None:
    """Raise unless a generator is one, or None."""
    if source is not None and not isinstance(source, Source):
        found = type(source).__name__
        raise TypeError(f"generator must be a torch.Generator, such as torch.Generator().manual_seed(0), got {found}")


@contextmanager
def seeded(source: Source | None) -> Iterator[None]:
    """Seed torch's global generators from a source inside the context, for distributions that draw from them."""
    slices = nullcontext() if not isinstance(source, Slice) else sliced_draws(source)
    source = source.source if isinstance(source, Slice) else source
    if source is None or (isinstance(source, Keys) and not source.seeds_torch):
        yield
        return
    if torch.compiler.is_compiling():
        raise TypeError("a generator must be None in a compiled program with distributions of torch, got one")
    if isinstance(source, Keys):
        high, low = source.next().flatten().tolist()
        seed = (high * 0x9E3779B97F4A7C15 + low) % 2**63
    else:
        seed = int(torch.randint(2**62, (), generator=source, device=source.device))
    with torch.random.fork_rng(), slices:
        torch.manual_seed(seed)
        yield


def logistic(
    shape: Sequence[int], dtype: torch.dtype = torch.float32, *, device: Device = None, generator: Source | None = None
) -> Float[Tensor, "..."]:
    """Draw standard logistic noise, the difference of two Gumbels.

    >>> logistic((2, 3), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """
    return logistic_of(_fractions(shape, dtype, device, generator, signed=True))


def gumbel(
    shape: Sequence[int], dtype: torch.dtype = torch.float32, *, device: Device = None, generator: Source | None = None
) -> Float[Tensor, "..."]:
    """Draw standard Gumbel noise."""
    return gumbel_of(uniform(shape, dtype, device=device, generator=generator))


def exponential(
    shape: Sequence[int], dtype: torch.dtype = torch.float32, *, device: Device = None, generator: Source | None = None
) -> Float[Tensor, "..."]:
    """Draw standard exponential noise. Minus its logarithm is Gumbel noise."""
    return uniform(shape, dtype, device=device, generator=generator).neg_().log1p_().neg_()


def few_log_exponential(
    like: Float[Tensor, "..."], factor: float, generator: Generator | None = None
) -> Float[Tensor, "..."]:
    """Draw the logarithm of exponential noise, times a factor, in the shape and dtype of a small tensor on a CPU.

    With a factor of -1, this is Gumbel noise. It takes two operations, is made from 53 bits, and is infinite once in
    2⁵³ draws. For many numbers, `gumbel` is several times faster.
    """
    noise = torch.empty_like(like).exponential_(generator=generator)
    # a tensor without data, such as a fake one, takes only numbers
    return torch.xlogy(scalar(factor) if type(noise) is Tensor else factor, noise, out=noise)


def normal(
    shape: Sequence[int], dtype: torch.dtype = torch.float32, *, device: Device = None, generator: Source | None = None
) -> Float[Tensor, "..."]:
    """Draw standard normal noise."""
    return normal_of(_fractions(shape, dtype, device, generator, signed=True))


def few_normal(
    shape: Sequence[int], dtype: torch.dtype = torch.float32, *, device: Device = None, generator: Source | None = None
) -> Float[Tensor, "..."]:
    """Draw standard normal noise as `normal` does, or by two operations and from 53 bits if there are few numbers."""
    most = FEW.get("cpu" if device is None else torch.device(device).type, 0)
    if _has_keys(generator) or torch.compiler.is_compiling() or _count_whole(shape, generator) > most:
        return normal(shape, dtype, device=device, generator=generator)
    return _by_torch(torch.randn, shape, torch.float64, device, generator).to(dtype)


def uniform(
    shape: Sequence[int], dtype: torch.dtype = torch.float32, *, device: Device = None, generator: Source | None = None
) -> Float[Tensor, "..."]:
    """Draw uniform noise strictly between 0 and 1, with the highest precision near 0."""
    return uniform_of(_fractions(shape, dtype, device, generator, signed=False))


def few_uniform(
    shape: Sequence[int], dtype: torch.dtype = torch.float32, *, device: Device = None, generator: Source | None = None
) -> Float[Tensor, "..."]:
    """Draw uniform noise as `uniform` does, or by few operations and from 53 bits if there are few numbers on a CPU."""
    is_on_cpu = device is None or torch.device(device).type == "cpu"
    is_quick = is_on_cpu and not _has_keys(generator) and not torch.compiler.is_compiling()
    if not is_quick or _count_whole(shape, generator) > FEW["cpu"]:
        return uniform(shape, dtype, device=device, generator=generator)
    most = 1 - torch.finfo(dtype).eps / 2  # no number is 0, nor 1 when it is rounded
    return _by_torch(torch.rand, shape, torch.float64, device, generator).clamp(2.0**-54, most).to(dtype)


def rounding(
    shape: Sequence[int], dtype: torch.dtype = torch.float32, *, device: Device = None, generator: Source | None = None
) -> Float[Tensor, "..."]:
    """Draw uniform noise in [0, 1) to round numbers. In float32 it has 24 bits, as many as a sum with it."""
    if _has_keys(generator) or torch.compiler.is_compiling():
        return uniform(shape, dtype, device=device, generator=generator)
    is_on_cpu = device is None or torch.device(device).type == "cpu"
    if not is_on_cpu or dtype != torch.float32 or _count_whole(shape, generator) <= FEW["cpu"]:
        return _by_torch(torch.rand, shape, dtype, device, generator)
    require_source(generator)
    # from half of the random words that torch.rand takes; the factor keeps all sums below 1
    return _fractions(shape, dtype, device, generator, signed=True, fast=True).mul_(1 - 2.0**-23).add_(0.5)


def _count_whole(shape: Sequence[int], generator: Source | None) -> int:
    """Return how many numbers are drawn for all ranks, as one process would draw them."""
    window = generator.window(math.prod(shape)) if isinstance(generator, Slice) else None
    return whole_count(shape) if window is None else window.blocks * window.stride


def _has_keys(generator: Source | None) -> bool:
    return isinstance(generator.source if isinstance(generator, Slice) else generator, Keys)


def _by_torch(
    draw: Callable[..., Tensor], shape: Sequence[int], dtype: torch.dtype, device: Device, generator: Source | None
) -> Tensor:
    """Draw noise by a function of torch. If ranks share a batch, all draw the whole, of which each has its part."""
    source = generator.source if isinstance(generator, Slice) else generator
    require_source(source)
    window = generator.window(math.prod(shape)) if isinstance(generator, Slice) else None
    if window is None:
        return draw(shape, dtype=dtype, device=device, generator=source)
    whole = draw(window.blocks, window.stride, dtype=dtype, device=device, generator=source)
    return whole.narrow(1, window.first, window.size).reshape(tuple(shape))


def logistic_of(signed: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Map fractions in (-1/2, 1/2) to logistic noise. |fraction| is the smaller tail probability."""
    return signed.abs().logit_().copysign_(signed)


def gumbel_of(tail: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Map upper tail probabilities to Gumbel noise, in place. Large noise, from small probabilities, is precise."""
    return tail.neg_().log1p_().neg_().log_().neg_()


def normal_of(signed: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Map fractions in (-1/2, 1/2) to normal noise. |fraction| is the smaller tail probability."""
    quantile: Tensor = torch.special.ndtri(signed.abs())
    return quantile.copysign_(signed)


def uniform_of(fractions: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Scale float32 fractions in place so that none is 1. (Without this, the largest are rounded to 1.)"""
    return fractions if fractions.dtype == torch.float64 else fractions.mul_(1 - 2.0**-24)


def random_words(*shape: int, device: Device, generator: Generator | None) -> Int64[Tensor, "..."]:
    """Draw 64-bit integers, each with the same probability."""
    require_source(generator)
    # `make_fx` records symbolic shapes only without a generator
    given: dict[str, Any] = {} if generator is None else {"generator": generator}
    return torch.randint(-(2**63), 2**63 - 1, shape, device=device, **given)


def _fractions(
    shape: Sequence[int], dtype: torch.dtype, device: Device, source: Source | None, *, signed: bool, fast: bool = False
) -> Tensor:
    """Draw random fractions in (0, 1), or in (-1/2, 1/2) if signed, with the highest precision near 0."""
    count, window = math.prod(shape), None
    source = sliced_source(shape) if source is None else source
    if isinstance(source, Slice):
        window, source = source.window(count), source.source
    if isinstance(source, Keys):
        if window is None and source.are_numbers:
            return torch.from_numpy(_fractions_from(source.next_numbers(), 0, count, dtype, signed).reshape(shape))
        key = source.next()
        on_cpu = _numpy_fractions if is_plain([key]) else _cpu_fractions
        if window is not None:
            found = (window_fractions if key.device.type != "cpu" else on_cpu)(key, count, dtype, signed, *window)
        else:
            found = (fractions if key.device.type != "cpu" else on_cpu)(key, count, dtype, signed)
    elif torch.compiler.is_compiling():
        if source is not None:
            raise ValueError("generator must be None in a compiled program: draw the noise outside and push it inside")
        found = _compiled_fractions(count, dtype, device, signed)
    else:
        whole = count if window is None else window.blocks * window.stride
        words = _count_words(whole, dtype)
        if fast and not torch._C._are_functorch_transforms_active():  # without the division of `random_words`
            drawn = torch.empty(words, dtype=torch.int64, device=device).random_(-(2**63), None, generator=source)
        else:
            drawn = random_words(words, device=device, generator=source)
        found = _from_words(drawn, whole, dtype, signed)
        if window is not None:
            found = found.view(window.blocks, -1).narrow(1, window.first, window.size).contiguous()
    return found.view(tuple(shape))


def _compiled_fractions(count: int, dtype: torch.dtype, device: Device, signed: bool) -> Tensor:
    """Return random fractions in a compiled program."""
    if device is None or torch.device(device).type != "cuda":
        # on a CPU, inductor's own generator is several times slower
        return fractions.definition(random_words(1, 2, device=device, generator=None), count, dtype, signed)
    bits = 52 if dtype == torch.float64 else 32
    first = -(2 ** (bits - 1)) if signed else 0
    word = torch.randint(first, first + 2**bits, (count,), device=device)  # from 64 random bits
    return word.to(dtype).add(0.5).mul(2.0**-bits)


def _numpy_fractions(
    key: Tensor,
    count: int,
    dtype: torch.dtype,
    signed: bool,
    blocks: int = 1,
    first: int = 0,
    size: int = -1,
    stride: int = 0,
) -> Tensor:
    """Return random fractions on the CPU by numpy's Philox, all or those of a `Window`.

    It is faster than `fractions` and gives other numbers.
    """
    keys, length = key.tolist(), count if size < 0 else size
    starts = (0,) if size < 0 else range(first, first + blocks * stride, stride)
    drawn = [_fractions_from(own, start, length, dtype, signed) for own in keys for start in starts]
    return torch.from_numpy(drawn[0] if len(drawn) == 1 else np.concatenate(drawn)).view(len(keys), count)


_cpu_fractions = torch.library.custom_op("concretely::cpu_fractions", _numpy_fractions, mutates_args=())
_cpu_fractions.register_fake(lambda key, count, dtype, signed, *_: key.new_empty((key.shape[0], count), dtype=dtype))
_cpu_fractions.register_vmap(lambda *given: batched(_cpu_fractions, *given))


def _fractions_from(key: Sequence[int], first: int, count: int, dtype: torch.dtype, signed: bool) -> np.ndarray:
    """Return `count` fractions of a key from a place on: one of 52 bits or two of 32 for each word (see `_from_words`).

    Numpy converts them in fewer operations than torch.
    """
    # torch's generator would use only 32 bits of the seed, so that keys would collide
    of_word = 1 if dtype == torch.float64 else 2
    start, end = first // of_word, -(-(first + count) // of_word)
    counter = start // 4  # each counter gives four words
    word = _philox(key, counter).random_raw(end - 4 * counter)[start - 4 * counter :]
    if dtype == torch.float64:
        whole = word.view(np.int64) >> 12
        return ((whole if signed else whole + 2**51) + 0.5) * 2.0**-52
    half = word.view(np.int32 if signed else np.uint32)[first % 2 : first % 2 + count].astype(np.float32)
    half += 0.5
    half *= 2.0**-32
    return half


def _philox(key: Sequence[int], counter: int) -> np.random.Philox:
    """Return numpy's Philox of a key from a counter on, valid until the next call in this thread.

    A new one would first read a seed from the system, which takes longer than to draw thousands of words.
    """
    if not hasattr(_OF_THREAD, "philox"):
        _OF_THREAD.philox = np.random.Philox(0)
    found: np.random.Philox = _OF_THREAD.philox
    state: Any = {  # of numbers, which it reads faster than arrays
        "bit_generator": "Philox",
        "state": {"counter": (counter, 0, 0, 0), "key": [word % 2**64 for word in key]},
        "buffer": (0, 0, 0, 0),
        "buffer_pos": 4,
        "has_uint32": 0,
        "uinteger": 0,
    }
    found.state = state
    return found


def _count_words(count: int, dtype: torch.dtype) -> int:
    """Return the number of 64-bit words that `count` fractions need."""
    return -(-count // (1 if dtype == torch.float64 else 2))


def _from_words(word: Int64[Tensor, "..."], count: int, dtype: torch.dtype, signed: bool) -> Float[Tensor, "..."]:
    """Convert each 64-bit word to a float64 fraction of 52 bits, or two float32 ones of 32 bits. May overwrite it."""
    if dtype == torch.float64:
        word = word >> 12
        return (word if signed else word.add_(2**51)).to(dtype).add_(0.5).mul_(2.0**-52)
    halves = _halves(word, signed)
    found = halves if halves.shape[-1] == count else halves[..., :count]
    if not (word.is_cpu and is_plain((word,))):
        return found.to(dtype).add_(0.5).mul_(2.0**-32)
    is_view = found is halves and halves.dtype.itemsize == dtype.itemsize
    found = word.view(dtype).detach().copy_(halves) if is_view else found.to(dtype)  # new memory would take time
    return torch.add(scalar(2.0**-33), found, alpha=2.0**-32, out=found)  # the same in one pass


def _halves(pairs: Tensor, signed: bool) -> Tensor:
    """Split 64-bit integers into 32-bit words."""
    if torch._C._get_tracing_state() is None:  # `torch.jit.trace` does not support this view
        with suppress(RuntimeError):  # nor does vmap before torch 2.12
            return pairs.view(torch.int32 if signed else torch.uint32)
    low, high = (pairs << 32 >> 32, pairs >> 32) if signed else (pairs & 2**32 - 1, pairs >> 32 & 2**32 - 1)
    return torch.cat([low, high], -1)
