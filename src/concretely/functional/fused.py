"""What functions of inputs share that draw inside one kernel: when the kernel runs, its key, and second derivatives."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from ..kernel.operator import is_enabled
from .noise import Keys, Slice, Source, key_of, numbers_of

Key = tuple[int, int] | Int64[Tensor, "1 2"]
"""The key of a draw: two numbers, or a tensor where they may change, as in a captured program."""


def runs_kernel(kernel: str, x: Tensor, parameter: Tensor, generator: Source | None) -> bool:
    """Return whether a kernel can multiply inputs by draws that depend on a parameter, in float32."""
    if isinstance(generator, Slice) or torch.float64 in (x.dtype, parameter.dtype) or not x.numel():
        return False
    return is_enabled(kernel, x) and parameter.device == x.device


def kernel_key(generator: Source | None, device: torch.device) -> Key:
    """Return the key of a draw by a kernel."""
    if isinstance(generator, Keys) or torch.cuda.is_current_stream_capturing():
        return key_of(generator, device)
    return numbers_of(generator, device)  # type: ignore[arg-type]


def key_tensor(key: Key, device: torch.device) -> Int64[Tensor, "1 2"]:
    """Return a key as a tensor."""
    return key if isinstance(key, Tensor) else torch.tensor([key], device=device)


def pulled_again(
    function: Callable[..., Tensor], leaves: tuple[Tensor, ...], by: Tensor, *given: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of leaves, which can be differentiated again, or None for a leaf without one."""
    leaves = tuple(leaf.view_as(leaf) for leaf in leaves)  # one may depend on another, through which nothing must pass
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    found = iter(torch.autograd.grad(function(*leaves, *given), wanted, by, create_graph=True))
    return tuple(next(found) if leaf.requires_grad else None for leaf in leaves)
