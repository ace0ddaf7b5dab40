"""The logistic node: drawn, squashed and scored in one pass; or scored where it was drawn by another."""

from typing import Any, Literal

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ..operator import is_fast, operator
from . import naive

Squash = Literal["none", "unit", "corner"]
"""What becomes of a node: nothing, a number between 0 and 1, or one between minus and plus one."""


def draw(
    logits: Float[Tensor, "members units"],
    temperature: Float64[Tensor, " members"],
    key: Int64[Tensor, "members 2"],
    samples: int,
    squash: Squash,
) -> tuple[Float[Tensor, "members m units"], Float[Tensor, "members m units"], Float[Tensor, "members m units"]]:
    """Nodes, what they are squashed to, and the log densities of the nodes; of the second none if it is the first.

    The log density of an own draw has no gradient.
    """
    node, value, log_density = _draw(logits, temperature, key, samples, squash)
    return node, node if squash == "none" else value, log_density


@operator("logistic_draw")
def _draw(logits: Tensor, temperature: Tensor, key: Tensor, samples: int, squash: str) -> tuple[Tensor, Tensor, Tensor]:
    if is_fast(logits):
        from . import triton

        return triton.draw(logits, temperature, key, samples, squash)
    return naive.draw(logits, temperature, key, samples, squash)


@_draw.register_fake
def _(logits: Tensor, temperature: Tensor, key: Tensor, samples: int, squash: str) -> tuple[Tensor, Tensor, Tensor]:
    node = logits.new_empty((len(logits), samples, logits.shape[1]), dtype=torch.float32)
    value = torch.empty_like(node) if squash != "none" else node.new_empty((len(node), 0))
    return node, value, torch.empty_like(node)


@operator("logistic_draw_backward")
def _draw_backward(
    by_node: Tensor | None, by_value: Tensor | None, node: Tensor, temperature: Tensor, squash: str
) -> Tensor:
    if is_fast(node):
        from . import triton

        return triton.draw_backward(by_node, by_value, node, temperature, squash)
    return naive.draw_backward(by_node, by_value, node, temperature, squash)


@_draw_backward.register_fake
def _(by_node: Tensor | None, by_value: Tensor | None, node: Tensor, temperature: Tensor, squash: str) -> Tensor:
    return node.new_empty((node.shape[0], node.shape[2]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, temperature, _, _, ctx.squash = inputs
    ctx.dtype = logits.dtype
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(output[0], temperature)


def _pull(ctx: Any, by_node: Tensor | None, by_value: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    node, temperature = ctx.saved_tensors
    by_value = None if ctx.squash == "none" else by_value
    if by_node is None and by_value is None:
        return None, None, None, None, None
    # the definition where the gradient is to be differentiated again
    pull = naive.draw_backward if torch.is_grad_enabled() else _draw_backward
    return pull(by_node, by_value, node, temperature, ctx.squash).to(ctx.dtype), None, None, None, None


_draw.register_autograd(_pull, setup_context=_keep)
