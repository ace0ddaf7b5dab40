"""The log likelihood of bits, over all units of a data point."""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..handwritten import is_fast, operator
from . import naive


def log_likelihood(
    logits: Float[Tensor, "members m batch units"], bits: Shaped[Tensor, "members batch units"]
) -> Float[Tensor, "members m batch"]:
    """The log mass of bits, which the samples share; they may be of any dtype and have no gradient."""
    found: Tensor = _log_likelihood(logits, bits)
    return found


@operator("log_likelihood")
def _log_likelihood(logits: Tensor, bits: Tensor) -> Tensor:
    if is_fast(logits):
        from . import triton

        return triton.log_likelihood(logits, bits)
    return naive.log_likelihood(logits, bits)


@_log_likelihood.register_fake
def _(logits: Tensor, bits: Tensor) -> Tensor:
    return logits.new_empty(logits.shape[:-1], dtype=torch.float32)


@operator("log_likelihood_backward")
def _backward(by: Tensor, logits: Tensor, bits: Tensor) -> Tensor:
    if is_fast(logits):
        from . import triton

        return triton.backward(by, logits, bits)
    return naive.backward(by, logits, bits)


@_backward.register_fake
def _(by: Tensor, logits: Tensor, bits: Tensor) -> Tensor:
    return logits.new_empty(logits.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _pull(ctx: Any, by: Tensor) -> tuple[Tensor | None, None]:
    # the definition where the gradient is to be differentiated again
    pull = naive.backward if torch.is_grad_enabled() else _backward
    return pull(by, *ctx.saved_tensors) if ctx.needs_input_grad[0] else None, None


_log_likelihood.register_autograd(_pull, setup_context=_keep)
