"""Data points: their tensors, the runs and the ranks that evaluate them, and the standard error of their mean."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float64
from torch import Tensor

from ..functional.noise import Source
from ..functional.slice import Slice
from .progress import Advance

PAIRS_ON_CPU, PAIRS_ON_GPU = 4_096, 2**20
"""The number of pairs of a sample and a data point in one run, if memory allows. 784 units take 13 MB or 3 GB.

A larger number makes a CPU slower, since it allocates new memory. A smaller number leaves a GPU waiting for launches.
"""
Run = Callable[[slice, int, Source | None], Tensor]
"""Returns numbers of some data points, along the last axis, from some samples of each and a source of noise."""


@runtime_checkable
class Packed(Protocol):
    """A data set of packed bits, such as `load_data("digits").test`. A slice is a tensor."""

    @property
    def packed(self) -> Tensor: ...

    def __getitem__(self, index: slice, /) -> Tensor: ...


def tensors_of(data: Sequence[Any]) -> tuple[Tensor, ...]:
    """Return data sets of bits as tensors of float32, as `fit` passes them to a model."""
    return tuple(part[:].float() if isinstance(part, Packed) else part for part in data)


def standard_error(values: Float64[Tensor, " points"]) -> float:
    """Return the standard error of the mean of independent values.

    It is infinite for a single value, and if the mean is infinite.

    >>> import torch
    >>> standard_error(torch.tensor([1.0, 3.0], dtype=torch.float64))
    1.0
    """
    if len(values) == 1 or not math.isfinite(values.mean().item()):
        return math.inf
    return values.std().item() / math.sqrt(len(values))


def rows_of_rank(points: int, generator: Source | None) -> tuple[slice, Source | None]:
    """Return the rows of a batch that this rank evaluates, and their source of noise."""
    if not isinstance(generator, Slice) or points < generator.ranks:
        return slice(0, points), generator.source if isinstance(generator, Slice) else generator
    edges = [rank * points // generator.ranks for rank in (generator.rank, generator.rank + 1)]
    return slice(*edges), generator.at(edges[0], points)


def gathered(own: Tensor, points: int, source: Source | None) -> Tensor:
    """Gather one number for each data point, along the last axis, from all ranks."""
    if not isinstance(source, Slice) or source.place is None:
        return own
    whole = own.new_zeros(*own.shape[:-1], points)
    whole.narrow(-1, source.place[0], own.shape[-1]).copy_(own)
    return source.total(whole)


def points_at_once(samples: int, chunk: int) -> int:
    """Return the number of data points in a run of at most `chunk` pairs of a sample and a data point."""
    return max(1, chunk // _samples_at_once(samples, chunk))


def run_in_parts(
    run: Run,
    add: Callable[[Tensor, Tensor], Tensor],
    *,
    points: int,
    at_once: int,
    samples: int,
    chunk: int,
    generator: Source | None,
    advance: Advance,
) -> Iterator[Tensor]:
    """Yield numbers of all data points, `at_once` of them at a time, each from all samples.

    The samples are split into runs of at most `chunk` pairs of a sample and a data point, whose numbers `add` adds up.
    """
    most = _samples_at_once(samples, chunk)
    for first in range(0, points, at_once):
        count = min(at_once, points - first)
        rows, source = rows_of_rank(count, generator)
        own, total = slice(first + rows.start, first + rows.stop), None
        for done in range(0, samples, most):
            drawn = min(most, samples - done)
            numbers = run(own, drawn, source)
            total = numbers if total is None else add(total, numbers)
            advance(drawn * count)
        assert total is not None
        yield gathered(total, count, source)


def _samples_at_once(samples: int, chunk: int) -> int:
    """Return the number of samples in a run, for as few runs as possible, of nearly equal size."""
    return math.ceil(samples / math.ceil(samples / chunk))


def require_positive(name: str, number: int) -> None:
    """Raise an error unless a number is a positive integer."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{name} must be a positive whole number, got {number!r}")
