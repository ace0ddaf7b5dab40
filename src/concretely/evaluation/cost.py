"""The expected cost of a program under its discrete graph."""

from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from jaxtyping import Float64
from torch import Generator, Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ..functional.slice import Slice
from ..graph.mode import Discrete
from ..graph.program import Program, eval_mode
from ..objective import log_weights
from .likelihood import gathered, require_positive, rows_of_rank, standard_error

ROWS = 4_096
"""The number of pairs of a sample and a data point in one run."""


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


def expected_cost(
    program: Program, *data: Any, samples: int = 1, generator: Generator | Slice | None = None
) -> Float64[Tensor, " points"]:
    """Estimate the expected cost of a program for every data point from discrete draws, in evaluation mode.

    The data are the inputs of the program. The first axis of their tensors counts data points. If the generator is a
    `Slice`, the ranks share the work, and each returns the result of one process.

    >>> import concretely as c
    >>> def program(draw, x):
    ...     return draw("b", c.Bernoulli(logits=x)).sum(-1)
    >>> expected_cost(program, torch.zeros(5, 3), samples=10).shape
    torch.Size([5])
    """
    require_positive("samples", samples)
    first = next(part for part in tree_leaves(data) if isinstance(part, Tensor))
    step, costs = max(1, ROWS // samples), []
    with eval_mode(program), torch.no_grad():
        for start in range(0, len(first), step):
            points = min(step, len(first) - start)
            rows, source = rows_of_rank(points, generator)
            own = slice(start + rows.start, start + rows.stop)
            part = tree_map_only(Tensor, itemgetter(own), data)
            weights = log_weights(program, *part, mode=Discrete(), samples=samples, generator=source)
            costs.append(gathered(-weights.log_p["cost"].double().mean(0), points, source).cpu())
    return torch.cat(costs)
