"""The edges of bounded values: what a float there stands for.

Draws are rounded to the nearest float and kept off the edges 0 and 1. The last float before an edge therefore stands
for a cell: all numbers from the edge to the inner border, half-way to the next float. Floats nearer to the edge, which
no draw has, belong to the same cell.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .cast import compute_dtype


def smallest(dtype: torch.dtype) -> float:
    """The smallest positive number that a squashed value may take."""
    if dtype == torch.float16:
        return 2.0**-24  # its normal numbers end at 6e-5, so early that a thousand of them would leave the simplex
    # far enough above the smallest normal number that the slope of a log density, of order 1/x, is finite
    return float(torch.finfo(dtype).tiny / torch.finfo(compute_dtype(dtype)).eps)


class Cell(NamedTuple):
    """The cell next to an edge at 0."""

    last: float
    """The last float before the edge."""
    border: float
    """The inner border of the cell, which is also its width."""


def near_zero(dtype: torch.dtype) -> Cell:
    """The cell of values next to 0."""
    last = smallest(dtype)
    spacing = last if dtype == torch.float16 else last * torch.finfo(dtype).eps  # 2^-24 is subnormal in float16
    return Cell(last, last + spacing / 2)


def near_one(dtype: torch.dtype) -> Cell:
    """The cell of values next to 1, measured from there."""
    eps = float(torch.finfo(dtype).eps)
    return Cell(eps / 2, 3 * eps / 4)


def coarser(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    """The dtype with the larger cells: a draw that was converted to a wider dtype keeps the cells it was rounded to."""
    return max(one, other, key=lambda dtype: (near_one(dtype).last, near_zero(dtype).last))


def inside(value: Tensor, low: float, high: float) -> Tensor:
    """A value kept off the edge that rounding would take it to, with its gradient untouched."""
    return value + (value.clamp(low, high) - value).detach()
