"""What a draw gives back, and the shapes in which kernels take their arguments."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Size, Tensor

from ..noise import Source
from .cast import cast, compute_dtype
from .squash import Squashing
from .temperature import Temperature


class Drawn(NamedTuple):
    """A value, and how to compute its log probability."""

    value: Tensor
    score: Callable[[], Tensor]
    """The log probability of every unit. It may be called once: it may overwrite the noise that it is computed from."""
    summed: Callable[[int], Tensor] | None = None
    """The log probability summed over so many of the last batch axes, where a kernel sums it."""
    node: Tensor | None = None
    """The unbounded value before squashing, where there is one. It is exact where the value was rounded to an edge."""


def summed(log_prob: Tensor, axes: int) -> Tensor:
    """Log probabilities summed over so many last axes."""
    return log_prob.sum(tuple(range(-axes, 0))) if axes else log_prob


def draw(
    law: Any,
    logits: Tensor,
    *temperature: Temperature,
    sample_shape: Sequence[int],
    generator: Source | None,
    squashing: Squashing | None = None,
    axes: int = 0,
) -> Drawn:
    """Draw nodes of a law and what they are squashed to; neither these nor their log densities are rounded."""
    shape = Size(sample_shape) + logits.shape
    noise = law.noise(shape, compute_dtype(logits.dtype), device=logits.device, generator=generator)
    node = law.push(logits, *temperature, noise)
    value = node if squashing is None else squashing(node, logits.dtype)
    return Drawn(value, lambda: law.log_density_of_noise(noise, *temperature), node=node)


def score(law: Any, value: Tensor, logits: Tensor, *temperature: Temperature, axes: int = 0) -> Tensor:
    """The log densities of given nodes of a law, in the dtype of the logits, summed over the last batch axes."""
    return summed(cast(law.log_density(value, logits, *temperature), logits.dtype), axes)


def as_members(temperature: Temperature, like: Tensor) -> Float64[Tensor, " 1"]:
    """A temperature as kernels take it: one number for each member."""
    if isinstance(temperature, Tensor):
        return temperature.to(like.device, torch.float64).reshape(1)
    return torch.full((1,), temperature, dtype=torch.float64, device=like.device)


def is_scalar(temperature: Temperature) -> bool:
    """Whether kernels take a temperature: one positive number for all units, and not to be differentiated by."""
    if isinstance(temperature, Tensor):
        return temperature.dim() == 0 and not temperature.requires_grad
    return temperature > 0


def from_kernel(
    call: Callable[[int, int], Sequence[Tensor]], sample_shape: Sequence[int], batch_shape: Size, axes: int
) -> tuple[list[Tensor], Callable[[int], Tensor]]:
    """The tensors that a kernel draws, and a function that gives their log probabilities summed over last axes.

    `call` takes the number of samples and the number of units whose log probabilities are summed: those along the last
    `axes` batch axes.
    """
    shape, samples = Size((*sample_shape, *batch_shape)), Size(sample_shape).numel()
    *tensors, sums = call(samples, shape[len(shape) - axes :].numel())
    sums = sums.reshape(shape[: len(shape) - axes])

    def score(asked: int) -> Tensor:
        if asked >= axes:
            return summed(sums, asked - axes)
        *_, log_probs = call(samples, 1)  # drawn again with the same key, as single units are seldom asked for
        return summed(log_probs.reshape(shape), asked)

    return [tensor.reshape(*shape, *tensor.shape[3:]) for tensor in tensors], score


class Flat(NamedTuple):
    """Values and the logits that they share, as kernels take them, and the shape of the log probabilities."""

    value: Tensor
    logits: Tensor
    length: int
    """How many units are summed."""
    shape: Size


def flat(value: Tensor, logits: Tensor, *, unit_axes: int, axes: int) -> Flat | None:
    """Flatten values for a kernel that scores them, or None if the logits lack more than leading axes of the values."""
    batch, lead = logits.shape[: logits.dim() - unit_axes], value.shape[: value.dim() - unit_axes]
    if lead[len(lead) - len(batch) :] != batch or not value.numel() or axes > len(batch):
        return None
    return Flat(
        value.reshape(1, -1, batch.numel(), *value.shape[len(lead) :]),
        logits.reshape(1, batch.numel(), *logits.shape[len(batch) :]),
        batch[len(batch) - axes :].numel(),
        lead[: len(lead) - axes],
    )
