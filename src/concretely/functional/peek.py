"""Whether the data of a tensor can be read right now, and what they say."""

import torch
from torch import Tensor


def is_hidden(value: Tensor) -> bool:
    """Whether data cannot be read: inside a compiled, captured or batched program."""
    if torch.compiler.is_compiling() or (value.is_cuda and torch.cuda.is_current_stream_capturing()):
        return True
    try:
        value.data_ptr()
    except RuntimeError:  # a batch has no memory of its own
        return True
    return False


def bool_or_none(condition: Tensor) -> bool | None:
    """The truth of a condition, or None inside a compiled, captured or batched program, which cannot branch on data."""
    if torch.compiler.is_compiling() or (condition.is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    try:
        return bool(condition)
    except RuntimeError:  # vmap, and tensors without storage
        return None
