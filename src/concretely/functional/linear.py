"""Linear layers of a user's modules, computed by the kernels of `affine` inside a context."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from ..kernel.deferred import deferred_gradients
from .arithmetic import affine

ROWS, WEIGHTS = 1024, 2**20
"""Up to this number of rows and weights, a product takes less time than its launches."""


@contextmanager
def small_linears(*, deferred: bool) -> Iterator[None]:
    """Compute small linear layers by `affine` inside this context, for work that is captured as a CUDA graph.

    If `deferred`, gradients of their weights may stay factors (see `kernel.deferred`).
    """
    with deferred_gradients() if deferred else nullcontext(), SmallLinears():
        yield


class SmallLinears(TorchFunctionMode):
    """Inside this context, small linear layers are computed by `affine`, whose gradients need fewer launches.

    It sees every call of torch, which costs more than it saves unless the calls are captured as a CUDA graph.
    """

    sees_all = False

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        """Call a function of torch, or `affine` if it is a small linear layer."""
        if function is linear and not named and len(given) == 3 and _is_small(*given):
            x, weight, bias = given
            return affine(x, weight, bias, False)
        return function(*given, **(named or {}))


def _is_small(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if bias is None or weight.dim() != 2 or weight.numel() > WEIGHTS:
        return False
    is_float = x.dtype == weight.dtype == bias.dtype == torch.float32
    return is_float and 0 < x.numel() <= ROWS * x.shape[-1]
