"""How the members of a tensor lie in memory, and sums over parts and rows."""

from collections.abc import Sequence

import torch
from torch import Tensor


def rows(tensor: Tensor) -> Tensor:
    """Return a tensor in which each member is contiguous, copied only if needed. Members may share memory."""
    if tensor.is_contiguous() or (len(tensor) and tensor[0].is_contiguous()):
        return tensor
    return tensor.contiguous()


def strides(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Return how far apart the members of each tensor are."""
    return tuple([tensor.stride(0) for tensor in tensors])


def partial_sums(parts: int, shape: Sequence[int], like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return memory for sums of a shape in `dtype` or, if there are several parts, in float32 with an axis of parts."""
    members, *units = shape
    if parts == 1:
        return like.new_empty(*shape, dtype=dtype)
    return like.new_empty(members, parts, *units, dtype=torch.float32)


def sum_parts(sums: Tensor, parts: int, dtype: torch.dtype) -> Tensor:
    """Return the sum of partial sums."""
    return sums if parts == 1 else sums.sum(1).to(dtype)


def row_sums(log_prob: Tensor, length: int) -> Tensor:
    """Return the sums over rows of `length` neighbouring units, along the last axis."""
    return log_prob if length == 1 else log_prob.unflatten(-1, (log_prob.shape[-1] // length, length)).sum(-1)
