"""Linear layers and convolutions of a user's modules, computed by kernels of this library inside a context."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d, linear
from torch.overrides import TorchFunctionMode

from ..kernel.deferred import deferred_gradients
from . import convolution
from .arithmetic import affine

REPLACED = frozenset((linear, conv2d, conv_transpose2d))
"""The functions of torch that kernels may compute."""
ROWS, WEIGHTS = 1024, 2**20
"""Up to this number of rows and weights, a product takes less time than its launches."""


@contextmanager
def fewer_launches(*, stacked: bool, deferred: bool) -> Iterator[None]:
    """Compute layers in fewer launches inside this context, for work that is captured as a CUDA graph.

    If `stacked`, members run as one vmapped program, and one launch computes a convolution for all of them. If
    `deferred`, gradients of the weights of linear layers may stay factors (see `kernel.deferred`).
    """
    with deferred_gradients(deferred), FewerLaunches(stacked=stacked):
        yield


class FewerLaunches(TorchFunctionMode):
    """Inside this context, small linear layers are computed by `affine`, and convolutions of members by `convolution`.

    It sees every call of torch, which costs more than it saves unless the calls are captured as a CUDA graph.
    """

    sees_all = False

    def __init__(self, *, stacked: bool) -> None:
        super().__init__()
        self._stacked = stacked

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        """Call a function of torch, or what computes the same in fewer launches."""
        named = named or {}
        if function not in REPLACED or torch.is_autocast_enabled("cuda"):
            return function(*given, **named)
        if function is linear and not named and len(given) == 3 and _is_small(*given):
            x, weight, bias = given
            return affine(x, weight, bias, False)
        if self._stacked and function is not linear:
            replacement = convolution.of_member(function, *given, **named)
            if replacement is not None:
                return replacement
        return function(*given, **named)


def _is_small(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if bias is None or weight.dim() != 2 or weight.numel() > WEIGHTS:
        return False
    is_float = x.dtype == weight.dtype == bias.dtype == torch.float32
    return is_float and 0 < x.numel() <= ROWS * x.shape[-1]
