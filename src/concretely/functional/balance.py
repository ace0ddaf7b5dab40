r"""The penalty of a router: how uneven the load of experts is, and how large log normalisers are.

$$\mathrm{balance} \cdot E \sum_e f_e^2 / (\sum_e f_e)^2 + z \cdot \mathrm{mean}(Z^2)$$
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..kernel.operator import is_plain, is_watched, plain_apply
from .fused import pulled_again


def sums(
    load: Float[Tensor, "*batch experts"], logits: Float[Tensor, "*batch experts"], mask: Bool[Tensor, "*batch"] | None
) -> tuple[Float[Tensor, " experts"], Float[Tensor, ""], Float[Tensor, ""]]:
    """Return the sums over tokens of the load and of the squared log normaliser, and the number of tokens."""
    square = logits.logsumexp(-1).square()
    if mask is None:
        total, tokens = square.sum(), load.new_full((), square.numel())
    else:
        total, tokens = (square * mask).sum(), mask.sum().to(load.dtype)
    return load.reshape(-1, load.shape[-1]).sum(0), total, tokens


def combined(
    load: Float[Tensor, " experts"], square: Float[Tensor, ""], tokens: Float[Tensor, ""], *, balance: float, z: float
) -> Float[Tensor, ""]:
    """Return the penalty, from sums over tokens."""
    share = load / load.sum().clamp(min=torch.finfo(load.dtype).tiny)  # all tokens may be padding
    even = share.square().sum() * (balance * len(load))
    return even + square * (z / tokens.clamp(min=1))


def penalty(
    load: Float[Tensor, "*batch experts"],
    logits: Float[Tensor, "*batch experts"],
    probabilities: Float[Tensor, "*batch experts"],
    mask: Bool[Tensor, "*batch"] | None,
    *,
    balance: float,
    z: float,
) -> Float[Tensor, ""]:
    """Return the penalty of the tokens where the mask is True, or of all. `probabilities` are the softmax."""
    if load.dtype == logits.dtype and is_plain((load, logits, mask)) and not is_watched():
        return _PENALTY(load, logits, probabilities.detach(), mask, balance, z)
    return _defined(load, logits, mask, balance, z)


def _defined(load: Tensor, logits: Tensor, mask: Tensor | None, balance: float, z: float) -> Tensor:
    return combined(*sums(load, logits, mask), balance=balance, z=z)


class _Penalty(torch.autograd.Function):
    """`penalty` as one autograd node."""

    @staticmethod
    def forward(
        ctx: Any, load: Tensor, logits: Tensor, probabilities: Tensor, mask: Tensor | None, balance: float, z: float
    ) -> Tensor:
        total = load.reshape(-1, load.shape[-1]).sum(0)
        whole = total.sum().clamp_(min=torch.finfo(load.dtype).tiny)
        share = total / whole
        uneven = share.dot(share)
        log_sum = logits.amax(-1).sub_(probabilities.amax(-1).log_()).flatten()
        if mask is None:
            mean = log_sum / max(len(log_sum), 1)
        else:
            mean = (log_sum * mask.flatten()).div_(mask.sum().clamp_(min=1))
        ctx.balance, ctx.z = balance, z
        ctx.save_for_backward(load, logits, probabilities, mask, mean, share, whole, uneven)
        return torch.add(uneven * (balance * len(total)), mean.dot(log_sum), alpha=z)

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, ...]:
        load, logits, probabilities, mask, mean, share, whole, uneven = ctx.saved_tensors
        if torch.is_grad_enabled():
            gradients = pulled_again(_defined, (load, logits), by[0], mask, ctx.balance, ctx.z)
            return *gradients, None, None, None, None
        by_load = by_logits = None
        if ctx.needs_input_grad[0]:
            # divided last, since the whole is tiny if all tokens are padding, and its inverse may overflow
            slope = (share - uneven).mul_(by[0] * (2 * ctx.balance * len(share))).div_(whole)
            by_load = slope.expand(load.shape)
        if ctx.needs_input_grad[1]:
            by_logits = probabilities * (mean * (by[0] * (2 * ctx.z))).view(*logits.shape[:-1], 1)
        return by_load, by_logits, None, None, None, None


_PENALTY: Callable[..., Tensor] = plain_apply(_Penalty)
