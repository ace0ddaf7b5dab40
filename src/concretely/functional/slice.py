"""The noise of a slice of a batch that several processes share."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Generator, Tensor

from ..kernel.operator import is_plain

if TYPE_CHECKING:
    from .noise import Keys


class Window(NamedTuple):
    """The places of some numbers among all numbers of a draw: in every block, `size` of `stride`, from `first` on."""

    blocks: int
    first: int
    size: int
    stride: int


def spans(count: int, size: int, window: Window | None) -> list[tuple[int, int, int]]:
    """Return the ends of spans of up to `size` of `count` rows, and the place of the first row of each.

    >>> spans(6, 2, Window(blocks=2, first=3, size=3, stride=9))
    [(0, 2, 3), (2, 3, 5), (3, 5, 12), (5, 6, 14)]
    """
    blocks, first, length, stride = window or Window(1, 0, count, count)
    return [
        (start, min(start + size, (block + 1) * length), block * (stride - length) + first + start)
        for block in range(blocks)
        for start in range(block * length, (block + 1) * length, size)
    ]


@dataclass(frozen=True, eq=False)
class Slice:
    """A source of noise for a slice of a batch that several processes (ranks) share, in slices of equal size.

    Every rank gets the noise that its rows would get if one process drew for the whole batch from `source`, which must
    be the same on all ranks. A draw that all data points share is the same on all ranks.

    >>> import torch
    >>> from concretely.functional.noise import Keys
    >>> from concretely.functional.noise import logistic
    >>> keys = torch.tensor([[0, 1]])
    >>> own = [Slice(Keys(keys), rank=rank, ranks=2).of_rows(1, 3) for rank in range(2)]
    >>> whole = logistic((6, 4), generator=Keys(keys))
    >>> torch.equal(torch.cat([logistic((3, 4), generator=source) for source in own]), whole)
    True
    """

    source: "Generator | Keys | None"
    """The source of the noise of the whole batch, or None for torch's global generator."""
    rank: int
    ranks: int
    total: Callable[[Tensor], Tensor] = lambda tensor: tensor
    """Returns the sum of a tensor over all ranks."""
    layout: tuple[int, int] | None = None
    """The numbers of blocks, one for each sample, and of rows in each; None for draws that all data points share."""
    place: tuple[int, int] | None = None
    """The index of the first row in the batch and the number of its rows, if slices are not of equal size."""

    def of_rows(self, blocks: int, rows: int) -> "Slice":
        """Return the source of a draw for some rows in each of some blocks."""
        return replace(self, layout=(blocks, rows))

    def at(self, first: int, rows: int) -> "Slice":
        """Return the source for a slice that starts at row `first` of a batch of `rows` rows."""
        return replace(self, place=(first, rows))

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean of a tensor over all ranks."""
        return self.total(tensor) / self.ranks

    def bounds(self, rows: int) -> tuple[int, int]:
        """Return the index in the batch of the first of `rows` rows of this rank, and the size of the batch."""
        return (self.rank * rows, self.ranks * rows) if self.place is None else self.place

    def window(self, count: int) -> Window | None:
        """Return the places of `count` numbers among those of the whole batch, or None for all of them."""
        if self.layout is None or not count:
            return None
        blocks, rows = self.layout
        units, rest = divmod(count, blocks * rows)
        if rest:
            raise ValueError(f"the noise of {blocks * rows} rows must have as many numbers in each, got {count}")
        first, total = self.bounds(rows)
        return Window(blocks, first * units, rows * units, total * units)


def total_over_ranks(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor over all ranks of the process group of torch."""
    return _total(tensor) if is_plain([tensor]) else _total_operator(tensor)


def _total(tensor: Tensor) -> Tensor:
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    if total.is_cpu and dist.get_backend() == "nccl":  # which has no tensors of the host
        moved = total.cuda()
        dist.all_reduce(moved)
        return total.copy_(moved)
    dist.all_reduce(total)
    return total


_total_operator = torch.library.custom_op("concretely::total_over_ranks", _total, mutates_args=())
_total_operator.register_fake(torch.empty_like)
_total_operator.register_vmap(lambda info, dims, tensor: (_total_operator(tensor), dims[0]))
