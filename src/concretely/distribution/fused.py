"""Where kernels take the place of definitions: on a GPU, in float32 or less, at one temperature for all units."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Size, Tensor

from ..kernel.handwritten import attempted, is_fast
from ..noise import Source, key_of
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


class Draw(NamedTuple):
    """What a kernel has drawn: tensors in the shape of samples and batch, and a way to their log probabilities."""

    tensors: list[Tensor]
    score: Callable[[int], Tensor]
    """The log probabilities, summed over so many of the last axes of the batch."""


class Unit(NamedTuple):
    """What kernels must know of the units of a variable."""

    kernel: ModuleType
    logits: Tensor
    category_axes: int
    """One if the last axis of the logits runs over categories, and that of values belongs to one unit too."""
    temperature: Temperature | None = None
    """None of what is discrete."""

    @property
    def suits(self) -> bool:
        """Whether there are kernels."""
        return suits(self.logits, 1.0 if self.temperature is None else self.temperature)

    def draw(
        self, sample_shape: Sequence[int], batch_shape: Size, generator: Source | None, squash: str, axes: int
    ) -> Draw | None:
        """Draws and their log probabilities from a kernel, if there is one."""
        if not self.suits:
            return None
        lead = self.logits.dim() - self.category_axes
        flat, key = self.logits.reshape(1, -1, *self.logits.shape[lead:]), key_of(generator, self.logits.device)
        warm = () if self.temperature is None else (warmth(self.temperature, flat),)
        return drawn(
            lambda m, length: self.kernel.draw(flat, *warm, key, m, squash, length), sample_shape, batch_shape, axes
        )

    def score(self, value: Tensor, axes: int, squash: str = "") -> Tensor | None:
        """The log probabilities of values from a kernel, if there is one."""
        if not self.suits or value.dtype == torch.float64:
            return None
        how = squash if self.temperature is None else warmth(self.temperature, value)
        return scored(
            lambda values, logits, length: self.kernel.score(values, logits, how, length),
            value if self.temperature is not None else value.detach(),
            self.logits,
            unit_axes=self.category_axes,
            axes=axes,
        )


def drawn(call: Callable[[int, int], Any], sample_shape: Sequence[int], batch_shape: Size, axes: int) -> Draw | None:
    """What a kernel draws, given the number of samples and of the units whose log probabilities are summed.

    The latter are those along so many of the last axes of the batch. There is nothing where a kernel cannot draw.
    """
    shape, samples = Size((*sample_shape, *batch_shape)), Size(sample_shape).numel()
    found = attempted(lambda: call(samples, shape[len(shape) - axes :].numel()))
    if found is None:
        return None
    *tensors, sums = found
    sums = sums.reshape(shape[: len(shape) - axes])

    def score(asked: int) -> Tensor:
        if asked >= axes:
            return summed(sums, asked - axes)
        *_, log_probs = call(samples, 1)  # drawn once more by the same key, as units are seldom asked for alone
        return summed(log_probs.reshape(shape), asked)

    return Draw([each.reshape(*shape, *each.shape[3:]) for each in tensors], score)


def scored(
    call: Callable[[Tensor, Tensor, int], Tensor],
    value: Tensor,
    logits: Tensor,
    *,
    unit_axes: int,
    axes: int,
) -> Tensor | None:
    """What a kernel scores, given values, the logits that they share and the number of units to sum; None if it cannot.

    So many of the last axes belong to one unit, and so many before them are summed over. The logits may lack axes in
    front, not among those that they have.
    """
    batch = logits.shape[: logits.dim() - unit_axes]
    lead = value.shape[: value.dim() - unit_axes]
    if lead[len(lead) - len(batch) :] != batch or not value.numel() or axes > len(batch):
        return None
    flat = value.reshape(1, -1, batch.numel(), *value.shape[len(lead) :])
    shared, length = logits.reshape(1, batch.numel(), *logits.shape[len(batch) :]), batch[len(batch) - axes :].numel()
    found = attempted(lambda: call(flat, shared, length))
    return None if found is None else found.reshape(lead[: len(lead) - axes])


def summed(log_prob: Tensor, axes: int) -> Tensor:
    """Log probabilities summed over so many last axes."""
    return log_prob.sum(tuple(range(-axes, 0))) if axes else log_prob
