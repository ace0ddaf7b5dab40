"""The multi-sample bound of every data point in one pass over its log-weights, and the loss in one over their terms."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..handwritten import is_fast, operator
from . import naive


def bound(log_w: Float[Tensor, "members m batch"]) -> Float[Tensor, "members batch"]:
    """The logarithm of the mean weight over samples."""
    found: Tensor = _bound(log_w)
    return found


def loss(
    log_p: Sequence[Float[Tensor, "members m batch"]],
    log_q: Sequence[Float[Tensor, "members m batch"]],
    credit: Sequence[Float[Tensor, "members m batch"]] = (),
    beside: Sequence[Float[Tensor, "members m batch"]] = (),
    *,
    averages: bool = False,
) -> tuple[Float[Tensor, " members"], Float[Tensor, "members batch"], Float[Tensor, "members m batch"]]:
    """Minus the mean of the bounds, and without gradients the bounds and the log-weights, the sum of p less that of q.

    There is at least one term of each. The terms of q may have credit, by which their gradient is multiplied: it is
    added to what they have from the bounds, or stands alone where these are averages over samples. There, others may
    have the same credit beside them.
    """
    if beside and not averages:
        raise ValueError("there may be terms beside those of q only in averages")
    found: tuple[Tensor, Tensor, Tensor] = _loss(list(log_p), list(log_q), list(credit), list(beside), averages)
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
def _loss(
    log_p: list[Tensor], log_q: list[Tensor], credit: list[Tensor], beside: list[Tensor], averages: bool
) -> tuple[Tensor, Tensor, Tensor]:
    if is_fast(log_p[0]) and log_p[0].numel():
        from . import triton

        return triton.loss(log_p, log_q, averages)
    found, bound, log_w = naive.loss(log_p, log_q, averages)
    return found, bound.contiguous(), log_w.contiguous()


@_loss.register_fake
def _(
    log_p: list[Tensor], log_q: list[Tensor], credit: list[Tensor], beside: list[Tensor], averages: bool
) -> tuple[Tensor, Tensor, Tensor]:
    first = log_p[0]
    members, _, batch = first.shape
    return first.new_empty(members), first.new_empty((members, batch)), first.new_empty(first.shape)


@operator("loss_backward")
def _loss_backward(by: Tensor, log_w: Tensor, bound: Tensor, credit: list[Tensor], averages: bool) -> list[Tensor]:
    """The gradient of every term that is added, and those of the ones that are subtracted."""
    if is_fast(log_w) and log_w.numel():
        from . import triton

        return triton.loss_backward(by, log_w, bound, credit, averages)
    return [each.contiguous() for each in naive.loss_backward(by, log_w, bound, credit, averages)]


@_loss_backward.register_fake
def _(by: Tensor, log_w: Tensor, bound: Tensor, credit: list[Tensor], averages: bool) -> list[Tensor]:
    return [log_w.new_empty(log_w.shape) for _ in range(1 + max(len(credit), 1))]


def _keep_loss(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    log_p, log_q, credit, beside, ctx.averages = inputs
    ctx.counts = len(log_p), len(log_q), len(credit), len(beside)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*log_p, *log_q, *credit, *output[1:])


def _pull_loss(ctx: Any, by: Tensor, *unused: None) -> tuple[Any, ...]:
    *terms, bound, log_w = ctx.saved_tensors
    added, subtracted, credited, beside = ctx.counts
    credit = terms[added + subtracted :]
    if torch.is_grad_enabled():  # the gradient is to be differentiated again
        _, bound, log_w = naive.loss(terms[:added], terms[added : added + subtracted], ctx.averages)
        by_p, *by_q = naive.loss_backward(by, log_w, bound, credit, ctx.averages)
    else:
        by_p, *by_q = _loss_backward(by, log_w, bound, credit, ctx.averages)
    by_q = by_q if credited else by_q * subtracted
    return [by_p] * added, by_q, [None] * credited, by_q[:beside], None


_loss.register_autograd(_pull_loss, setup_context=_keep_loss)
