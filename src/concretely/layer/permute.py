"""Permutations by scores."""

import math
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..distribution import Permutation
from ..distribution.check import as_temperature
from ..distribution.permutation import over_matrix
from ..functional.arithmetic import Temperature, bool_or_none, cast, compute_dtype, to_float64
from ..functional.noise import Source
from ..functional.sinkhorn import STEPS, log_sinkhorn
from ..functional.squashing import straight_through
from ..spelling import require_one_of
from .base import Layer, Setting, require_count, require_number
from .gumbel import broadcasts, require_floating
from .rank import of_rows


class Permuted(NamedTuple):
    """The scores of a training forward."""

    scores: Float[Tensor, "*batch n n"]


class PermuteReport(NamedTuple):
    """Diagnostics of a `Permute`, from the latest training forward."""

    certainty: Tensor
    """The mean over rows of the largest entry of the relaxed matrix without noise, which is 1 for a permutation."""
    entropy: Tensor
    """The mean entropy of its rows in nats."""


class Permute(Layer):
    """A permutation matrix of n items, by scores of items (rows) for places (columns).

    In training, the result is a draw of Gumbel-Sinkhorn [mena2018learning], a matrix whose rows and columns sum to 1
    ("relaxed"), or the permutation of the same noise with the gradient of that matrix ("straight-through"). In
    evaluation, it is the best matching of the scores, which needs scipy. `matrix.mT @ items` are the items in order.
    There is no penalty.

    Args:
        n: The number of items.
        temperature: A number, or a schedule such as `Annealing`.
        gradient: "relaxed" or "straight-through".

    >>> permute = Permute(3, temperature=0.1)
    >>> permute(torch.randn(5, 3, 3)).sum(-1).round(decimals=4)[0]
    tensor([1., 1., 1.])
    """

    def __init__(
        self,
        n: int,
        *,
        temperature: Setting = 1.0,
        gradient: Literal["relaxed", "straight-through"] = "relaxed",
    ) -> None:
        super().__init__(temperature)
        self.n = require_count("n", n)
        require_one_of("gradient", gradient, "relaxed", "straight-through")
        self.gradient = gradient

    def forward(self, scores: Float[Tensor, "*batch n n"], *, generator: Source | None = None) -> Tensor:
        """Permute by scores: a draw in training, the best matching in evaluation."""
        law = self._law(scores)
        self._keep(Permuted(scores))
        if not self.training:
            return cast(law.mode, scores.dtype)
        noise = law.noise(generator=of_rows(generator, scores.shape[:-2]))
        soft = law.relax(self.temperature).push(noise)
        if self.gradient == "relaxed":
            return cast(soft, scores.dtype)
        return cast(straight_through(law.push(noise), soft, lambda soft: soft), scores.dtype)

    @torch.no_grad()
    def sample(self, scores: Float[Tensor, "*batch n n"], *, generator: Source | None = None) -> Tensor:
        """Draw permutations, without gradients."""
        return cast(self._law(scores).sample(generator=of_rows(generator, scores.shape[:-2])), scores.dtype)

    def _law(self, scores: Any) -> Permutation:
        if not isinstance(scores, Tensor) or not scores.is_floating_point():
            got = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
            raise TypeError(f"scores must be a floating tensor, got {got}")
        if scores.dim() < 2 or scores.shape[-2:] != (self.n, self.n):
            raise ValueError(f"scores must end in shape {(self.n, self.n)}, got shape {tuple(scores.shape)}")
        return Permutation(logits=cast(scores, compute_dtype(scores.dtype)))

    def penalty(self) -> Float[Tensor, ""]:
        """Return 0."""
        return self.step.new_zeros((), dtype=torch.float32)

    @property
    def _is_penalising(self) -> bool:
        return False

    def report(self) -> PermuteReport:
        """Return the certainty and the entropy. They are NaN before the first training forward."""
        if self._result is None:
            return PermuteReport(torch.tensor(torch.nan), torch.tensor(torch.nan))
        with torch.no_grad():
            share = sinkhorn(self._result.scores, temperature=self.temperature)
            return PermuteReport(share.amax(-1).mean(), torch.special.entr(share).sum(-1).mean())

    def decide(self) -> None:
        """Return None: the layer has no parameters, and its permutations depend on the scores."""

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"{self.n}, gradient={self.gradient!r}"


def sinkhorn(
    scores: Float[Tensor, "*batch n n"],
    *,
    temperature: Temperature = 1.0,
    tolerance: float = 1e-10,
    steps: int = STEPS,
) -> Float[Tensor, "*batch n n"]:
    """Return exp(scores / temperature), with rows and columns scaled so that all sum to 1 within a tolerance.

    It iterates in log space until the tolerance is reached, and raises an error if that takes more than `steps` steps.
    The gradient is that of the exact solution [mena2018learning]. It draws no noise; `Permute` does. The temperature is
    a number, or a tensor with one for each matrix.

    >>> sinkhorn(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), temperature=0.1)
    tensor([[0.9933, 0.0067],
            [0.0067, 0.9933]])
    """
    require_floating(scores, "scores")
    if scores.dim() < 2 or scores.shape[-1] != scores.shape[-2]:
        raise ValueError(f"scores must have two last axes of the same length, got shape {tuple(scores.shape)}")
    if not scores.is_cuda and bool_or_none((scores < math.inf).all()) is False:
        raise ValueError("scores must be numbers below infinity, got inf or nan")
    if not scores.is_cuda and bool_or_none((scores > -math.inf).all()) is False:
        raise ValueError("scores must be finite, got -inf: use a large negative number for what must not be matched")
    temperature = _of_matrices(as_temperature(temperature, dtype=scores.dtype, validate=not scores.is_cuda), scores)
    tolerance, steps = require_number("tolerance", tolerance), require_count("steps", steps)
    log_plan = log_sinkhorn(to_float64(scores) / temperature, tolerance=tolerance, steps=steps)
    return cast(log_plan.exp(), scores.dtype)


def _of_matrices(temperature: Temperature, scores: Tensor) -> Temperature:
    """Return a temperature with the axes of matrices; raise unless it is positive, and one number for each matrix."""
    is_zero = temperature == 0
    if not is_zero.is_cuda and bool_or_none(is_zero.any()) if isinstance(is_zero, Tensor) else is_zero:
        raise ValueError("temperature must be positive, got 0: use Permute in evaluation mode for the limit")
    if not isinstance(temperature, Tensor) or not temperature.dim():
        return temperature
    own, batch = temperature.shape, scores.shape[:-2]
    if len(own) == scores.dim() and own[-2:] == (1, 1):
        temperature = temperature[..., 0, 0]
    if not broadcasts(temperature.shape, batch):
        raise ValueError(f"temperature must have one number for each matrix, {tuple(batch)}, got shape {tuple(own)}")
    return over_matrix(temperature)
