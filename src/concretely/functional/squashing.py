"""Squashings: maps from an unbounded node to a bounded value, and the scores of values.

A `law` holds the functions of one family, such as the module `functional.logistic`. A node is here the unbounded
variable before squashing. A value inside the support determines its node. A value on the edge stands for a cell, all
numbers that were rounded to it (see `edge`). Its log density is the log of the average density over the cell.
"""

import math
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from .arithmetic import Temperature, bool_or_none, is_finite, is_undifferentiated, to_float64
from .edge import coarser, inside, near_one, near_zero
from .hypercube import corners, mean_corner
from .log_simplex import one_hot_argmax

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
    def __call__(
        self, node: Tensor, dtype: torch.dtype, *, finite: bool = False, shared: Tensor | None = None
    ) -> Tensor:
        """Return the value of a node. It is clamped so that rounding to `dtype` will not reach the edge.

        The value of an infinite node stays on the edge. With `finite`, there is none. `shared` is the result of
        `share`, if it was called.
        """

    @abstractmethod
    def share(self, node: Tensor) -> Tensor:
        """Return what both the value of a node and its gradient are computed from, outside autograd."""

    @abstractmethod
    def pull(self, by_value: Tensor, node: Tensor, shared: Tensor | None = None) -> Tensor:
        """Return the gradient of a node, from the gradient of its value."""

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

    def __call__(
        self, node: Float[Tensor, "..."], dtype: torch.dtype, *, finite: bool = False, shared: Tensor | None = None
    ) -> Tensor:
        if is_undifferentiated(node):  # the same as `precise_sigmoid`, in place
            tail = self.share(node) if shared is None else shared
            value = node.sign().clamp_(min=0).sub_(tail).abs_()  # the tail, or one minus the tail
        else:
            value = precise_sigmoid(node)
        return self.scaled(value, node, dtype, finite=finite)

    def share(self, node: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the smaller of the sigmoid and one minus the sigmoid."""
        return node.abs().neg_().sigmoid_()

    def scaled(
        self, value: Float[Tensor, "..."], node: Float[Tensor, "..."], dtype: torch.dtype, *, finite: bool = False
    ) -> Tensor:
        """Return the sigmoid of a node on the interval of this map, clamped."""
        if self.centred:
            return (2 * value - 1).unsqueeze(-1)
        kept = inside(value, near_zero(dtype).last, 1 - near_one(dtype).last)
        is_finite = finite or _is_finite(node)
        return kept if is_finite else torch.where(_are_infinite(node), value, kept)  # the limits 0 and 1 stay

    def pull(
        self, by_value: Float[Tensor, "..."], node: Float[Tensor, "..."], shared: Tensor | None = None
    ) -> Float[Tensor, "..."]:
        by_value = by_value.squeeze(-1) if self.centred else by_value
        if not is_undifferentiated(node):
            return by_value * self.log_abs_det_jacobian(node).exp()
        tail = self.share(node) if shared is None else shared
        slope = torch.addcmul(tail, tail, tail, value=-1)
        return by_value * (slope.mul_(2) if self.centred else slope)

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

    def __call__(
        self, node: Float[Tensor, "*shape n"], dtype: torch.dtype, *, finite: bool = False, shared: Tensor | None = None
    ) -> Tensor:
        value = torch.exp(node) if shared is None else shared
        kept = inside(value, near_zero(dtype).last, 1)
        is_finite = finite or _is_finite(node)
        return kept if is_finite else torch.where(_are_infinite(node), value, kept)  # the limit 0 stays

    def share(self, node: Float[Tensor, "*shape n"]) -> Float[Tensor, "*shape n"]:
        """Return the exponential."""
        return torch.exp(node)

    def pull(
        self, by_value: Float[Tensor, "*shape n"], node: Float[Tensor, "*shape n"], shared: Tensor | None = None
    ) -> Float[Tensor, "*shape n"]:
        return by_value * _unless_differentiated(node, shared)

    def log_abs_det_jacobian(self, node: Float[Tensor, "*shape n"]) -> Float[Tensor, "*shape"]:
        return node.sum(-1)

    def _score(self, value: Tensor, dtype: torch.dtype, law: Any, logits: Tensor, temperature: Temperature) -> Score:
        cell = near_zero(dtype)
        return _score_on_simplex(value, value <= cell.last, cell.border, law, logits, temperature)


class Argmax(Exponential):
    """The one-hot vector of the largest entry, with the gradient of the exponential."""

    name = "one-hot"

    def __call__(
        self, node: Float[Tensor, "*shape n"], dtype: torch.dtype, *, finite: bool = False, shared: Tensor | None = None
    ) -> Tensor:
        return straight_through(one_hot_argmax(node), node, torch.exp)


class Threshold(Sigmoid):
    """1 where log-odds are at least 0, else 0, with the gradient of the sigmoid."""

    name = "bit"

    def __call__(
        self, node: Float[Tensor, "..."], dtype: torch.dtype, *, finite: bool = False, shared: Tensor | None = None
    ) -> Tensor:
        return straight_through((node >= 0).to(node.dtype), node, torch.sigmoid)


def precise_sigmoid(node: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the sigmoid by its smaller tail, so that the value and its derivative are precise at both ends."""
    below = node < 0
    tail = torch.sigmoid(torch.where(below, node, -node))
    return torch.where(below, tail, 1 - tail)


def straight_through(state: Tensor, node: Tensor, soft: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a state with the gradient of `soft(node)`. It equals the state to the bit."""
    if not torch.is_grad_enabled():
        return state
    value = soft(node)
    return state + (value - value.detach())


@dataclass(frozen=True)
class Corners(Squashing):
    """The mean of the corners of a hypercube, weighted by a point of the simplex."""

    states: int
    name = "cube"

    def __call__(
        self, node: Float[Tensor, "*shape n"], dtype: torch.dtype, *, finite: bool = False, shared: Tensor | None = None
    ) -> Tensor:
        return inside(mean_corner(node.exp() if shared is None else shared), -1, 1)

    def share(self, node: Float[Tensor, "*shape n"]) -> Float[Tensor, "*shape n"]:
        """Return the exponential."""
        return torch.exp(node)

    def pull(
        self, by_value: Float[Tensor, "*shape bits"], node: Float[Tensor, "*shape n"], shared: Tensor | None = None
    ) -> Float[Tensor, "*shape n"]:
        slope = by_value @ corners(self.states, dtype=by_value.dtype, device=by_value.device).T
        return slope * _unless_differentiated(node, shared)

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
    if name == "cube":
        return Corners(node.shape[-1])(node, torch.float32)
    if name in ("unit", "corner"):  # in operations that are the same inside and outside vmap
        value = Sigmoid(centred=name == "corner").scaled(precise_sigmoid(node), node, torch.float32)
        return value.view(node.shape)
    named = {squashing.name: squashing for squashing in (Threshold(), Exponential(), Argmax())}
    return named[name](node, torch.float32)


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
    """Return whether no value is known to lie on an edge; warn on the CPU if many do. This never waits for a GPU."""
    if edge.is_cuda:
        return False
    if bool_or_none(~edge.any()) is True:
        return True
    if bool_or_none(edge.double().mean() > MANY):
        warnings.warn(
            "more than 1 % of the scored values lie on the edge of the support, where rounding has removed precision: "
            "use rsample_and_log_prob for the exact log densities of draws",
            EdgeWarning,
            stacklevel=_depth(),
        )
    return False


def _unless_differentiated(node: Tensor, exponential: Tensor | None) -> Tensor:
    """Return the exponential of a node: that which is known, unless it must have a derivative."""
    return exponential if exponential is not None and is_undifferentiated(node) else node.exp()


def _is_finite(node: Tensor) -> bool:
    """Return whether a node is known to be finite. This never waits for a GPU."""
    return node.is_cpu and is_finite(node) is True


def _are_infinite(node: Tensor) -> Tensor:
    """Return which entries are infinite, without `isinf`, which code compiled for a CPU calls for each entry."""
    return node.abs() == math.inf


def _depth() -> int:
    """Return the `stacklevel` with which a warning points at the caller of the library."""
    package, frame, depth = __name__.partition(".")[0], sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, depth = frame.f_back, depth + 1
    return depth
