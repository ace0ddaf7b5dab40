"""Draw and score variables of any batch shape, by a kernel if it is eligible, else by torch operations.

A `law` holds the functions of one family, such as the module `functional.logistic`. A node is here the unbounded
variable before squashing; a squashing maps it to a bounded value. A value inside the support determines its node. A
value on the edge stands for a cell, all numbers that were rounded to it (see `edge`). Its log density is the log of the
average density over the cell.
"""

import math
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64
from torch import Size, Tensor
from torch.nn.functional import logsigmoid

from .arithmetic import Temperature, bool_or_none, cast, compute_dtype, to_float64
from .edge import coarser, inside, near_one, near_zero
from .hypercube import mean_corner
from .noise import Source, key_of

MANY = 0.01
"""The fraction of values on the edge above which `log_prob` warns."""


class EdgeWarning(UserWarning):
    """Many scored values lie on the edge of the support, where rounding has removed precision."""


class Score(NamedTuple):
    """The log density of the unsquashed variable, and the log Jacobian determinant of the squashing."""

    log_density: Tensor
    log_abs_det_jacobian: Tensor


class Squashing(ABC):
    """A map from an unbounded node to a bounded value."""

    name: str
    """The name of the map in kernels."""

    @abstractmethod
    def __call__(self, node: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the value of a node. It is clamped so that rounding to `dtype` will not reach the edge."""

    @abstractmethod
    def log_abs_det_jacobian(self, node: Tensor) -> Tensor:
        """Return the log absolute determinant of the Jacobian at a node."""

    def score(self, value: Tensor, law: Any, logits: Tensor, temperature: Temperature, *, dtype: torch.dtype) -> Score:
        """Score a value that was rounded to `dtype` and then to its own dtype."""
        return self._score(to_float64(value), coarser(value.dtype, dtype), law, logits, temperature)

    @abstractmethod
    def _score(self, value: Tensor, dtype: torch.dtype, law: Any, logits: Tensor, temperature: Temperature) -> Score:
        """Score a value, now in float64, that was rounded to `dtype` before."""


@dataclass(frozen=True)
class Sigmoid(Squashing):
    """The sigmoid of log-odds, on the unit interval or scaled to [-1, 1]."""

    centred: bool = False
    """Whether values lie in [-1, 1] and have a last axis of one bit."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return "corner" if self.centred else "unit"

    def __call__(self, node: Float[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
        value = torch.exp(logsigmoid(node))  # its derivative is more precise than that of torch.sigmoid
        if self.centred:
            return (2 * value - 1).unsqueeze(-1)
        kept = inside(value, near_zero(dtype).last, 1 - near_one(dtype).last)
        return torch.where(node.isinf(), value, kept)  # the limits 0 and 1 stay

    def log_abs_det_jacobian(self, node: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return logsigmoid(node) + logsigmoid(-node) + (math.log(2) if self.centred else 0)

    def _score(self, value: Tensor, dtype: torch.dtype, law: Any, logits: Tensor, temperature: Temperature) -> Score:
        lower, upper = self._distances(value)
        (last, border), (last_upper, border_upper) = self._cells(dtype)
        low, high = lower <= last, upper <= last_upper
        edge = low | high
        if _has_none(edge):
            return self._inside(lower, upper, law, logits, temperature)
        half = torch.full_like(value, 0.5).reshape(lower.shape)
        result = self._inside(torch.where(edge, half, lower), torch.where(edge, half, upper), law, logits, temperature)
        log_density, slope = result
        for on_edge, width, is_upper in ((low, border, False), (high, border_upper, True)):
            node = math.log(width) - math.log1p(-width)
            node_there = torch.full_like(half, -node if is_upper else node)
            tail = law.log_tail(node_there, logits, temperature, upper=is_upper) + math.log1p(-width)
            log_density = torch.where(on_edge, tail, log_density)
            slope = torch.where(on_edge, self.log_abs_det_jacobian(node_there), slope)
        return Score(log_density, slope)

    def _inside(self, lower: Tensor, upper: Tensor, law: Any, logits: Tensor, temperature: Temperature) -> Score:
        node = lower.log() - upper.log()
        return Score(law.log_density(node, logits, temperature), self.log_abs_det_jacobian(node))

    def _distances(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distances to the lower and upper edge, relative to the width of the interval."""
        if self.centred:
            value = value.squeeze(-1)
            return (1 + value) / 2, (1 - value) / 2
        return value, 1 - value

    def _cells(self, dtype: torch.dtype) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the cells at the lower and upper edge, relative to the width of the interval."""
        if self.centred:
            last, border = near_one(dtype)
            return (last / 2, border / 2), (last / 2, border / 2)
        return near_zero(dtype), near_one(dtype)


class Exponential(Squashing):
    """The exponential, from the log simplex to the simplex."""

    name = "simplex"

    def __call__(self, node: Float[Tensor, "*shape n"], dtype: torch.dtype) -> Float[Tensor, "*shape n"]:
        value = torch.exp(node)
        return torch.where(node.isinf(), value, inside(value, near_zero(dtype).last, 1))  # the limit 0 stays

    def log_abs_det_jacobian(self, node: Float[Tensor, "*shape n"]) -> Float[Tensor, "*shape"]:
        return node.sum(-1)

    def _score(self, value: Tensor, dtype: torch.dtype, law: Any, logits: Tensor, temperature: Temperature) -> Score:
        cell = near_zero(dtype)
        return _score_on_simplex(value, value <= cell.last, cell.border, law, logits, temperature)


@dataclass(frozen=True)
class Corners(Squashing):
    """The mean of the corners of a hypercube, weighted by a point of the simplex."""

    states: int
    name = "cube"

    def __call__(self, node: Float[Tensor, "*shape n"], dtype: torch.dtype) -> Float[Tensor, "*shape bits"]:
        return inside(mean_corner(node.exp()), -1, 1)

    def log_abs_det_jacobian(self, node: Float[Tensor, "*shape n"]) -> Float[Tensor, "*shape"]:
        """Return zero, since `log_prob` of a hypercube variable is the log density of its node."""
        return torch.zeros((), dtype=node.dtype, device=node.device)

    def _score(self, value: Tensor, dtype: torch.dtype, law: Any, logits: Tensor, temperature: Temperature) -> Score:
        if self.states > 2:
            raise ValueError(
                f"a point of the hypercube with {self.states} states does not determine its node and cannot be scored: "
                "use rsample_and_log_prob, or draw and score the variable's node"
            )
        cell = near_one(dtype)
        weights = (1 + torch.cat([-value, value], -1)) / 2
        return _score_on_simplex(weights, weights <= cell.last / 2, cell.border / 2, law, logits, temperature)


def squashed(node: Float[Tensor, "..."], name: str) -> Tensor:
    """Squash nodes by the `Squashing` of a name. Return an empty tensor for "none"."""
    if name == "none":
        return node.new_empty((len(node), 0))
    if name in ("unit", "corner"):
        return Sigmoid(centred=name == "corner")(node, torch.float32).view(node.shape)
    squashing = Exponential() if name == "simplex" else Corners(node.shape[-1])
    return squashing(node, torch.float32)


def _score_on_simplex(
    value: Float[Tensor, "*shape n"],
    lost: Bool[Tensor, "*shape n"],
    border: float,
    law: Any,
    logits: Float[Tensor, "*batch n"],
    temperature: Temperature,
) -> Score:
    """Score a point of the simplex. The entries marked `lost` are on the edge: they lie anywhere below `border`."""
    on_edge = lost.any(-1)
    has_none = _has_none(on_edge)
    value = value if has_none else torch.where(lost, border, value)
    # an entry above 1/2 is more precise as 1 minus the sum of the others
    largest = value > 0.5
    others = torch.where(largest, 0, value).sum(-1, keepdim=True)
    node = torch.where(largest, torch.log1p(-others.clamp(max=0.5)), torch.where(largest, 1, value).log())
    log_density = law.log_density(node, logits, temperature)
    if not has_none:  # the score of one point must not depend on the others, not even by rounding
        log_density = torch.where(on_edge, law.log_density_at_edge(node, logits, temperature, lost), log_density)
    return Score(log_density, node.sum(-1))


def _has_none(edge: Bool[Tensor, "..."]) -> bool:
    """Return whether no value lies on an edge; warn on the CPU if many do."""
    if bool_or_none(~edge.any()) is True:
        return True
    if edge.device.type == "cpu" and bool_or_none(edge.double().mean() > MANY):
        warnings.warn(
            "more than 1 % of the scored values lie on the edge of the support, where rounding has removed precision: "
            "use rsample_and_log_prob for the exact log densities of draws",
            EdgeWarning,
            stacklevel=_depth(),
        )
    return False


def _depth() -> int:
    """Return the number of frames from the caller of this function to that of the library, whom a warning is for."""
    package, frame, depth = __name__.partition(".")[0], sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, depth = frame.f_back, depth + 1
    return depth


class Drawn(NamedTuple):
    """A drawn value and functions that compute its log probability."""

    value: Tensor
    score: Callable[[], Tensor]
    """Return the log probability of every unit. Call it once only: it may modify the noise in place."""
    summed: Callable[[int], Tensor] | None = None
    """Return the log probability summed over the given number of last batch axes. None if no kernel sums it."""
    node: Tensor | None = None
    """The unbounded value before squashing, or None for a discrete draw."""


def draw_node(
    law: Any,
    logits: Tensor,
    *temperature: Temperature,
    sample_shape: Sequence[int],
    generator: Source | None,
    squashing: Squashing | None = None,
    axes: int = 0,
) -> Drawn:
    """Draw nodes of a law and squash them, without rounding to the dtype of the logits.

    `axes` is the number of last batch axes that the caller will sum over, a hint for fusion.
    """
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
    defined = partial(law.log_density, value, logits, *temperature)
    if law.score is None or not all(map(_is_one_number, temperature)):
        return sum_axes(cast(defined(), logits.dtype), axes)
    return _scored(law, value, logits, lambda: _of_member(value, *temperature), axes, defined)


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
    defined = partial(law.log_mass, value, logits, squash)
    return _scored(law, value.detach(), logits, lambda: squash, axes, defined)


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
    """Return the tensors that a kernel drew, and a function that sums their log probabilities over last axes.

    `call` runs the kernel and takes the number of units to sum over.
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


def _scored(
    law: Any, value: Tensor, logits: Tensor, last: Callable[[], Any], axes: int, defined: Callable[[], Tensor]
) -> Tensor:
    """Return log probabilities computed by a kernel or, if it cannot run, by `defined`.

    A kernel requires that the batch shape of the value ends in that of the logits. `last` returns its third argument.
    """
    batch, lead = logits.shape[: logits.dim() - law.category_axes], value.shape[: value.dim() - law.category_axes]
    if lead[len(lead) - len(batch) :] == batch and value.numel() and axes <= len(batch):
        values = value.reshape(1, -1, batch.numel(), *value.shape[len(lead) :])
        flat, length = logits.reshape(1, batch.numel(), *logits.shape[len(batch) :]), batch[len(batch) - axes :].numel()
        if law.score.runs_kernel(values, flat, None, length):
            return cast(law.score(values, flat, last(), length).reshape(lead[: len(lead) - axes]), logits.dtype)
    return sum_axes(cast(defined(), logits.dtype), axes)
