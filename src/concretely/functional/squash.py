"""How an unbounded node becomes a value in the bounded set that spans the states, and how such a value is scored.

A value inside the set determines its node. A value on the edge stands for a cell (see `edge`), and its score is the log
of the average density over that cell, for which every law has a closed form or a one-dimensional integral.
"""

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from .cast import to_float64
from .edge import coarser, inside, near_one, near_zero
from .hypercube import mean_corner
from .peek import bool_or_none
from .temperature import Temperature

MANY = 0.01
"""The share of scored values on the edge from which on a warning is given."""


class EdgeWarning(UserWarning):
    """Many of the scored values lie on the edge of the support, where rounding hides how near to it they were."""


class Score(NamedTuple):
    """The log density of the node behind a value, and the log volume that squashing makes of a unit volume there."""

    log_density: Tensor
    log_abs_det_jacobian: Tensor


class Squashing(ABC):
    """A map from a node to a value."""

    name: str
    """What kernels call it."""

    @abstractmethod
    def __call__(self, node: Tensor, dtype: torch.dtype) -> Tensor:
        """The value of a node, as far inside the edge as a dtype can tell, before it is rounded to that dtype."""

    @abstractmethod
    def log_abs_det_jacobian(self, node: Tensor) -> Tensor:
        """The logarithm of the volume that squashing makes of a unit volume around a node."""

    @abstractmethod
    def score(self, value: Tensor, law: Any, logits: Tensor, temperature: Temperature, *, dtype: torch.dtype) -> Score:
        """The score of a value that was rounded to its own dtype, and before that to another."""


@dataclass(frozen=True)
class Sigmoid(Squashing):
    """The sigmoid of a log-odds, on the unit interval or, stretched, between minus and plus one."""

    centred: bool = False
    """Whether values lie between minus and plus one, along an axis of one bit."""

    @property
    def name(self) -> str:  # type: ignore[override]
        """What kernels call it."""
        return "corner" if self.centred else "unit"

    def __call__(self, node: Float[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
        value = torch.exp(logsigmoid(node))  # its derivative keeps the precision that that of `torch.sigmoid` loses
        if self.centred:
            return (2 * value - 1).unsqueeze(-1)
        kept = inside(value, near_zero(dtype).last, 1 - near_one(dtype).last)
        return torch.where(node.isinf(), value, kept)  # 0 and 1 are limits

    def log_abs_det_jacobian(self, node: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return logsigmoid(node) + logsigmoid(-node) + (math.log(2) if self.centred else 0)

    def score(
        self,
        value: Float[Tensor, "..."],
        law: Any,
        logits: Float[Tensor, "..."],
        temperature: Temperature,
        *,
        dtype: torch.dtype,
    ) -> Score:
        value, dtype = to_float64(value), coarser(value.dtype, dtype)
        lower, upper = self._distances(value)
        (last, border), (last_upper, border_upper) = self._cells(dtype)
        low, high = lower <= last, upper <= last_upper
        edge = low | high
        if _has_none(edge):
            return self._inside(lower, upper, law, logits, temperature)
        half = torch.full_like(value, 0.5).reshape(lower.shape)
        found = self._inside(torch.where(edge, half, lower), torch.where(edge, half, upper), law, logits, temperature)
        log_density, slope = found
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
        """The shares of the interval below and above a value."""
        if self.centred:
            value = value.squeeze(-1)
            return (1 + value) / 2, (1 - value) / 2
        return value, 1 - value

    def _cells(self, dtype: torch.dtype) -> tuple[tuple[float, float], tuple[float, float]]:
        """The last float and the border of the cells at either edge, as shares of the interval."""
        if self.centred:
            last, border = near_one(dtype)
            return (last / 2, border / 2), (last / 2, border / 2)
        return near_zero(dtype), near_one(dtype)


class Exponential(Squashing):
    """The exponential of a point of the log simplex, a point of the simplex."""

    name = "simplex"

    def __call__(self, node: Float[Tensor, "*shape n"], dtype: torch.dtype) -> Float[Tensor, "*shape n"]:
        value = torch.exp(node)
        return torch.where(node.isinf(), value, inside(value, near_zero(dtype).last, 1))  # 0 is a limit

    def log_abs_det_jacobian(self, node: Float[Tensor, "*shape n"]) -> Float[Tensor, "*shape"]:
        return node.sum(-1)

    def score(
        self,
        value: Float[Tensor, "*shape n"],
        law: Any,
        logits: Float[Tensor, "*batch n"],
        temperature: Temperature,
        *,
        dtype: torch.dtype,
    ) -> Score:
        cell = near_zero(coarser(value.dtype, dtype))
        value = to_float64(value)
        return _score_on_simplex(value, value <= cell.last, cell.border, law, logits, temperature)


@dataclass(frozen=True)
class Corners(Squashing):
    """The mean of the corners of a hypercube by the weights that a point of the simplex gives them."""

    states: int
    name = "cube"

    def __call__(self, node: Float[Tensor, "*shape n"], dtype: torch.dtype) -> Float[Tensor, "*shape bits"]:
        return inside(mean_corner(node.exp()), -1, 1)

    def log_abs_det_jacobian(self, node: Float[Tensor, "*shape n"]) -> Float[Tensor, "*shape"]:
        """Zero: beyond two states a point does not determine its node, so that scores are those of the node."""
        return torch.zeros((), dtype=node.dtype, device=node.device)

    def score(
        self,
        value: Float[Tensor, "*shape bits"],
        law: Any,
        logits: Float[Tensor, "*batch n"],
        temperature: Temperature,
        *,
        dtype: torch.dtype,
    ) -> Score:
        if self.states > 2:
            raise ValueError(
                f"a point of the hypercube with {self.states} states does not determine its node and cannot be scored: "
                "use rsample_and_log_prob, or draw and score the variable's node"
            )
        cell = near_one(coarser(value.dtype, dtype))
        value = to_float64(value)
        weights = (1 + torch.cat([-value, value], -1)) / 2
        return _score_on_simplex(weights, weights <= cell.last / 2, cell.border / 2, law, logits, temperature)


def squashed(node: Float[Tensor, "*shape n"], name: str) -> Tensor:
    """Nodes on the log simplex, squashed by the name that kernels use; empty if they are not."""
    if name == "none":
        return node.new_empty((len(node), 0))
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
    """The score of a point of the simplex of which some entries are only known to lie below a border."""
    lost_any = not _has_none(lost.any(-1))
    known = torch.where(lost, border, value) if lost_any else value
    # an entry above 1/2 is more precise as what the others leave: if it was rounded to 1, nothing is lost
    largest = known > 0.5
    others = torch.where(largest, 0, known).sum(-1, keepdim=True)
    node = torch.where(largest, torch.log1p(-others.clamp(max=0.5)), torch.where(largest, 1, known).log())
    if lost_any:
        # where no entry is lost the two agree
        log_density = law.log_density_at_edge(node, logits, temperature, lost)
    else:
        log_density = law.log_density(node, logits, temperature)
    return Score(log_density, node.sum(-1))


def _has_none(edge: Bool[Tensor, "..."]) -> bool:
    """Whether no value is known to lie on an edge; on the CPU, warn if many do."""
    if bool_or_none(~edge.any()) is True:
        return True
    if edge.device.type == "cpu" and bool_or_none(edge.double().mean() > MANY):
        warnings.warn(
            "more than a hundredth of the scored values lie on the edge of the support, where rounding has hidden how "
            "near to it they were: rsample_and_log_prob gives the exact log densities of draws",
            EdgeWarning,
            stacklevel=2,
        )
    return False
