"""The multi-sample bound of every data point, in one pass over its log-weights."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..operator import is_fast, operator
from . import naive


def bound(log_w: Float[Tensor, "members m batch"]) -> Float[Tensor, "members batch"]:
    """The logarithm of the mean weight over samples."""
    found: Tensor = _bound(log_w)
    return found


@operator("bound")
def _bound(log_w: Tensor) -> Tensor:
    if is_fast(log_w):
        from . import triton

        return triton.bound(log_w)
    return naive.bound(log_w).contiguous()


@_bound.register_fake
def _(log_w: Tensor) -> Tensor:
    return log_w.new_empty((log_w.shape[0], log_w.shape[2]))


@operator("bound_backward")
def _backward(by: Tensor, log_w: Tensor, bound: Tensor) -> Tensor:
    if is_fast(log_w):
        from . import triton

        return triton.backward(by, log_w, bound)
    return naive.backward(by, log_w, bound).contiguous()


@_backward.register_fake
def _(by: Tensor, log_w: Tensor, bound: Tensor) -> Tensor:
    return log_w.new_empty(log_w.shape)


def _keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _pull(ctx: Any, by: Tensor) -> Tensor:
    # the definition where the gradient is to be differentiated again
    pull = naive.backward if torch.is_grad_enabled() else _backward
    found: Tensor = pull(by, *ctx.saved_tensors)
    return found


_bound.register_autograd(_pull, setup_context=_keep)
