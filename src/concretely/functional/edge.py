"""The cells of floats next to the edges 0 and 1.

Draws are rounded to the nearest float and clamped away from the edges. The last float before an edge therefore
represents a cell: all numbers between the edge and the border half-way to the next float.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .arithmetic import compute_dtype


def smallest(dtype: torch.dtype) -> float:
    """Return the smallest positive number that a squashed value may take."""
    if dtype == torch.float16:
        return 2.0**-24  # subnormal: the normal numbers end at 6e-5, too large for a thousand categories
    # keeps the derivative of a log density, of order 1/x, finite
    return float(torch.finfo(dtype).tiny / torch.finfo(compute_dtype(dtype)).eps)


class Cell(NamedTuple):
    """The cell next to an edge at 0."""

    last: float
    """The last float before the edge."""
    border: float
    """The width of the cell."""


def near_zero(dtype: torch.dtype) -> Cell:
    """Return the cell next to 0."""
    return _CELLS[dtype][0]


def near_one(dtype: torch.dtype) -> Cell:
    """Return the cell next to 1, measured as a distance from 1."""
    return _CELLS[dtype][1]


def _cells(dtype: torch.dtype) -> tuple[Cell, Cell]:
    last, eps = smallest(dtype), float(torch.finfo(dtype).eps)
    spacing = last if dtype == torch.float16 else last * eps
    return Cell(last, last + spacing / 2), Cell(eps / 2, 3 * eps / 4)


_CELLS = {dtype: _cells(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
"""The cells next to 0 and 1 by dtype. `torch.finfo` takes longer than an operation."""


def coarser(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    """Return the dtype with the larger cells. A draw keeps its cells when it is converted to a wider dtype."""
    return max(one, other, key=lambda dtype: (near_one(dtype).last, near_zero(dtype).last))


def inside(value: Tensor, low: float, high: float) -> Tensor:
    """Clamp a value. The gradient passes as if there were no clamp."""
    clamped = value.clamp(low, high)
    return value + (clamped - value).detach() if torch.is_grad_enabled() else clamped
