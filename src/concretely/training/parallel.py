"""Training of one model by several processes, called ranks, as `torchrun` starts them.

Every rank has the whole model and takes its slice of each batch. Noise depends on the seed, the step and the place of a
data point in the whole batch, and gradients are averaged over ranks. So the number of ranks changes nothing but the
order of summation: a run of one process is the reference for all. Rank 0 alone writes files and shows progress.
"""

import atexit
import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import torch
import torch.distributed as dist
from torch import Generator, Tensor
from torch.distributed.distributed_c10d import _get_default_store
from torch.utils._pytree import tree_leaves, tree_map_only

from ..functional.noise import Keys, Source
from ..functional.slice import Slice, total_over_ranks
from ..functional.torch_draw import SlicedDraws
from ..spelling import first_line
from .ballot import Ballot
from .feed import Feed, Indexed, Inputs
from .group import (
    LOST_RANK,
    MOMENT,
    PATIENCE,
    TIMEOUT,
    LostRankError,
    is_nccl,
    is_started_by_torchrun,
    linger,
    own_gpu,
    start,
)
from .rng import Purpose, keys_of, seed_torch, torch_generators
from .source import HostIndexed
from .stream import StreamBatches, to_device

LOST = re.compile(r"third_party/gloo|gloo::|NCCL|Connection (closed|reset) by peer")
"""What torch's errors about other ranks say."""
MARKED = 10_000
"""The number of entries of each tensor of a batch by which ranks compare what they read."""


@dataclass(frozen=True, eq=False)
class World:
    """The ranks that train one model together, seen from one of them. A single process is a world of one rank."""

    rank: int = 0
    ranks: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 (immutable)
    """The device of this rank."""
    shards: bool = False
    """Whether each rank has only a part of the parameters."""
    call: str = "0"
    """A name of this world that is unique within its process group."""
    ballot: Ballot | None = field(default=None, repr=False)
    may_capture: bool = True
    """Whether a step may be captured as a CUDA graph: all but the averages over ranks of gloo and of FSDP2."""

    @property
    def is_first(self) -> bool:
        """Whether this rank writes files and shows progress."""
        return self.rank == 0

    @overload
    def noise(self, source: Generator) -> Generator | Slice: ...
    @overload
    def noise(self, source: Keys) -> Keys | Slice: ...
    def noise(self, source: Generator | Keys) -> Source:
        """Return the source of this rank's part of the noise of a batch."""
        return source if self.ranks == 1 else Slice(source, rank=self.rank, ranks=self.ranks, total=total_over_ranks)

    def feed(self, feed: Feed) -> Feed:
        """Return the slice of a feed that this rank takes."""
        if self.ranks == 1:
            return feed
        if isinstance(feed, Indexed) or (isinstance(feed, HostIndexed) and not feed.is_random):
            require_divides(self.ranks, feed.order.batch // feed.parts)
            return feed.sliced(self.rank, self.ranks)
        return SlicedBatches(feed, self.rank, self.ranks)

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean of a tensor over all ranks."""
        return tensor if self.ranks == 1 else total_over_ranks(tensor) / self.ranks

    def means(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the means of tensors over all ranks, by one operation for each dtype."""
        means = dict[int, Tensor]()
        for dtype in {tensor.dtype: None for tensor in tensors}:
            group = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
            flat = torch.cat([tensors[place].reshape(-1) for place in group])
            dist.all_reduce(flat)
            flat /= self.ranks
            parts = flat.split([tensors[place].numel() for place in group])
            means |= {place: part.view(tensors[place].shape) for place, part in zip(group, parts, strict=True)}
        return [means[place] for place in range(len(tensors))]

    def agreed(self, *, stop: bool, due: bool) -> tuple[bool, bool]:
        """Return whether all ranks stop after this step, and write a checkpoint. Each may ask for it."""
        if self.ballot is None:
            return stop, due
        stops, saves = self.ballot.read()
        self.ballot.cast(stop=stop, due=due and self.is_first and not saves)
        return stops, saves

    def settle(self) -> None:
        """Wait until the device has done its work, unless another rank does not answer."""
        if self.ballot is not None:
            self.ballot.wait()

    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        """Set tensors to those of rank 0."""
        for tensor in tensors if self.ranks > 1 else ():
            own = tensor.contiguous()
            dist.broadcast(own, 0)
            tensor.copy_(own)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, which must be plain."""
        gathered = [value] * self.ranks
        if self.ranks > 1:
            dist.all_gather_object(gathered, value)
        return gathered

    def wait(self) -> None:
        """Wait until all ranks are here."""
        self.gather(None)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Inside this context, rank 0 works first and the others afterwards, such as on files that it downloads."""
        if not self.is_first:
            self.wait()
        yield
        if self.is_first:
            self.wait()

    def require_same(self, what: str, value: Mapping[str, Any]) -> None:
        """Raise unless all ranks have the same values."""
        if self.ranks == 1:
            return
        for rank, other in enumerate(every := self.gather(dict(value))):
            for name in {**every[0], **other}:
                here, there = every[0].get(name), other.get(name)
                if here != there:
                    got = f"{name} {there!r} on rank {rank} and {here!r} on rank 0"
                    raise ValueError(f"ranks must have the same {what}, got {got}: start all with the same arguments")

    def require_same_batches(self, feed: Feed, step: int) -> None:
        """Raise unless all ranks read the same batches in a step, of which each takes its slice."""
        every = self.gather(feed.digest(step) if isinstance(feed, SlicedBatches) else "")
        if any(digest != every[0] for digest in every):
            rank = next(rank for rank, digest in enumerate(every) if digest != every[0])
            todo = "leave out samplers such as DistributedSampler, as each rank takes its slice of every batch"
            raise ValueError(f"ranks must read the same batches, got others on rank {rank} than on rank 0: {todo}")

    def require_alone(self, name: str, why: str) -> None:
        """Raise if there are several ranks, with which a setting is not possible."""
        if self.ranks > 1:
            raise ValueError(f"{name} must be left out on several ranks, as {why}, got it on {self.ranks} ranks")

    def require_visible(self, folder: Path) -> None:
        """Raise unless all ranks see a folder of rank 0."""
        if self.ranks == 1:
            return
        mark = folder / f".rank-{os.getpid()}"
        if self.is_first:
            mark.touch()
        try:
            (name, *_) = self.gather(mark.name)
            every = self.gather(_appears(folder / name))
        finally:
            if self.is_first:
                mark.unlink(missing_ok=True)
        if not all(every):
            rank = every.index(False)
            must = f"{str(folder)!r} must be a folder that all ranks see"
            raise ValueError(f"{must}, got none on rank {rank}: choose one on a shared file system")

    def first_to_tell(self, error: BaseException) -> bool:
        """Return whether this rank should report its error: the first to fail, or rank 0 if it fails as well."""
        if self.ranks == 1:
            return True
        with suppress(RuntimeError):
            store, name = _get_default_store(), f"concretely/{self.call}/told"
            until = time.monotonic() + PATIENCE * (not self.is_first)
            while time.monotonic() < until and store.add(name, 0) == 0:
                time.sleep(MOMENT)
            return store.add(name, 1) == 1
        # without a store rank 0 has ended: it has reported its own error, unless it was killed
        return is_lost(error) and self.rank == 1

    @contextmanager
    def telling_once(self) -> Iterator[None]:
        """Inside this context, one rank raises an error, and the others exit silently."""
        try:
            yield
        except Exception as error:
            if self.ranks == 1:
                raise
            if not self.first_to_tell(error):
                raise SystemExit(1) from None
            if is_lost(error):
                raise LostRankError(describe_loss(error)) from error
            raise


ALONE = World()
"""The world of a single process."""


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the shapes and dtypes of tensors, which all ranks must have alike before they send them to each other.

    >>> shapes_of({"weight": torch.zeros(2, 3)})
    {'weight': '(2, 3) of torch.float32'}
    """
    return {name: f"{tuple(tensor.shape)} of {tensor.dtype}" for name, tensor in state.items()}


def is_lost(error: BaseException) -> bool:
    """Return whether an error says that another rank has ended or does not answer."""
    known = LostRankError | dist.DistError
    return isinstance(error, known) or (isinstance(error, RuntimeError) and LOST.search(str(error)) is not None)


def describe_loss(error: BaseException) -> str:
    """Return a sentence about a rank that was lost."""
    if isinstance(error, LostRankError):
        return str(error)
    if "Duplicate GPU" in str(error):
        todo = "start one rank for each GPU of a machine, or start the process group with gloo"
        return f"every rank must have a GPU of its own, got two ranks on one: {todo}"
    return f"{LOST_RANK} ({first_line(error)})"


def join(device: torch.device | str, *, shard: bool = False) -> World:
    """Return the world of this process: that of `torchrun`, or of a process group of the caller, or of one rank.

    A GPU is that of the local rank, unless its index is given. `shard` says whether parameters are sharded over ranks.
    """
    device = torch.device(device)
    if not dist.is_available() or not (dist.is_initialized() or is_started_by_torchrun()):
        return World(device=device)
    device = own_gpu(device) if device.type == "cuda" else device
    if not dist.is_initialized():
        start(device)
    else:  # a group that the caller has started, and leaves
        atexit.unregister(linger)
        atexit.register(linger)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks == 1:
        return World(device=device)
    store = _get_default_store()
    call = str(store.add(f"concretely/joined/{rank}", 1))  # the same number on all ranks
    captures = is_nccl(device) and not shard
    return World(rank, ranks, device, shard, call, Ballot(device, TIMEOUT.total_seconds()), captures)


def rank_noise(*, seed: int, step: int, device: torch.device | str = "cpu") -> Source:
    """Return the noise of a step for this rank's slice of a batch, to pass as `generator` to `estimate`.

    It is for training loops of one's own, such as around `DistributedDataParallel`. A single process gets the noise of
    the whole batch. All slices must have the same size. `NVIL` averages its running mean and variance over ranks.

    >>> import concretely as c
    >>> model, x = c.density("2H-6V"), torch.zeros(4, 6)
    >>> model(x, estimator=c.Pathwise(), generator=rank_noise(seed=0, step=0)).loss.shape
    torch.Size([])
    """
    keys = Keys(keys_of(seed, Purpose.NOISE, step, device=device))
    grouped = dist.is_available() and dist.is_initialized()
    return World(dist.get_rank(), dist.get_world_size()).noise(keys) if grouped else keys


@contextmanager
def rank_draws(
    *, seed: int, step: int, rows: int, samples: int = 1, device: torch.device | str = "cpu"
) -> Iterator[None]:
    """Inside this context, layers and random operations of torch draw for the `rows` data points of this rank.

    It is for training loops of one's own, such as around `DistributedDataParallel`: together, the ranks draw what one
    process would draw for the whole batch of a step. All slices must have the same size.

    >>> import concretely as c
    >>> with rank_draws(seed=0, step=0, rows=4):
    ...     first = c.gumbel_softmax(torch.zeros(4, 3))
    >>> with rank_draws(seed=0, step=0, rows=4):
    ...     torch.equal(c.gumbel_softmax(torch.zeros(4, 3)), first)
    True
    """
    where = torch.device(device)
    source = rank_noise(seed=seed, step=step, device=where)
    with torch_generators(where):
        seed_torch(seed, step, where)
        if isinstance(source, Slice):
            with SlicedDraws(Slice(None, rank=source.rank, ranks=source.ranks), rows=rows, samples=samples):
                yield
        else:
            yield


class SlicedBatches(Feed):
    """The slice of one rank of batches that the host reads. Every rank reads whole batches, as one process would."""

    rows = 0

    def __init__(self, feed: Any, rank: int, ranks: int) -> None:
        self._feed, self._rank, self._ranks = feed, rank, ranks

    def host(self, step: int) -> list[Inputs]:
        """Return the slices of the batches of a step, in the memory of the host."""
        return [sliced(batch, self._rank, self._ranks) for batch in self._feed.host(step)]

    def digest(self, step: int) -> str:
        """Return a digest of the first numbers of the batches of a step, which all ranks must read alike."""
        leaves = [leaf for leaf in tree_leaves(self._feed.host(step)) if isinstance(leaf, Tensor)]
        marks = [f"{tuple(leaf.shape)} {leaf.flatten()[:MARKED].tolist()}" for leaf in leaves]
        return hashlib.sha256(" ".join(marks).encode()).hexdigest()

    def fetch(self, step: int) -> None:
        """Read the batches of a step."""
        self._feed.fetch(step)

    def close(self) -> None:
        """End what reads the batches."""
        self._feed.close()

    def inputs(self, step: int, device: torch.device) -> list[Inputs]:
        """Return the slices of the batches of a step, on a device."""
        return [to_device(batch, device) for batch in self.host(step)]

    @staticmethod
    def shared(feeds: Any, device: torch.device) -> StreamBatches:
        """Return the batches of several members on a device."""
        return StreamBatches(feeds, device)


def sliced(batch: Inputs, rank: int, ranks: int) -> Inputs:
    """Return the slice of a rank of all tensors that have as many rows as the first.

    >>> sliced((torch.arange(4), torch.tensor(7)), 1, 2)
    (tensor([2, 3]), tensor(7))
    """
    first = next((leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)), None)
    if first is None or not first.dim():
        raise ValueError(f"data must have data points to be split among {ranks} ranks, got a batch without any")
    rows = len(first)
    require_divides(ranks, rows, ", and drop a last batch that is smaller")
    own = slice(rank * rows // ranks, (rank + 1) * rows // ranks)
    return tree_map_only(Tensor, lambda leaf: leaf[own] if leaf.dim() and len(leaf) == rows else leaf, batch)


def require_divides(ranks: int, batch: int, advice: str = "") -> None:
    """Raise unless a batch can be split among ranks."""
    if batch % ranks:
        near = max(ranks, batch // ranks * ranks)
        raise ValueError(
            f"batch must be a multiple of the number of ranks, {ranks}, got {batch}: choose {near}{advice}"
        )


def _appears(path: Path) -> bool:
    """Return whether a path exists, or does within a few seconds, as on a network file system."""
    until = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > until:
            return False
        time.sleep(MOMENT)
    return True
