"""The ExpConcrete node: drawn, squashed and scored in one pass; or scored where it was drawn by another.

If `normal`, its noise is not Gumbel's but Gaussian, as that of the logistic-normal control.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ..handwritten import is_fast, operator
from ..tile import fits
from . import naive

Squash = Literal["none", "simplex", "cube"]
"""What becomes of a node: nothing, a point of the simplex, or one of the hypercube whose corners are the categories."""


def draw(
    logits: Float[Tensor, "members units n"],
    temperature: Float64[Tensor, " members"],
    key: Int64[Tensor, "members 2"],
    samples: int,
    squash: Squash,
    length: int = 1,
    *,
    normal: bool = False,
) -> tuple[Float[Tensor, "members m units n"], Float[Tensor, "members m units width"], Float[Tensor, "members m rows"]]:
    """Nodes, what they are squashed to, and the log densities of the nodes, summed over rows of so many units.

    The log density of an own draw has no gradient. A hypercube needs a number of categories that is a power of two.
    """
    node, value, log_density = _draw(logits, temperature, key, samples, squash, length, normal)
    return node, node if squash == "none" else value, log_density


def score(
    node: Float[Tensor, "members m units n"],
    logits: Float[Tensor, "members units n"],
    temperature: Float64[Tensor, " members"],
    length: int = 1,
    *,
    normal: bool = False,
) -> Float[Tensor, "members m rows"]:
    """The log density of given nodes under logits that the samples share, summed over rows of so many units."""
    found: Tensor = _score(node, logits, temperature, length, normal)
    return found


def _has_fast(samples: int, logits: Tensor) -> bool:
    """Whether there is a fast path for logits shared by so many samples."""
    return is_fast(logits) and fits(samples * logits.shape[1], logits.shape[2])


@operator("exp_concrete_draw")
def _draw(
    logits: Tensor, temperature: Tensor, key: Tensor, samples: int, squash: str, length: int, normal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    if _has_fast(samples, logits):
        from .. import triton_exp_concrete as triton

        return triton.draw(logits, temperature, key, samples, squash, length, normal)
    return naive.draw(logits, temperature, key, samples, squash, length, normal)


@_draw.register_fake
def _(
    logits: Tensor, temperature: Tensor, key: Tensor, samples: int, squash: str, length: int, normal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    node = logits.new_empty((len(logits), samples, *logits.shape[1:]), dtype=torch.float32)
    log_density = node.new_empty((*node.shape[:2], node.shape[2] // length))
    return node, node.new_empty(naive.value_shape(node.shape, squash)), log_density


@operator("exp_concrete_draw_backward")
def _draw_backward(
    by_node: Tensor | None,
    by_value: Tensor | None,
    node: Tensor,
    temperature: Tensor,
    squash: str,
    dtype: torch.dtype,
) -> Tensor:
    if _has_fast(node.shape[1], node[:, 0]):
        from .. import triton_exp_concrete as triton

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
    return node.new_empty((node.shape[0], *node.shape[2:]), dtype=dtype)


def _keep_draw(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, temperature, _, _, ctx.squash, *_ = inputs
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
        return (None,) * 7
    # the definition where the gradient is to be differentiated again
    pull = naive.draw_backward if torch.is_grad_enabled() else _draw_backward
    return pull(by_node, by_value, node, temperature, ctx.squash, ctx.dtype), *(None,) * 6


_draw.register_autograd(_pull_draw, setup_context=_keep_draw)


@operator("exp_concrete_score")
def _score(node: Tensor, logits: Tensor, temperature: Tensor, length: int, normal: bool) -> Tensor:
    if _has_fast(node.shape[1], logits):
        from .. import triton_exp_concrete as triton

        return triton.score(node, logits, temperature, length, normal)
    return naive.score(node, logits, temperature, length, normal)


@_score.register_fake
def _(node: Tensor, logits: Tensor, temperature: Tensor, length: int, normal: bool) -> Tensor:
    return node.new_empty((*node.shape[:2], node.shape[2] // length), dtype=torch.float32)


@operator("exp_concrete_score_backward")
def _score_backward(
    by: Tensor,
    node: Tensor,
    logits: Tensor,
    temperature: Tensor,
    needs_node: bool,
    needs_logits: bool,
    length: int,
    normal: bool,
) -> tuple[Tensor, Tensor]:
    if _has_fast(node.shape[1], logits):
        from .. import triton_exp_concrete as triton

        return triton.score_backward(by, node, logits, temperature, needs_node, needs_logits, length, normal)
    return naive.score_backward(by, node, logits, temperature, needs_node, needs_logits, length, normal)


@_score_backward.register_fake
def _(
    by: Tensor,
    node: Tensor,
    logits: Tensor,
    temperature: Tensor,
    needs_node: bool,
    needs_logits: bool,
    length: int,
    normal: bool,
) -> tuple[Tensor, Tensor]:
    none = (len(by), 0)
    by_node = node.new_empty(node.shape if needs_node else none, dtype=node.dtype if needs_node else by.dtype)
    by_logits = node.new_empty(logits.shape if needs_logits else none, dtype=logits.dtype if needs_logits else by.dtype)
    return by_node, by_logits


def _keep_score(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *given, ctx.length, ctx.normal = inputs
    ctx.save_for_backward(*given)


def _pull_score(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
    needs_node, needs_logits = ctx.needs_input_grad[:2]
    pull = naive.score_backward if torch.is_grad_enabled() else _score_backward
    node, logits, temperature = ctx.saved_tensors
    by_node, by_logits = pull(by, node, logits, temperature, needs_node, needs_logits, ctx.length, ctx.normal)
    return by_node if needs_node else None, by_logits if needs_logits else None, None, None, None


_score.register_autograd(_pull_score, setup_context=_keep_score)
