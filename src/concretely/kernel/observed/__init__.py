"""The log likelihood of bits whose logits, an affine map of states, are never written down.

Where a gradient is asked for, its slope is written instead: what a log likelihood gains with each logit. The bits have
no gradient.
"""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ..affine import Factors, entered, multiplied, opened, product_of, suits
from ..handwritten import is_fast, operator
from ..operator import is_hidden
from . import naive


def log_likelihood(
    state: Float[Tensor, "members m batch inputs"],
    weight: Float[Tensor, "members units inputs"],
    bias: Float[Tensor, "members units"],
    bits: Shaped[Tensor, "members batch units"],
) -> Float[Tensor, "members m batch"]:
    """The log mass of bits, which the samples share."""
    # a batch does not tell whether it has a gradient
    slopes = torch.is_grad_enabled() and any(each.requires_grad or is_hidden(each) for each in (state, weight, bias))
    product = product_of(state.shape[1] * state.shape[2]) if suits(state, weight) else "ieee"
    found: Tensor = _log_likelihood(state, weight, bias, bits, slopes, product)[0]
    return found


@operator("observed_log_likelihood")
def _log_likelihood(
    state: Tensor, weight: Tensor, bias: Tensor, bits: Tensor, slopes: bool, product: str
) -> tuple[Tensor, Tensor]:
    """The log likelihood and, if it is asked for, its slope in every logit."""
    slope = _slope(state, weight, slopes, product)
    if suits(state, weight):
        from . import triton

        state, weight = (state, weight.bfloat16()) if product == "bfloat16" else (state.float(), weight)
        return triton.log_likelihood(state, weight, bias, bits, product, slope), slope
    if slopes:
        slope.copy_(naive.slope(state, weight, bias, bits))
    return naive.log_likelihood(state, weight, bias, bits), slope


@_log_likelihood.register_fake
def _(state: Tensor, weight: Tensor, bias: Tensor, bits: Tensor, slopes: bool, product: str) -> tuple[Tensor, Tensor]:
    return state.new_empty(state.shape[:3], dtype=torch.float32), _slope(state, weight, slopes, product)


def _slope(state: Tensor, weight: Tensor, slopes: bool, product: str) -> Tensor:
    """Room for slopes, in the dtype of the products that they become part of, or none."""
    members, samples, batch, _ = state.shape
    shape = (members, samples * batch, weight.shape[1]) if slopes else (members, 0)
    return state.new_empty(shape, dtype=torch.bfloat16 if product == "bfloat16" else torch.float32)


@operator("observed_weigh")
def _weigh(pull: Tensor, by_state: Tensor, state: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows of gradients and of states, each times its pull; the former in the dtype of the states."""
    if is_fast(state) and state.dtype != torch.float64:
        from . import triton

        return triton.weigh(pull, by_state, state, dtype)
    by_state, weighed = naive.weigh(pull, by_state, state, dtype)
    return by_state.contiguous(), weighed.contiguous()


@_weigh.register_fake
def _(pull: Tensor, by_state: Tensor, state: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return state.new_empty(state.shape), state.new_empty(state.shape, dtype=dtype)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.slopes, _ = inputs
    ctx.entries = opened()
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, output[1])


def _pull(ctx: Any, by: Tensor, _: None) -> tuple[Tensor | None, ...]:
    state, weight, bias, bits, slope = ctx.saved_tensors
    needs_state, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    entries, ctx.entries = ctx.entries, None  # or both would keep each other alive, and with them a stream
    if torch.is_grad_enabled():  # the gradient is to be differentiated again
        entries = None
    if torch.is_grad_enabled() or not ctx.slopes:
        slope = naive.slope(state, weight, bias, bits)
    pull, states = by.flatten(1, 2), state.flatten(1, 2)
    by_state = by_weight = by_bias = None
    # rows are weighed where they are narrow
    if needs_state:
        weigh = naive.weigh if torch.is_grad_enabled() else _weigh
        by_states = multiplied(slope, weight.to(slope.dtype), state.dtype)
        by_state, weighed = weigh(pull, by_states, states, slope.dtype)
    else:  # a state that was drawn has no gradient, and the product is the dearest part
        weighed = (pull.unsqueeze(-1) * states).to(slope.dtype)
    if needs_weight:
        by_weight = entered(entries, weight, Factors(weighed, slope))
    if needs_bias:
        by_bias = multiplied(slope.mT, pull.unsqueeze(-1).to(slope.dtype)).squeeze(-1)
    return None if by_state is None else by_state.view_as(state), by_weight, by_bias, None, None, None


_log_likelihood.register_autograd(_pull, setup_context=_keep)
