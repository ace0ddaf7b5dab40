"""Random operations of torch on a slice of a batch, such as dropout, drawn as for the whole batch."""

from typing import Any

import torch
from torch import Size, Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_map_only

from .slice import Slice

_ATEN = torch.ops.aten
IN_PLACE = {
    _ATEN.bernoulli_,
    _ATEN.normal_,
    _ATEN.uniform_,
    _ATEN.exponential_,
    _ATEN.log_normal_,
    _ATEN.cauchy_,
    _ATEN.geometric_,
    _ATEN.random_,
}
"""Random operations that fill their first argument."""
OF_TENSORS = {
    _ATEN.bernoulli,
    _ATEN.normal,
    _ATEN.native_dropout,
    _ATEN.multinomial,
    _ATEN.poisson,
    _ATEN.binomial,
    _ATEN._standard_gamma,
    _ATEN._sample_dirichlet,
    _ATEN.rand_like,
    _ATEN.randn_like,
    _ATEN.randint_like,
}
"""Random operations whose results have the rows of their arguments."""
OF_SIZES = {_ATEN.rand: 0, _ATEN.randn: 0, _ATEN.randint: None, _ATEN.normal: 2}
"""Random operations of a size, and the place of the size among their arguments; that of integers is the last."""
LOWEST = -(2**63)
"""The lowest integer, from which only the noise of this library is drawn. It is sliced there."""


class SlicedDraws(TorchDispatchMode):
    """Inside this context, random operations of torch on a slice of a batch draw what its rows get in the whole batch.

    All ranks must have seeded torch's generators alike. A tensor has rows if its shape begins with the number of data
    points, of samples and data points, or of both as two axes. Operations on other shapes draw the same on all ranks.
    """

    def __init__(self, source: Slice, *, rows: int, samples: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._source, self._rows, self._samples = source, rows, samples
        self.is_needed = False
        """Whether there was any random operation."""

    def slice_of(self, shape: Size | tuple[int, ...]) -> Slice:
        """Return the source of noise of a shape from torch's global generator."""
        self.is_needed = True
        blocks = self._blocks(Size(shape))
        return self._source if blocks is None else self._source.of_rows(blocks, self._rows)

    def _blocks(self, shape: Size) -> int | None:
        """Return the number of blocks of rows of a shape, or None if it has no rows."""
        if self._samples > 1 and shape[:2] == (self._samples, self._rows):
            return self._samples
        if shape[:1] == (self._rows,):
            return 1
        return self._samples if shape[:1] == (self._samples * self._rows,) else None

    def _wide(self, tensor: Tensor) -> Tensor:
        """Repeat the rows of a tensor for every rank."""
        blocks, ranks = self._blocks(tensor.shape), self._source.ranks
        if blocks is None:
            return tensor
        split = tensor.reshape(blocks, 1, self._rows, -1)
        return split.expand(-1, ranks, -1, -1).reshape(self._wide_shape(tensor.shape))

    def _wide_shape(self, shape: Size) -> Size:
        ranks, blocks = self._source.ranks, self._blocks(shape)
        if blocks is None:
            return shape
        if self._samples > 1 and shape[:2] == (self._samples, self._rows):
            return Size((shape[0], shape[1] * ranks, *shape[2:]))
        return Size((shape[0] * ranks, *shape[1:]))

    def _narrow(self, whole: Tensor, shape: Size) -> Tensor:
        """Return the rows of this rank of a tensor for the whole batch."""
        blocks = self._blocks(shape)
        if blocks is None:
            return whole
        split = whole.reshape(blocks, self._source.ranks, self._rows, -1)
        return split[:, self._source.rank].reshape(shape)

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = named or {}
        kind = function.overloadpacket
        is_random = kind in IN_PLACE or kind in OF_TENSORS or kind in OF_SIZES
        is_own = kind is _ATEN.randint and given[0] == LOWEST
        if not is_random or is_own or named.get("generator") is not None:
            return function(*given, **named)
        self.is_needed = True
        if kind in IN_PLACE:
            own: Tensor = given[0]
            whole = torch.empty(self._wide_shape(own.shape), dtype=own.dtype, device=own.device)
            function(whole, *given[1:], **named)
            return own.copy_(self._narrow(whole, own.shape))
        first = next((each for each in given if isinstance(each, Tensor)), None)
        if first is not None:
            shapes = [each.shape for each in given if isinstance(each, Tensor)]
            found = function(*tree_map_only(Tensor, self._wide, given), **named)
            return tree_map_only(Tensor, lambda each: self._narrowed(each, shapes), found)
        place = OF_SIZES.get(kind)
        at = place if place is not None else max(k for k, each in enumerate(given) if isinstance(each, list | tuple))
        size = Size(given[at])
        found = function(*given[:at], list(self._wide_shape(size)), *given[at + 1 :], **named)
        return self._narrow(found, size)

    def _narrowed(self, whole: Tensor, shapes: list[Size]) -> Tensor:
        """Return the rows of this rank of a result of tensors of some shapes."""
        blocks = next((found for shape in shapes if (found := self._blocks(shape)) is not None), None)
        if blocks is None:
            return whole
        rows, ranks = self._rows, self._source.ranks
        two = self._samples > 1 and any(shape[:2] == (self._samples, rows) for shape in shapes)
        own = (whole.shape[0], rows, *whole.shape[2:]) if two else (whole.shape[0] // ranks, *whole.shape[1:])
        return whole.reshape(blocks, ranks, rows, -1)[:, self._source.rank].reshape(own)


def sliced_source(shape: tuple[int, ...]) -> Slice | None:
    """Return the source of noise of a shape inside the context of `SlicedDraws`, or None outside."""
    modes = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, SlicedDraws)]
    return modes[-1].slice_of(shape) if modes else None
