"""How the members of a tensor lie in memory, and sums over parts and rows."""

import math
from collections.abc import Sequence

import torch
from torch import Size, Tensor


def rows(tensor: Tensor) -> Tensor:
    """Return a tensor in which each member is contiguous, copied only if needed. Members may share memory."""
    if tensor.is_contiguous() or (len(tensor) and tensor[0].is_contiguous()):
        return tensor
    return tensor.contiguous()


def laid(tensors: Sequence[Tensor], axes: int) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Return tensors in which each member is contiguous, and how far apart the members of each are.

    Their first `axes` axes are members; without any, there is one. Members along one axis may share memory.
    """
    if axes == 1:
        laid_out = tuple(map(rows, tensors))
        return laid_out, tuple([tensor.stride(0) for tensor in laid_out])
    laid_out = tuple([tensor.contiguous() for tensor in tensors])
    return laid_out, tuple([math.prod(tensor.shape[axes:]) for tensor in laid_out]) if axes else (0,) * len(laid_out)


def by_sample(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Return the numbers of members, samples and data points of log-weights with samples along an axis."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def by_bits(logits: Tensor, bits: Tensor, axes: int, members: int) -> tuple[Size, tuple[int, int, int, int]]:
    """Return the shape of the log probabilities of bits, and the numbers of members, samples, data points and units.

    The last `axes` axes are units, and the first `members` axes are members. Logits may have samples in between.
    """
    shape, first = logits.shape, logits.dim() - bits.dim() + members
    last = logits.dim() - axes
    counts = shape[:members], shape[members:first], shape[first:last], shape[last:]
    return shape[:last], tuple(map(math.prod, counts))  # type: ignore[return-value]


def convolved_size(
    x: Tensor, weight: Tensor, stride: int, padding: int, extra: int, transposed: bool
) -> tuple[int, int]:
    """Return the height and the width of convolved images, given images with the channels last."""
    sides = zip(x.shape[2:4], weight.shape[3:], strict=True)
    if transposed:
        high, wide = [(side - 1) * stride - 2 * padding + window + extra for side, window in sides]
    else:
        high, wide = [(side + 2 * padding - window) // stride + 1 for side, window in sides]
    return high, wide


def strided(tensor: Tensor, *shape: int) -> tuple[Tensor, tuple[int, ...]]:
    """Return a tensor and its strides in another shape, which it need not have."""
    if not tensor.is_contiguous():
        tensor = tensor.reshape(shape)
        return tensor, tensor.stride()
    return tensor, tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def partial_sums(parts: int, shape: Sequence[int], like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return memory for sums of a shape in `dtype` or, with an axis of parts, in float32.

    It is in float32 if there are several parts, or if sums may overflow in `dtype`.
    """
    members, *units = shape
    if parts == 1 and dtype != torch.float16:
        return like.new_empty(*shape, dtype=dtype)
    return like.new_empty(members, parts, *units, dtype=torch.float32)


def sum_parts(sums: Tensor, parts: int, dtype: torch.dtype) -> Tensor:
    """Return the sum of partial sums. Conversions to float16 clamp finite numbers, so that none overflows."""
    if parts == 1 and sums.dtype == dtype:
        return sums
    total = sums.squeeze(1) if parts == 1 else sums.sum(1)
    if dtype == torch.float16:
        most = torch.finfo(dtype).max
        total = torch.where(total.isinf(), total, total.clamp(-most, most))
    return total.to(dtype)


def row_sums(log_prob: Tensor, length: int) -> Tensor:
    """Return the sums over rows of `length` neighbouring units, along the last axis."""
    return log_prob if length == 1 else log_prob.unflatten(-1, (log_prob.shape[-1] // length, length)).sum(-1)
