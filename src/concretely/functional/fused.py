"""What autograd nodes of several operations share: when a kernel computes them, and second derivatives."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..kernel.operator import is_enabled
from .noise import Slice, Source


def runs_kernel(kernel: str, x: Tensor, parameter: Tensor, generator: Source | None) -> bool:
    """Return whether a kernel can multiply inputs by draws that depend on a parameter, in float32."""
    if isinstance(generator, Slice) or torch.float64 in (x.dtype, parameter.dtype) or not x.numel():
        return False
    return is_enabled(kernel, x) and parameter.device == x.device


def pulled_again(
    function: Callable[..., Tensor], leaves: tuple[Tensor, ...], by: Tensor, *given: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of leaves, which can be differentiated again, or None for a leaf without one."""
    leaves = tuple(leaf.view_as(leaf) for leaf in leaves)  # one may depend on another, through which nothing must pass
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    found = iter(torch.autograd.grad(function(*leaves, *given), wanted, by, create_graph=True))
    return tuple(next(found) if leaf.requires_grad else None for leaf in leaves)
