"""Draws and log probabilities of any shape, by the kernel of a law if eligible, else by its definition."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Size, Tensor

from ..noise import Source, key_of
from .cast import cast, compute_dtype
from .squash import Squashing
from .temperature import Temperature


class Drawn(NamedTuple):
    """A drawn value and functions that compute its log probability."""

    value: Tensor
    score: Callable[[], Tensor]
    """Return the log probability of every unit. Call it once only: it may overwrite the noise."""
    summed: Callable[[int], Tensor] | None = None
    """Return the log probability summed over a number of last batch axes, if a kernel sums it."""
    node: Tensor | None = None
    """The unbounded value before squashing, if there is one."""


def draw_node(
    law: Any,
    logits: Tensor,
    *temperature: Temperature,
    sample_shape: Sequence[int],
    generator: Source | None,
    squashing: Squashing | None = None,
    axes: int = 0,
) -> Drawn:
    """Draw nodes of a law and squash them, without rounding to the dtype of the logits."""
    lead = logits.dim() - law.category_axes
    samples = Size(sample_shape).numel()
    if law.draw is not None and logits.numel() and all(map(_is_one_number, temperature)):
        rows, name = logits.reshape(1, -1, *logits.shape[lead:]), "none" if squashing is None else squashing.name
        if law.draw.runs_kernel(rows, None, None, samples, name, 1):
            given = rows, _of_member(rows, *temperature), key_of(generator, logits.device)
            shape = Size((*sample_shape, *logits.shape[:lead]))
            node, value, summed = _from_kernel(partial(law.draw, *given, samples, name), shape, axes)
            value = value.unsqueeze(-1) if name == "corner" else value  # add the axis of bits
            return Drawn(node if squashing is None else value, lambda: summed(0), summed, node)
    shape = Size(sample_shape) + logits.shape
    noise = law.noise(shape, compute_dtype(logits.dtype), device=logits.device, generator=generator)
    node = law.push(logits, *temperature, noise)
    value = node if squashing is None else squashing(node, logits.dtype)
    return Drawn(value, lambda: law.log_density_of_noise(noise, *temperature), node=node)


def score_node(law: Any, value: Tensor, logits: Tensor, *temperature: Temperature, axes: int = 0) -> Tensor:
    """Return the log densities of nodes in the dtype of the logits, summed over the last `axes` batch axes."""
    if law.score is not None and all(map(_is_one_number, temperature)):
        flat = _flat(value, logits, unit_axes=law.category_axes, axes=axes)
        if flat is not None and law.score.runs_kernel(flat.value, flat.logits, None, flat.length):
            scores = law.score(flat.value, flat.logits, _of_member(flat.value, *temperature), flat.length)
            return cast(scores.reshape(flat.shape), logits.dtype)
    return sum_axes(cast(law.log_density(value, logits, *temperature), logits.dtype), axes)


def draw_state(
    law: Any, logits: Tensor, *, squash: str, sample_shape: Sequence[int], generator: Source | None, axes: int = 0
) -> Drawn:
    """Draw states of a discrete law, with log probabilities in the dtype of the logits."""
    lead, samples = logits.dim() - law.category_axes, Size(sample_shape).numel()
    if logits.numel():
        rows = logits.reshape(1, -1, *logits.shape[lead:])
        if law.draw.runs_kernel(rows, None, samples, squash, 1):
            key, shape = key_of(generator, logits.device), Size((*sample_shape, *logits.shape[:lead]))
            value, summed = _from_kernel(partial(law.draw, rows, key, samples, squash), shape, axes)

            def rounded(axes: int = 0) -> Tensor:
                return cast(summed(axes), logits.dtype)

            return Drawn(cast(value, logits.dtype), rounded, rounded)
    shape = Size(sample_shape) + logits.shape
    noise = law.noise(shape, compute_dtype(logits.dtype), device=logits.device, generator=generator)
    value = law.push(logits.detach(), noise, squash)
    return Drawn(value, lambda: cast(law.log_mass(value, logits, squash), logits.dtype))


def score_state(law: Any, value: Tensor, logits: Tensor, *, squash: str, axes: int = 0) -> Tensor:
    """Return the log probabilities of states in the logits' dtype, summed over the last `axes` batch axes."""
    flat = _flat(value.detach(), logits, unit_axes=law.category_axes, axes=axes)
    if flat is not None and law.score.runs_kernel(flat.value, flat.logits, squash, flat.length):
        scores = law.score(flat.value, flat.logits, squash, flat.length)
        return cast(scores.reshape(flat.shape), logits.dtype)
    return sum_axes(cast(law.log_mass(value, logits, squash), logits.dtype), axes)


def sum_axes(log_prob: Tensor, axes: int) -> Tensor:
    """Sum log probabilities over the last `axes` axes."""
    return log_prob.sum(tuple(range(-axes, 0))) if axes else log_prob


def _is_one_number(temperature: Temperature) -> bool:
    """Return whether a kernel supports the temperature: one positive number without gradient."""
    if isinstance(temperature, Tensor):
        return temperature.dim() == 0 and not temperature.requires_grad
    return temperature > 0


def _of_member(like: Tensor, temperature: Temperature) -> Float64[Tensor, " 1"]:
    """Return the temperature as a kernel expects it: one number per member."""
    if isinstance(temperature, Tensor):
        return temperature.to(like.device, torch.float64).reshape(1)
    return torch.full((1,), temperature, dtype=torch.float64, device=like.device)


def _from_kernel(call: Callable[[int], Sequence[Tensor]], shape: Size, axes: int) -> tuple[Any, ...]:
    """Return the tensors of a kernel's draw, and a function that sums their log probabilities over last axes.

    `call` takes the number of units to sum over.
    """
    *tensors, sums = call(shape[len(shape) - axes :].numel())
    sums = sums.reshape(shape[: len(shape) - axes])

    def summed(requested: int) -> Tensor:
        if requested >= axes:
            return sum_axes(sums, requested - axes)
        *_, log_probs = call(1)  # rarely needed: draw again with the same key
        return sum_axes(log_probs.reshape(shape), requested)

    drawn = [tensor.reshape(*shape, *tensor.shape[3:]) if tensor.dim() > 2 else tensor for tensor in tensors]
    return *drawn, summed


class _Flat(NamedTuple):
    """Values and logits in the shapes that kernels expect."""

    value: Tensor
    logits: Tensor
    length: int
    """The number of units to sum over."""
    shape: Size
    """The shape of the log probabilities."""


def _flat(value: Tensor, logits: Tensor, *, unit_axes: int, axes: int) -> _Flat | None:
    """Flatten values and logits for a kernel; return None if the logits lack more than leading axes."""
    batch, lead = logits.shape[: logits.dim() - unit_axes], value.shape[: value.dim() - unit_axes]
    if lead[len(lead) - len(batch) :] != batch or not value.numel() or axes > len(batch):
        return None
    return _Flat(
        value.reshape(1, -1, batch.numel(), *value.shape[len(lead) :]),
        logits.reshape(1, batch.numel(), *logits.shape[len(batch) :]),
        batch[len(batch) - axes :].numel(),
        lead[: len(lead) - axes],
    )
