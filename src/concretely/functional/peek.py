"""Read the data of a tensor where no compiler, CUDA graph capture or `vmap` forbids it."""

import torch
from torch import Tensor


def is_hidden(value: Tensor) -> bool:
    """Return whether data cannot be read: inside compilation, graph capture or `vmap`."""
    if torch.compiler.is_compiling() or (value.is_cuda and torch.cuda.is_current_stream_capturing()):
        return True
    try:
        value.data_ptr()
    except RuntimeError:  # inside vmap
        return True
    return False


def bool_or_none(condition: Tensor) -> bool | None:
    """Return the value of a condition, or None inside compilation, graph capture or `vmap`."""
    if torch.compiler.is_compiling() or (condition.is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    try:
        return bool(condition)
    except RuntimeError:  # vmap, and tensors without storage
        return None
