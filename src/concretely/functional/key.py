"""Keys of draws by kernels, which compute noise from a key and a counter."""

from threading import Lock

import torch
from jaxtyping import Int64
from torch import Generator, Tensor
from torch.types import Device

from .noise import Keys, Source, random_words
from .slice import Slice

Key = tuple[int, int] | Int64[Tensor, "1 2"]
"""The key of a draw: two numbers, which need no launch, or a tensor, which can change in a captured graph."""
_OFFSETS = Lock()


def key_of(source: Source | None, device: Device) -> Int64[Tensor, "1 2"]:
    """Return the key of one draw: the next of `Keys`, or one drawn from a generator. Ranks get the same key."""
    source = source.source if isinstance(source, Slice) else source
    return source.next() if isinstance(source, Keys) else random_words(1, 2, device=device, generator=source)


def kernel_key(source: Source | None, device: torch.device) -> Key:
    """Return the key of a draw by a kernel: two numbers if the kernel is launched at once, else a tensor.

    A graph that is captured or traced would draw from the same numbers again. Ranks get the key of one process.
    """
    own = source.source if isinstance(source, Slice) else source
    is_near = device.type == "cuda" and (own is None or (isinstance(own, Generator) and own.device == device))
    if not is_near or torch.cuda.is_current_stream_capturing() or torch._C._get_tracing_state() is not None:
        return key_of(source, device)
    return numbers_of(own, device)  # type: ignore[arg-type]


def key_tensor(key: Key, device: torch.device) -> Int64[Tensor, "1 2"]:
    """Return a key as a tensor."""
    return key if isinstance(key, Tensor) else torch.tensor([key], device=device)


def numbers_of(source: Generator | None, device: torch.device) -> tuple[int, int]:
    """Return a key for one draw on a GPU as two numbers of 64 bits, without work on the GPU.

    They are the seed and the offset of a generator, which moves on. A CUDA graph that is being captured would replay
    the same key: use `key_of` there.
    """
    generator = torch.cuda.default_generators[device.index] if source is None else source
    with _OFFSETS:  # two threads must not get the same key
        seed, offset = generator.initial_seed(), generator.get_offset()
        generator.set_offset(offset + 4)  # torch counts in fours
    # the highest bits keep the key apart from those of torch's own draws
    return (seed ^ seed >> 62) & (2**62 - 1) | 2**62, offset | 2**62
