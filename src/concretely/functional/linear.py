"""Linear layers of a user's modules, computed by the kernels of `affine` inside a context."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from .arithmetic import affine

ROWS, WEIGHTS = 1024, 2**20
"""Up to this number of rows and weights, a product takes less time than its launches."""


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
