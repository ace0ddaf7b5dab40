"""The logistic node: drawn, squashed and scored in one pass; or scored where it was drawn by another."""

from typing import Any, Literal

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ..handwritten import is_fast, operator
from . import naive

Squash = Literal["none", "unit", "corner"]
"""What becomes of a node: nothing, a number between 0 and 1, or one between minus and plus one."""


def draw(
    logits: Float[Tensor, "members units"],
    temperature: Float64[Tensor, " members"],
    key: Int64[Tensor, "members 2"],
    samples: int,
    squash: Squash,
    length: int = 1,
) -> tuple[Float[Tensor, "members m units"], Float[Tensor, "members m units"], Float[Tensor, "members m rows"]]:
    """Nodes, what they are squashed to, and the log densities of the nodes, summed over rows of so many units.

    The log density of an own draw has no gradient.
    """
    node, value, log_density = _draw(logits, temperature, key, samples, squash, length)
    return node, node if squash == "none" else value, log_density


def score(
    node: Float[Tensor, "members m units"],
    logits: Float[Tensor, "members units"],
    temperature: Float64[Tensor, " members"],
    length: int = 1,
) -> Float[Tensor, "members m rows"]:
    """The log densities of given nodes, whose samples share their logits, summed over rows of so many units."""
    scored: Tensor = _score(node, logits, temperature, length)
    return scored


@operator("logistic_draw")
def _draw(
    logits: Tensor, temperature: Tensor, key: Tensor, samples: int, squash: str, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    if is_fast(logits):
        from .. import triton_logistic as triton

        return triton.draw(logits, temperature, key, samples, squash, length)
    return naive.draw(logits, temperature, key, samples, squash, length)


@_draw.register_fake
def _(
    logits: Tensor, temperature: Tensor, key: Tensor, samples: int, squash: str, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    members, units = logits.shape
    node = logits.new_empty((members, samples, units), dtype=torch.float32)
    value = torch.empty_like(node) if squash != "none" else node.new_empty((members, 0))
    return node, value, node.new_empty((members, samples, units // length))


@operator("logistic_draw_backward")
def _draw_backward(
    by_node: Tensor | None,
    by_value: Tensor | None,
    node: Tensor,
    temperature: Tensor,
    squash: str,
    dtype: torch.dtype,
) -> Tensor:
    if is_fast(node):
        from .. import triton_logistic as triton

        return triton.draw_backward(by_node, by_value, node, temperature, squash, dtype)
    return naive.draw_backward(by_node, by_value, node, temperature, squash, dtype)


@_draw_backward.register_fake
def _(
    by_node: Tensor | None,
    by_value: Tensor | None,
    node: Tensor,
    temperature: Tensor,
    squash: str,
    dtype: torch.dtype,
) -> Tensor:
    return node.new_empty((node.shape[0], node.shape[2]), dtype=dtype)


def _keep_draw(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, temperature, _, _, ctx.squash, _ = inputs
    ctx.dtype = logits.dtype
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(output[0], temperature)


def _pull_draw(
    ctx: Any, by_node: Tensor | None, by_value: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    node, temperature = ctx.saved_tensors
    by_value = None if ctx.squash == "none" else by_value
    if by_node is None and by_value is None:
        return None, None, None, None, None, None
    # the definition where the gradient is to be differentiated again
    pull = naive.draw_backward if torch.is_grad_enabled() else _draw_backward
    return pull(by_node, by_value, node, temperature, ctx.squash, ctx.dtype), None, None, None, None, None


_draw.register_autograd(_pull_draw, setup_context=_keep_draw)


@operator("logistic_score")
def _score(node: Tensor, logits: Tensor, temperature: Tensor, length: int) -> Tensor:
    if is_fast(node):
        from .. import triton_logistic as triton

        return triton.score(node, logits, temperature, length)
    return naive.score(node, logits, temperature, length)


@_score.register_fake
def _(node: Tensor, logits: Tensor, temperature: Tensor, length: int) -> Tensor:
    return node.new_empty((*node.shape[:2], node.shape[2] // length), dtype=torch.float32)


@operator("logistic_score_backward")
def _score_backward(
    by: Tensor, node: Tensor, logits: Tensor, temperature: Tensor, needs_node: bool, needs_logits: bool, length: int
) -> tuple[Tensor, Tensor]:
    if is_fast(node):
        from .. import triton_logistic as triton

        return triton.score_backward(by, node, logits, temperature, needs_node, needs_logits, length)
    return naive.score_backward(by, node, logits, temperature, needs_node, needs_logits, length)


@_score_backward.register_fake
def _(
    by: Tensor, node: Tensor, logits: Tensor, temperature: Tensor, needs_node: bool, needs_logits: bool, length: int
) -> tuple[Tensor, Tensor]:
    by_node = node.new_empty(node.shape) if needs_node else by.new_empty((by.shape[0], 0))
    return by_node, logits.new_empty(logits.shape) if needs_logits else by.new_empty((by.shape[0], 0))


def _keep_score(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *given, ctx.length = inputs
    ctx.save_for_backward(*given)


def _pull_score(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
    needs_node, needs_logits = ctx.needs_input_grad[:2]
    pull = naive.score_backward if torch.is_grad_enabled() else _score_backward
    node, logits, temperature = ctx.saved_tensors
    by_node, by_logits = pull(by, node, logits, temperature, needs_node, needs_logits, ctx.length)
    return by_node if needs_node else None, by_logits if needs_logits else None, None, None


_score.register_autograd(_pull_score, setup_context=_keep_score)
