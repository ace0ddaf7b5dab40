"""Gradients of weights that stay a pair of factors until they are used.

The gradient of a weight is the product of the inputs of its affine map and of the gradient of the outputs. Inside
`deferred_gradients` it stays a pair of factors when that is smaller; the optimizer multiplies them, right before it
reads the product.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import ceil
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .operator import is_launchable

TILE = 64
"""The height and the width of the part of a product that one GPU multiprocessor computes."""
ENOUGH = 832
"""The number of tiles that keeps the largest GPU busy."""
DEEP = 2_048
"""The minimum number of bytes in a column of a part, when rows are divided into parts."""
SHAPED = {
    torch.ops.aten.alias.default,
    torch.ops.aten.detach.default,
    torch.ops.aten.permute.default,
    torch.ops.aten.squeeze.dim,
    torch.ops.aten.unsqueeze.default,
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
}
"""Operations that autograd applies to the gradient of a weight that was used in another shape."""

_deferring: ContextVar[bool] = ContextVar("deferring", default=False)


@contextmanager
def deferred_gradients(defers: bool = True) -> Iterator[None]:
    """Keep gradients of weights as factors where these are smaller, for forward passes inside this context."""
    token = _deferring.set(defers)
    try:
        yield
    finally:
        _deferring.reset(token)


def is_deferring() -> bool:
    """Return whether gradients may stay factors. Call it in the forward pass: autograd runs in other threads."""
    return _deferring.get()


class DeferredGradient(Tensor):
    """The gradient of a weight as a tensor without storage. Its factors are multiplied when its values are used."""

    x: Float[Tensor, "members rows inputs"]
    by_total: Float[Tensor, "members rows outputs"]

    @staticmethod
    def __new__(cls, x: Tensor, by_total: Tensor, shape: Sequence[int] | None = None) -> "DeferredGradient":
        """Build a gradient from its factors."""
        shape = (len(x), by_total.shape[2], x.shape[2]) if shape is None else shape
        made: DeferredGradient = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32, device=x.device)
        return made

    def __init__(self, x: Tensor, by_total: Tensor, shape: Sequence[int] | None = None) -> None:
        self.x, self.by_total = x, by_total

    def materialize(self) -> Float[Tensor, "..."]:
        """Return the product of the factors."""
        return product(self.x, self.by_total).view(self.shape)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeferredGradient(shape={tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # declared there as a static method
        cls, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        """Keep the factors if an operation only adds or drops leading axes; otherwise multiply them first."""
        first = arguments[0]
        moves = function == torch.ops.aten.permute.default and list(arguments[1]) != list(range(first.dim()))
        if function in SHAPED and isinstance(first, DeferredGradient) and not moves:
            shape = function(torch.empty(first.shape, device="meta"), *arguments[1:]).shape
            if shape[-2:] == first.shape[-2:]:
                return DeferredGradient(first.x, first.by_total, shape)
        arguments, named = tree_map_only(DeferredGradient, DeferredGradient.materialize, (arguments, named or {}))
        return function(*arguments, **named)


def materialized(gradient: Tensor) -> Tensor:
    """Return a gradient as an ordinary tensor."""
    return gradient.materialize() if isinstance(gradient, DeferredGradient) else gradient


def gradient_of_weight(
    x: Float[Tensor, "members rows inputs"], by_total: Float[Tensor, "members rows outputs"], *, deferred: bool
) -> Float[Tensor, "members outputs inputs"]:
    """Return the gradient of a weight, deferred if its factors hold fewer numbers than their product."""
    (_, rows, inputs), outputs = x.shape, by_total.shape[2]
    if deferred and rows * (inputs + outputs) < inputs * outputs:
        return DeferredGradient(x.detach(), by_total)
    return product(x, by_total)


def product(
    x: Float[Tensor, "members rows inputs"], by_total: Float[Tensor, "members rows outputs"]
) -> Float[Tensor, "members outputs inputs"]:
    """Return the product of factors. The rows are multiplied in parts if the members alone would leave a GPU idle."""
    parts = parts_of(x, by_total)
    if parts == 1:
        return multiplied(by_total.mT, x)
    x, by_total = (factor.view(-1, factor.shape[1] // parts, factor.shape[2]) for factor in (x, by_total))
    result = multiplied(by_total.mT, x)
    return result.view(-1, parts, *result.shape[1:]).sum(1)


def parts_of(x: Float[Tensor, "members rows inputs"], by_total: Float[Tensor, "members rows outputs"]) -> int:
    """Return the number of parts of the rows, doubled until a GPU has enough tiles to be busy."""
    (members, rows, inputs), outputs = x.shape, by_total.shape[2]
    tiles, deep = members * ceil(inputs / TILE) * ceil(outputs / TILE), DEEP // x.itemsize
    parts = 1
    # for one member, cuBLAS divides the rows itself
    if members > 1 and rows >= 4 * deep and is_launchable(x) and x.is_contiguous() and by_total.is_contiguous():
        while 2 * parts * tiles <= ENOUGH and rows % (2 * parts) == 0 and rows >= 2 * parts * deep:
            parts *= 2
    return parts


def multiplied(
    one: Shaped[Tensor, "members rows inner"],
    other: Shaped[Tensor, "members inner columns"],
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "members rows columns"]:
    """Return a product of factors in the narrower dtype of both, summed in at least float32.

    `dtype` is the dtype of a bfloat16 product; other products keep that of the factors.
    """
    if one.dtype == other.dtype != torch.bfloat16:
        return torch.bmm(one, other)
    one, other = one.bfloat16(), other.bfloat16()
    if not one.is_cuda:
        return torch.bmm(one.float(), other.float()).to(dtype)
    return torch.bmm(one, other) if dtype == torch.bfloat16 else torch.bmm(one, other, out_dtype=dtype)
