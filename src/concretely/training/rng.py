"""The random numbers of a run. All are functions of the seed and the step, so that any step can be repeated."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum, auto
from functools import cache

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor


class Purpose(IntEnum):
    """The purposes of random numbers. Every purpose has its own stream."""

    INITIAL = auto()
    """The parameters that training starts from."""
    ORDER = auto()
    """The order of the data in an epoch."""
    NOISE = auto()
    """The draws of the latents at a step."""
    GAP = auto()
    """The draws of the discrete graph at a step, which measure its gap to the relaxed graph."""
    VALIDATION = auto()
    """The draws that score the validation set, which are the same in each validation."""
    PICTURE = auto()
    """The draws that a report shows."""
    EVALUATION = auto()
    """The draws that score a trained model."""
    TORCH = auto()
    """Draws of a program from torch's global generators at a step, such as dropout."""


def seed_of(seed: int, purpose: Purpose, index: int = 0) -> int:
    """Return a seed for a purpose and an index, such as a step or an epoch, independent of all others.

    >>> seed_of(0, Purpose.NOISE, 1) == seed_of(0, Purpose.NOISE, 1) != seed_of(0, Purpose.ORDER, 1)
    True
    """
    # as a spawn key: in the entropy, a seed of more than one word would run into what follows it
    sequence = np.random.SeedSequence(seed, spawn_key=(purpose, index))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator_of(seed: int, purpose: Purpose, index: int = 0, *, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator for a purpose."""
    return torch.Generator(device).manual_seed(seed_of(seed, purpose, index))


def seed_torch(seed: int, step: int, device: torch.device, *, rank: int = 0) -> None:
    """Seed torch's global generators of the CPU and of a device for a step, and for a rank if ranks must differ."""
    own = (_first_seed(seed) + step + (rank << 40)) % 2**63
    torch.default_generator.manual_seed(own)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(own)


def has_drawn(device: torch.device) -> bool:
    """Return whether numbers were drawn from torch's generator of a GPU since it was seeded."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index].get_offset() > 0


@cache
def _first_seed(seed: int) -> int:
    """Return the seed of the first step. Those of later steps are counted from there, which is faster to compute."""
    return seed_of(seed, Purpose.TORCH)


@contextmanager
def torch_generators(device: torch.device) -> Iterator[None]:
    """Restore torch's global generators of the CPU and of a device at the end of this context."""
    devices = [torch.cuda.current_device() if device.index is None else device.index] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


DRAWS = 1_024
"""The maximum number of draws in one step."""


def keys_of(seed: int, purpose: Purpose, step: int, *, device: torch.device | str = "cpu") -> Int64[Tensor, "draws 2"]:
    """Return the keys of the draws of a step."""
    nonce = step * DRAWS + torch.arange(DRAWS, device=device)
    return torch.stack([torch.full_like(nonce, seed_of(seed, purpose)), nonce], -1)


def draw_offsets(draws: int, parts: int = 1) -> Int64[Tensor, "rows 2"]:
    """Return what the keys of the draws of a step add to its seed and to the number of its first draw.

    Each of several parts has as many draws. If a part draws more, it counts on from its last row. That is a key with
    another seed for all but the last part, as the numbers that follow are those of the draws of the next one.

    >>> draw_offsets(4, parts=2).tolist()
    [[0, 0], [0, 1], [1, 2], [0, 2], [0, 3]]
    """
    own, rows = draws // parts, list[list[int]]()
    for later in reversed(range(parts)):
        first = draws - (later + 1) * own
        rows += [[0, place] for place in range(first, first + own)]
        rows += [[later, first + own]] * bool(own and later)
    return torch.tensor(rows, dtype=torch.int64).view(-1, 2)


def keys_of_part(keys: Int64[Tensor, "rows *members 2"], part: int, parts: int) -> Int64[Tensor, "own *members 2"]:
    """Return the keys of one of several parts of a step from keys that are ordered as in `draw_offsets`."""
    rows = -(-len(keys) // parts)
    return keys[part * rows : (part + 1) * rows]


class Order:
    """The indices of the data points of every step, shuffled in each epoch.

    A batch at the end of an epoch is filled up from the next epoch, so that all batches have the same size. Indices are
    drawn on the CPU, so that the order is the same on every device.

    >>> order = Order(points=5, batch=4, seed=0)
    >>> sorted(torch.cat([order.indices(step) for step in range(5)]).tolist())
    [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4]
    """

    def __init__(self, *, points: int, batch: int, seed: int, part: tuple[int, int, int] = (1, 0, 1)) -> None:
        self.points, self.seed, self._whole, self._part = points, seed, batch, part
        self.batch = batch // part[2]
        """The number of indices of a step."""
        self._epoch, self._shuffled = -1, torch.empty(0, dtype=torch.int64)

    @property
    def key(self) -> tuple[int, ...]:
        """All that the order depends on."""
        return self.points, self._whole, self.seed, *self._part

    def sliced(self, parts: int, rank: int, ranks: int) -> "Order":
        """Return the order of one of several ranks, which takes its slice of each of the parts of a step.

        >>> order = Order(points=8, batch=4, seed=0)
        >>> own = [order.sliced(1, rank, 2).indices(0) for rank in range(2)]
        >>> torch.equal(torch.cat(own), order.indices(0))
        True
        """
        return Order(points=self.points, batch=self._whole, seed=self.seed, part=(parts, rank, ranks))

    def indices(self, step: int) -> Int64[Tensor, " batch"]:
        """Return the indices of the data points of a step."""
        return self.span(step, 1)[0]

    def span(self, step: int, steps: int) -> Int64[Tensor, "steps batch"]:
        """Return the indices of the data points of `steps` steps, beginning with a given step."""
        parts, first, missing = [], step * self._whole, steps * self._whole
        while missing:
            epoch, start = divmod(first, self.points)
            if epoch != self._epoch:
                generator = generator_of(self.seed, Purpose.ORDER, epoch)
                self._epoch, self._shuffled = epoch, torch.randperm(self.points, generator=generator)
            part = self._shuffled[start : start + missing]
            parts.append(part)
            first, missing = first + len(part), missing - len(part)
        whole = torch.cat(parts) if len(parts) > 1 else parts[0]
        divided, rank, ranks = self._part
        return whole.view(steps, divided, ranks, -1)[:, :, rank].reshape(steps, self.batch)
