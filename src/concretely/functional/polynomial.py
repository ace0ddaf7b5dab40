"""Products of many polynomials with coefficients of one sign, the generating functions of counts.

Coefficients are the first axis, from the constant to the highest power that is kept. All terms of a product of
probabilities are positive, so that nothing cancels and relative errors stay small, in derivatives of any order too.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ..kernel.operator import Operator, operator
from .arithmetic import is_transformed


def multiply(
    left: Float[Tensor, "a *shape"], right: Float[Tensor, "b *shape"], width: int
) -> Float[Tensor, "{width} *shape"]:
    """Return the first `width` coefficients of the products of polynomials.

    >>> multiply(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 2.0, 1.0]), 3)
    tensor([1., 3., 3.])
    """
    return _by_columns(product, _multiplied, left, right, width)


def correlate(
    by: Float[Tensor, "c *shape"], factor: Float[Tensor, "b *shape"], width: int
) -> Float[Tensor, "{width} *shape"]:
    """Return the gradient of a product by its other factor of `width` coefficients, from the gradient of the product.

    >>> correlate(torch.tensor([0.0, 0.0, 1.0]), torch.tensor([1.0, 2.0, 1.0]), 2)
    tensor([1., 2.])
    """
    return _by_columns(correlation, _correlated, by, factor, width)


@operator("polynomial_product", kernel="polynomial", takes_float64=True)
def product(
    left: Float[Tensor, "members a columns"], right: Float[Tensor, "members b columns"], width: int
) -> Float[Tensor, "members {width} columns"]:
    """Return `multiply` for polynomials of several members."""
    return _multiplied(left.movedim(1, 0), right.movedim(1, 0), width).movedim(0, 1)


@operator("polynomial_correlation", kernel="polynomial", takes_float64=True)
def correlation(
    head: Float[Tensor, "members c columns"], factor: Float[Tensor, "members b columns"], width: int
) -> Float[Tensor, "members {width} columns"]:
    """Return `correlate` for polynomials of several members."""
    return _correlated(head.movedim(1, 0), factor.movedim(1, 0), width).movedim(0, 1)


def _by_columns(
    kernel: Operator[..., Tensor], defined: Callable[..., Tensor], one: Tensor, other: Tensor, width: int
) -> Tensor:
    """Call a kernel with all polynomials in columns if it is eligible, else the definition."""
    if not kernel.runs_kernel(one, other, width):
        return defined(one, other, width)
    columns = one.reshape(1, one.shape[0], -1), other.reshape(1, other.shape[0], -1)
    result: Tensor = kernel.launched(*columns, width)
    return result.view(width, *one.shape[1:])


def _multiplied(left: Tensor, right: Tensor, width: int) -> Tensor:
    if _is_watched():
        return _multiply_at_once(left, right, width)
    product: Tensor = _Multiply.apply(left, right, width)  # type: ignore[no-untyped-call]
    return product


def _correlated(by: Tensor, factor: Tensor, width: int) -> Tensor:
    if _is_watched():
        return _multiply_at_once(by.flip(0), factor, by.shape[0]).flip(0)[:width]
    result: Tensor = _Correlate.apply(by, factor, width)  # type: ignore[no-untyped-call]
    return result


def _is_watched() -> bool:
    """Return whether a compiler, a transform or a trace is active, which supports few operations."""
    return is_transformed() or torch._C._get_tracing_state() is not None


def _multiply_at_once(left: Tensor, right: Tensor, width: int) -> Tensor:
    """Multiply by few operations, which take more memory."""
    rows, length = left.shape[0], left.shape[0] + right.shape[0]
    terms = left.unsqueeze(1) * right.unsqueeze(0)
    terms = pad(terms, (*[0] * (2 * (right.dim() - 1)), 0, rows)).flatten(0, 1)
    # in rows that are one shorter, the terms of one power lie in one column
    return _longer(terms[: rows * (length - 1)].unflatten(0, (rows, length - 1)).sum(0), width)


def _longer(value: Tensor, width: int) -> Tensor:
    """Cut coefficients, or append zeros."""
    return pad(value[:width], (*[0] * (2 * (value.dim() - 1)), 0, max(width - value.shape[0], 0)))


class _Bilinear(torch.autograd.Function):
    """A function of two polynomials that is linear in both."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        *factors, ctx.width = inputs
        ctx.save_for_backward(*factors)
        ctx.save_for_forward(*factors)


class _Multiply(_Bilinear):
    """`multiply`, whose gradients are correlations."""

    @staticmethod
    def forward(left: Tensor, right: Tensor, width: int) -> Tensor:
        product = _longer(left[0] * right, width)
        for power in range(1, min(left.shape[0], width)):
            kept = min(right.shape[0], width - power)
            product[power : power + kept].addcmul_(left[power], right[:kept])
        return product

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        left, right = ctx.saved_tensors
        by_left = _correlated(by[0], right, left.shape[0]) if ctx.needs_input_grad[0] else None
        return by_left, _correlated(by[0], left, right.shape[0]) if ctx.needs_input_grad[1] else None, None

    @staticmethod
    def jvp(ctx: Any, left: Tensor | None, right: Tensor | None, _: None) -> Tensor:
        return _moved(_multiplied, ctx, left, right)


class _Correlate(_Bilinear):
    """`correlate`, whose gradients are a product and a correlation."""

    @staticmethod
    def forward(by: Tensor, factor: Tensor, width: int) -> Tensor:
        result = _longer(by * factor[0], width)
        for power in range(1, min(factor.shape[0], by.shape[0])):
            kept = min(by.shape[0] - power, width)
            result[:kept].addcmul_(by[power : power + kept], factor[power])
        return result

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        by, factor = ctx.saved_tensors
        by_by = _multiplied(grad[0], factor, by.shape[0]) if ctx.needs_input_grad[0] else None
        return by_by, _correlated(by, grad[0], factor.shape[0]) if ctx.needs_input_grad[1] else None, None

    @staticmethod
    def jvp(ctx: Any, by: Tensor | None, factor: Tensor | None, _: None) -> Tensor:
        return _moved(_correlated, ctx, by, factor)


def _moved(function: Callable[..., Tensor], ctx: Any, one: Tensor | None, other: Tensor | None) -> Tensor:
    """Return the tangent of a bilinear function."""
    first, second = ctx.saved_tensors
    parts = [] if one is None else [function(one, second, ctx.width)]
    parts += [] if other is None else [function(first, other, ctx.width)]
    return sum(parts[1:], parts[0])
