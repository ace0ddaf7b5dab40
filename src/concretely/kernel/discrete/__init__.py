"""The discrete node: drawn and scored in one pass; or scored where it was drawn by another."""

from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..handwritten import is_fast, operator
from ..tile import fits
from . import naive

Squash = Literal["one-hot", "corner"]
"""What stands for a category: a one-hot vector, or a corner of the hypercube."""


def draw(
    logits: Float[Tensor, "members units n"],
    key: Int64[Tensor, "members 2"],
    samples: int,
    squash: Squash,
    length: int = 1,
) -> tuple[Float[Tensor, "members m units width"], Float[Tensor, "members m rows"]]:
    """Values, and their log masses summed over rows of so many units, of which the second alone have a gradient.

    A logit of minus infinity rules a category out. Corners need a number of categories that is a power of two.
    """
    value, log_mass = _draw(logits, key, samples, squash, length)
    return value, log_mass


def score(
    value: Float[Tensor, "members m units width"],
    logits: Float[Tensor, "members units n"],
    squash: Squash,
    length: int = 1,
) -> Float[Tensor, "members m rows"]:
    """The log mass of given values under logits that the samples share, summed over rows of so many units."""
    found: Tensor = _score(value, logits, squash, length)
    return found


def _has_fast(samples: int, logits: Tensor) -> bool:
    """Whether there is a fast path for logits shared by so many samples."""
    return is_fast(logits) and fits(samples * logits.shape[1], logits.shape[2])


@operator("discrete_draw")
def _draw(logits: Tensor, key: Tensor, samples: int, squash: str, length: int) -> tuple[Tensor, Tensor]:
    if _has_fast(samples, logits):
        from .. import triton_categorical as triton

        return triton.draw(logits, key, samples, squash, length)
    return naive.draw(logits, key, samples, squash, length)


@_draw.register_fake
def _(logits: Tensor, key: Tensor, samples: int, squash: str, length: int) -> tuple[Tensor, Tensor]:
    members, units, n = logits.shape
    log_mass = logits.new_empty((members, samples, units // length), dtype=torch.float32)
    return log_mass.new_empty(naive.value_shape((members, samples, units, n), squash)), log_mass


@operator("discrete_score")
def _score(value: Tensor, logits: Tensor, squash: str, length: int) -> Tensor:
    if _has_fast(value.shape[1], logits):
        from .. import triton_categorical as triton

        return triton.score(value, logits, squash, length)
    return naive.score(value, logits, squash, length)


@_score.register_fake
def _(value: Tensor, logits: Tensor, squash: str, length: int) -> Tensor:
    return value.new_empty((*value.shape[:2], value.shape[2] // length), dtype=torch.float32)


@operator("discrete_score_backward")
def _score_backward(by: Tensor, value: Tensor, logits: Tensor, squash: str, length: int) -> Tensor:
    if _has_fast(value.shape[1], logits):
        from .. import triton_categorical as triton

        return triton.score_backward(by, value, logits, squash, length)
    return naive.score_backward(by, value, logits, squash, length)


@_score_backward.register_fake
def _(by: Tensor, value: Tensor, logits: Tensor, squash: str, length: int) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _keep_draw(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, _, _, ctx.squash, ctx.length = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[0])
    ctx.save_for_backward(output[0], logits)


def _pull_draw(ctx: Any, _: Tensor | None, by: Tensor | None) -> tuple[Tensor | None, ...]:
    return None if by is None else _pull(ctx, by), None, None, None, None


def _keep_score(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    value, logits, ctx.squash, ctx.length = inputs
    ctx.save_for_backward(value, logits)


def _pull_score(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
    return None, _pull(ctx, by) if ctx.needs_input_grad[1] else None, None, None


def _pull(ctx: Any, by: Tensor) -> Tensor:
    value, logits = ctx.saved_tensors
    # the definition where the gradient is to be differentiated again
    pull = naive.score_backward if torch.is_grad_enabled() else _score_backward
    by_logits: Tensor = pull(by, value, logits, ctx.squash, ctx.length)
    return by_logits


_draw.register_autograd(_pull_draw, setup_context=_keep_draw)
_score.register_autograd(_pull_score, setup_context=_keep_score)
