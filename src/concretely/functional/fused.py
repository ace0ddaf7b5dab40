"""Functions shared by autograd nodes of several operations: when a kernel can run, and second derivatives."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..kernel.operator import is_enabled
from .noise import Source
from .slice import Slice


def runs_kernel(kernel: str, x: Tensor, parameter: Tensor, generator: Source | None) -> bool:
    """Return whether a kernel can multiply inputs by draws that depend on a parameter, in float32."""
    if isinstance(generator, Slice) or torch.float64 in (x.dtype, parameter.dtype) or not x.numel():
        return False
    return is_enabled(kernel, x) and parameter.device == x.device


def pulled_again(
    function: Callable[..., Any], leaves: tuple[Tensor | None, ...], by: Any, *given: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of leaves, which can be differentiated again, or None for a leaf without one.

    If the function returns several tensors, `by` has the gradients of the first of them, or None.
    """
    # one leaf may depend on another, through which nothing must pass
    leaves = tuple(None if leaf is None else leaf.view_as(leaf) for leaf in leaves)
    wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    value = function(*leaves, *given)
    if isinstance(by, tuple):
        pairs = [(head, own) for head, own in zip(value, by, strict=False) if own is not None]
        value, by = [head for head, _ in pairs], [own for _, own in pairs]
    gradients = iter(torch.autograd.grad(value, wanted, by, create_graph=True, allow_unused=True))
    return tuple(next(gradients) if leaf is not None and leaf.requires_grad else None for leaf in leaves)
