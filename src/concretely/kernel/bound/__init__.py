"""The multi-sample bound of every data point in one pass over its log-weights, and the loss in one over their terms."""

from collections.abc import Sequence
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


def loss(
    log_p: Sequence[Float[Tensor, "members m batch"]], log_q: Sequence[Float[Tensor, "members m batch"]]
) -> tuple[Float[Tensor, " members"], Float[Tensor, "members batch"], Float[Tensor, "members m batch"]]:
    """Minus the mean of the bounds, and without gradients the bounds and the log-weights, the sum of p less that of q.

    There is at least one term of each.
    """
    found: tuple[Tensor, Tensor, Tensor] = _loss(list(log_p), list(log_q))
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


@operator("loss")
def _loss(log_p: list[Tensor], log_q: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    if is_fast(log_p[0]) and log_p[0].numel():
        from . import triton

        return triton.loss(log_p, log_q)
    found, bound, log_w = naive.loss(log_p, log_q)
    return found, bound.contiguous(), log_w.contiguous()


@_loss.register_fake
def _(log_p: list[Tensor], log_q: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    first = log_p[0]
    members, _, batch = first.shape
    return first.new_empty(members), first.new_empty((members, batch)), first.new_empty(first.shape)


@operator("loss_backward")
def _loss_backward(by: Tensor, log_w: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of every term that is added, and of every one that is subtracted."""
    if is_fast(log_w) and log_w.numel():
        from . import triton

        return triton.loss_backward(by, log_w, bound)
    added, subtracted = naive.loss_backward(by, log_w, bound)
    return added.contiguous(), subtracted.contiguous()


@_loss_backward.register_fake
def _(by: Tensor, log_w: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    return log_w.new_empty(log_w.shape), log_w.new_empty(log_w.shape)


def _keep_loss(ctx: Any, inputs: tuple[list[Tensor], list[Tensor]], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.added = len(inputs[0])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[0], *inputs[1], *output[1:])


def _pull_loss(ctx: Any, by: Tensor, *unused: None) -> tuple[list[Tensor], list[Tensor]]:
    *terms, bound, log_w = ctx.saved_tensors
    log_p, log_q = terms[: ctx.added], terms[ctx.added :]
    if torch.is_grad_enabled():  # the gradient is to be differentiated again
        _, bound, log_w = naive.loss(log_p, log_q)
        added, subtracted = naive.loss_backward(by, log_w, bound)
    else:
        added, subtracted = _loss_backward(by, log_w, bound)
    return [added] * len(log_p), [subtracted] * len(log_q)


_loss.register_autograd(_pull_loss, setup_context=_keep_loss)
