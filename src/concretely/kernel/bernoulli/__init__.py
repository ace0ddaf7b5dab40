"""The binary unit: drawn and scored in one pass; or scored where it was drawn by another."""

from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..handwritten import is_fast, operator
from . import naive

Squash = Literal["bit", "corner"]
"""How states are written: as 0 and 1, or as minus and plus one."""


def draw(
    logits: Float[Tensor, "members units"],
    key: Int64[Tensor, "members 2"],
    samples: int,
    squash: Squash,
    length: int = 1,
) -> tuple[Float[Tensor, "members m units"], Float[Tensor, "members m rows"]]:
    """States, and their log masses summed over rows of so many units.

    The same key gives the states that nodes of a logistic draw round to. Only the log masses have a gradient, that of
    the logits.
    """
    value, log_mass = _draw(logits, key, samples, squash, length)
    return value, log_mass


def score(
    value: Float[Tensor, "members m units"], logits: Float[Tensor, "members units"], squash: Squash, length: int = 1
) -> Float[Tensor, "members m rows"]:
    """The log masses of given states, whose samples share their logits, summed over rows of so many units."""
    scored: Tensor = _score(value, logits, squash, length)
    return scored


@operator("bernoulli_draw")
def _draw(logits: Tensor, key: Tensor, samples: int, squash: str, length: int) -> tuple[Tensor, Tensor]:
    if is_fast(logits):
        from .. import triton_bernoulli as triton

        return triton.draw(logits, key, samples, squash, length)
    return naive.draw(logits, key, samples, squash, length)


@_draw.register_fake
def _(logits: Tensor, key: Tensor, samples: int, squash: str, length: int) -> tuple[Tensor, Tensor]:
    members, units = logits.shape
    value = logits.new_empty((members, samples, units), dtype=torch.float32)
    return value, value.new_empty((members, samples, units // length))


@operator("bernoulli_score")
def _score(value: Tensor, logits: Tensor, squash: str, length: int) -> Tensor:
    if is_fast(value):
        from .. import triton_bernoulli as triton

        return triton.score(value, logits, squash, length)
    return naive.score(value, logits, squash, length)


@_score.register_fake
def _(value: Tensor, logits: Tensor, squash: str, length: int) -> Tensor:
    return value.new_empty((*value.shape[:2], value.shape[2] // length), dtype=torch.float32)


@operator("bernoulli_backward")
def _backward(by: Tensor, value: Tensor, logits: Tensor, squash: str, length: int) -> Tensor:
    if is_fast(value):
        from .. import triton_bernoulli as triton

        return triton.backward(by, value, logits, squash, length)
    return naive.backward(by, value, logits, squash, length)


@_backward.register_fake
def _(by: Tensor, value: Tensor, logits: Tensor, squash: str, length: int) -> Tensor:
    return logits.new_empty(logits.shape)


def _pulled(ctx: Any, by: Tensor) -> Tensor:
    # the definition where the gradient is to be differentiated again
    pull = naive.backward if torch.is_grad_enabled() else _backward
    value, logits = ctx.saved_tensors
    found: Tensor = pull(by, value, logits, ctx.squash, ctx.length)
    return found


def _keep_draw(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, _, _, ctx.squash, ctx.length = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[0])
    ctx.save_for_backward(output[0], logits)


def _pull_draw(ctx: Any, _: Tensor | None, by: Tensor | None) -> tuple[Tensor | None, ...]:
    return None if by is None else _pulled(ctx, by), None, None, None, None


def _keep_score(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    value, logits, ctx.squash, ctx.length = inputs
    ctx.save_for_backward(value, logits)


def _pull_score(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
    return None, _pulled(ctx, by) if ctx.needs_input_grad[1] else None, None, None


_draw.register_autograd(_pull_draw, setup_context=_keep_draw)
_score.register_autograd(_pull_score, setup_context=_keep_score)
