"""Where kernels take the place of definitions: on a GPU, in float32 or less, at one temperature for all units."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Size, Tensor

from ..kernel.operator import attempted, is_fast
from .temperature import Temperature


def suits(logits: Tensor, temperature: Temperature = 1.0) -> bool:
    """Whether there are kernels for a variable; none differentiates by its temperature, or knows the limit of zero."""
    if not is_fast(logits) or logits.dtype == torch.float64 or not logits.numel():
        return False
    if isinstance(temperature, Tensor):
        return temperature.dim() == 0 and not temperature.requires_grad
    return temperature > 0


def warmth(temperature: Temperature, like: Tensor) -> Float64[Tensor, " 1"]:
    """A temperature as kernels take it."""
    if isinstance(temperature, Tensor):
        return temperature.to(like.device, torch.float64).reshape(1)
    return torch.full((1,), temperature, dtype=torch.float64, device=like.device)


def drawn(call: Callable[[int], Any], sample_shape: Sequence[int], batch_shape: Size) -> tuple[Tensor, ...] | None:
    """What a kernel draws, given the number of samples, in the shape of samples and batch; None if it cannot."""
    found = attempted(lambda: call(Size(sample_shape).numel()))
    shape = (*sample_shape, *batch_shape)
    return None if found is None else tuple(each.reshape(*shape, *each.shape[3:]) for each in found)


def scored(
    call: Callable[[Tensor, Tensor], Tensor], value: Tensor, logits: Tensor, *, value_axes: int, logits_axes: int
) -> Tensor | None:
    """What a kernel scores, given values and the logits that they share; None if it cannot.

    So many of the last axes belong to one unit. The logits may lack axes in front, not among those that they have.
    """
    batch = logits.shape[: logits.dim() - logits_axes]
    lead = value.shape[: value.dim() - value_axes]
    if lead[len(lead) - len(batch) :] != batch or not value.numel():
        return None
    flat = value.reshape(1, -1, batch.numel(), *value.shape[len(lead) :])
    found = attempted(lambda: call(flat, logits.reshape(1, batch.numel(), *logits.shape[len(batch) :])))
    return None if found is None else found.reshape(lead)
