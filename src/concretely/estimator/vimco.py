"""VIMCO: the score-function estimator of the multi-sample bound."""

from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from ..kernel import vimco as kernel
from ..mode import Discrete
from ..model.base import Model
from ..noise import Source
from ..objective import Objective, bound, weigh
from ..program import Program
from .base import Estimate, bounded
from .surrogate import surrogate

Mean = Literal["geometric", "arithmetic"]


@dataclass(frozen=True)
class VIMCO:
    r"""The score-function estimator that gives each sample credit for what it adds to the multi-sample bound.

    $$\hat L - \hat L_{-i}, \quad \hat L_{-i} \text{ with } w_i \text{ replaced by a mean of the others}$$

    Approximates: the gradient of the multi-sample bound.
    With: m draws of the discrete graph.
    Requires: at least 2 samples, and log-weights.
    Bias: none. See [mnih2016variational].
    """

    mean: Mean = "geometric"

    def __post_init__(self) -> None:
        if self.mean not in ("geometric", "arithmetic"):
            raise ValueError(f"mean must be 'geometric' or 'arithmetic', got {self.mean!r}")

    def __call__(
        self, target: Model | Program, *inputs: Any, samples: int, objective: Objective, generator: Source | None
    ) -> Estimate:
        """Estimate the multi-sample bound."""
        if samples < 2:
            raise ValueError(f"samples must be at least 2 for VIMCO, got {samples}: use NVIL or Score for a single one")
        if objective is not bound:
            raise ValueError("objective must be `bound` for VIMCO: of a program, its cost is minus a log-weight")
        weighing = weigh(target, *inputs, mode=Discrete(), samples=samples, generator=generator)
        return surrogate(weighing, bound, lambda log_w: vimco(log_w, self.mean), bounds=bounded(target, bound))


def vimco(log_w: Float[Tensor, "m *batch"], mean: Mean = "geometric") -> Float[Tensor, "m *batch"]:
    """What each sample adds to the bound, without a gradient.

    >>> import torch
    >>> vimco(torch.zeros(3))
    tensor([0., 0., 0.])
    """
    found: Tensor = kernel.vimco(log_w.detach().reshape(1, len(log_w), -1), mean == "geometric")
    return found.view(log_w.shape)
