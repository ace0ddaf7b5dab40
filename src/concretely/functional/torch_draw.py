"""Random operations of torch on a slice of a batch, such as dropout, drawn as for the whole batch."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
"""The lower limit of the integers that only the noise of this library draws. That noise is already sliced."""


class SlicedDraws(TorchDispatchMode):
    """Inside this context, random operations of torch on a slice of a batch draw as they would for the whole batch.

    All ranks must have seeded torch's generators alike. A tensor has rows if its shape begins with the number of data
    points, of samples and data points, or of both as two axes. Operations on other shapes draw the same on all ranks.
    """

    def __init__(self, source: Slice, *, rows: int, samples: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._source, self._rows, self._samples = source, rows, samples
        self._first, self._total = source.bounds(rows)
        self._is_shared = False
        self.is_needed = False
        """Whether there was any random operation."""

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Inside this context, draws of any shape are shared by all data points."""
        before, self._is_shared = self._is_shared, True
        try:
            yield
        finally:
            self._is_shared = before

    def slice_of(self, shape: Size | tuple[int, ...]) -> Slice:
        """Return the source of noise of a shape from torch's global generator."""
        self.is_needed = True
        split = self._split(Size(shape))
        return self._source if split is None else self._source.of_rows(split[0], self._rows)

    def _split(self, shape: Size) -> Size | None:
        """Return a shape with separate axes of samples and rows in front, or None if it has no rows."""
        if self._is_shared:
            return None
        if self._samples > 1 and shape[:2] == (self._samples, self._rows):
            return shape
        if shape[:1] == (self._rows,):
            return Size((1, *shape))
        if shape[:1] == (self._samples * self._rows,):
            return Size((self._samples, self._rows, *shape[1:]))
        return None

    def whole(self, shape: Size) -> Size:
        """Return the shape of the whole batch."""
        split = self._split(shape)
        if split is None:
            return shape
        if split == shape:
            return Size((shape[0], self._total, *shape[2:]))
        return Size((split[0] * self._total, *split[2:]))

    def _widened(self, tensor: Tensor) -> Tensor:
        """Return a tensor for the whole batch, in which the rows of this rank have their place."""
        split = self._split(tensor.shape)
        if split is None:
            return tensor
        index = torch.arange(self._total, device=tensor.device).sub_(self._first).clamp_(0, self._rows - 1)
        return tensor.reshape(split).index_select(1, index).reshape(self.whole(tensor.shape))

    def _narrowed(self, whole: Tensor, like: Size) -> Tensor:
        """Return the rows of this rank of a result, which has the rows of a tensor of shape `like`."""
        split = self._split(like)
        if split is None:
            return whole
        is_split = split == like
        parts = whole if is_split else whole.unflatten(0, (split[0], self._total))
        own = parts.narrow(1, self._first, self._rows)
        return own.contiguous() if is_split else own.flatten(0, 1)

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = named or {}
        kind = function.overloadpacket
        is_random = kind in IN_PLACE or kind in OF_TENSORS or kind in OF_SIZES
        is_own = (kind is _ATEN.randint and given[0] == LOWEST) or (kind is _ATEN.random_ and LOWEST in given[1:2])
        if not is_random or is_own or named.get("generator") is not None:
            return function(*given, **named)
        self.is_needed = True
        if kind in IN_PLACE:
            own: Tensor = given[0]
            whole = torch.empty(self.whole(own.shape), dtype=own.dtype, device=own.device)
            function(whole, *given[1:], **named)
            return own.copy_(self._narrowed(whole, own.shape))
        shapes = [arg.shape for arg in given if isinstance(arg, Tensor)]
        if shapes:
            like = next((shape for shape in shapes if self._split(shape) is not None), shapes[0])
            drawn = function(*tree_map_only(Tensor, self._widened, given), **named)
            return tree_map_only(Tensor, lambda tensor: self._narrowed(tensor, like), drawn)
        place = OF_SIZES[kind]
        at = place if place is not None else max(k for k, arg in enumerate(given) if isinstance(arg, list | tuple))
        size = Size(given[at])
        drawn = function(*given[:at], list(self.whole(size)), *given[at + 1 :], **named)
        return self._narrowed(drawn, size)


def sliced_source(shape: Sequence[int]) -> Slice | None:
    """Return the source of noise of a shape inside the context of `SlicedDraws`, or None outside."""
    mode = _active()
    return None if mode is None else mode.slice_of(tuple(shape))


def whole_count(shape: Sequence[int]) -> int:
    """Return how many numbers a tensor would have in the batch that ranks share inside the context of `SlicedDraws`."""
    mode = _active()
    return math.prod(shape if mode is None else mode.whole(Size(shape)))


def shared_draws() -> AbstractContextManager[None]:
    """Return a context for draws that all data points share, which are the same on all ranks."""
    mode = _active()
    return nullcontext() if mode is None else mode.sharing()


def sliced_draws(source: Slice) -> AbstractContextManager[Any]:
    """Return the context in which torch draws for the rows of a slice."""
    if source.layout is None:
        return nullcontext()
    return SlicedDraws(source, rows=source.layout[1], samples=source.layout[0])


def _active() -> SlicedDraws | None:
    """Return the context of `SlicedDraws` that a draw is in, if there is one."""
    if torch.compiler.is_compiling() or not torch._C._len_torch_dispatch_stack():
        return None
    modes = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, SlicedDraws)]
    return modes[-1] if modes else None
