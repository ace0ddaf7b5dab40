"""The expected cost of a program under its discrete graph."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Generator, Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ..functional.noise import Source
from ..functional.slice import Slice
from ..graph.mode import Discrete
from ..graph.program import Program, eval_mode
from ..objective import log_weights
from .points import PAIRS_ON_CPU, points_at_once, require_positive, run_in_parts, standard_error
from .progress import counting


@dataclass(frozen=True)
class Cost:
    """The expected cost of every data point."""

    values: Float64[Tensor, " points"]
    samples: int
    """The number of samples for each data point."""
    seconds: float

    @property
    def mean(self) -> float:
        """The cost, averaged over the data."""
        return self.values.mean().item()

    @property
    def standard_error(self) -> float:
        """The standard error of `mean` over data points."""
        return standard_error(self.values)

    def __str__(self) -> str:
        number = f"{self.samples:,} sample{'s' * (self.samples > 1)}"
        return f"cost {self.mean:.4g} ± {self.standard_error:.2g} ({number}, {self.seconds:.1f} s)"


def evaluate_cost(
    program: Program,
    *data: Any,
    samples: int,
    chunk: int | None = None,
    generator: Generator | Slice | None = None,
    progress: bool = False,
) -> Cost:
    """Estimate the expected cost of a program for every data point from discrete draws, in evaluation mode.

    The data are the inputs of the program. The first axis of their first tensor counts data points. Other tensors are
    cut into the same parts if they have as many rows, and are else passed whole. `chunk` is the largest number of pairs
    of a sample and a data point that run at once, by default 4,096. If the generator is a `Slice`, the ranks share the
    work, and each returns the result of one process.

    >>> import concretely as c
    >>> def program(draw, x):
    ...     return draw("b", c.Bernoulli(logits=x)).sum(-1)
    >>> evaluate_cost(program, torch.zeros(5, 3), samples=10).values.shape
    torch.Size([5])
    """
    started, chunk = time.perf_counter(), PAIRS_ON_CPU if chunk is None else chunk
    if isinstance(program, type) or not callable(program):
        got = f"the class {program.__name__}" if isinstance(program, type) else type(program).__name__
        raise TypeError(f"model must be a Model, a program or a module, got {got}")
    for name, number in (("samples", samples), ("chunk", chunk)):
        require_positive(name, number)
    points, *others = _rows_of(data)
    at_once = _fitting(points, points_at_once(samples, chunk), others)

    def run(rows: slice, drawn: int, source: Source | None) -> Tensor:
        part = _part(data, points, rows)
        weights = log_weights(program, *part, mode=Discrete(), samples=drawn, generator=source)
        return -weights.log_p["cost"].double().sum(0)

    with eval_mode(program), torch.no_grad(), counting("cost", points * samples, shown=progress) as advance:
        how: dict[str, Any] = {"samples": samples, "chunk": chunk, "generator": generator, "advance": advance}
        sums = torch.cat(list(run_in_parts(run, torch.add, points=points, at_once=at_once, **how)))
        return Cost(sums.cpu() / samples, samples, time.perf_counter() - started)


def _rows_of(data: tuple[Any, ...]) -> list[int]:
    """Return the number of data points, the rows of the first tensor, and the other numbers of rows of tensors."""
    tensors = [leaf for leaf in tree_leaves(data) if isinstance(leaf, Tensor)]
    if not tensors:
        raise ValueError("data must have at least one tensor, the first input of the program, got none")
    if not tensors[0].dim():
        raise ValueError("data must have a first axis that counts data points, got shape ()")
    if not len(tensors[0]):
        raise ValueError("data must have at least one data point, got none")
    return list(dict.fromkeys(len(tensor) for tensor in tensors if tensor.dim()))


def _fitting(points: int, most: int, others: list[int]) -> int:
    """Return the number of data points to run at once, at most `most` of them.

    No part has a multiple of the rows of a tensor that is passed whole: a program would take labels of too few data
    points for those of the part.
    """
    several = [rows for rows in others if rows > 1]
    sizes = range(min(most, points), 0, -1)
    return next(size for size in sizes if all(size % rows and (points % size or 1) % rows for rows in several))


def _part(data: tuple[Any, ...], points: int, rows: slice) -> tuple[Any, ...]:
    """Return some rows of the tensors that have a row for each data point, and all else whole."""
    part: tuple[Any, ...] = tree_map_only(Tensor, lambda own: own[rows] if own.shape[:1] == (points,) else own, data)
    return part
