"""Data points: their tensors, the parts of them that ranks evaluate, and the standard error of their mean."""

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float64
from torch import Tensor

from ..functional.noise import Source
from ..functional.slice import Slice


@runtime_checkable
class Packed(Protocol):
    """A data set of packed bits, such as `load_data("digits").test`. A slice is a tensor."""

    @property
    def packed(self) -> Tensor: ...

    def __getitem__(self, index: slice, /) -> Tensor: ...


def tensors_of(data: Sequence[Any]) -> tuple[Tensor, ...]:
    """Return data sets of bits as tensors."""
    return tuple(part[:] if isinstance(part, Packed) else part for part in data)


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


def require_positive(name: str, number: int) -> None:
    """Raise an error unless a number is a positive integer."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{name} must be a positive whole number, got {number!r}")
