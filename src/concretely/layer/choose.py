"""A choice of k of n items by their scores."""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..distribution import Subset, SubsetConcrete
from ..functional import subset, subset_concrete
from ..functional.arithmetic import cast, compute_dtype
from ..functional.noise import Source
from ..functional.squashing import straight_through
from ..spelling import require_one_of
from .base import Layer, Setting, require_count, require_number
from .rank import of_rows, sum_over_ranks


class Chosen(NamedTuple):
    """The scores of a training forward."""

    scores: Float[Tensor, "*batch n"]


class ChooseReport(NamedTuple):
    """Diagnostics of a `Choose`, from the latest training forward."""

    entropy: Tensor
    """The mean entropy of the subsets in nats."""
    certainty: Tensor
    """The mean probability of the k items with the largest scores."""


class Choose(Layer):
    r"""Exactly k of n items, chosen by scores, as a vector with an entry for each item.

    The subset has the law of `Subset(logits=scores, k=k)`. In training, the result is a relaxed draw, with entries in
    [0, 1] that sum to k ("relaxed"), or a draw of exactly k ones, with the gradient of the exact probabilities of items
    ("mean"), which is SIMPLE [ahmed2023simple]. In evaluation, it has ones for the k largest scores. The penalty is
    `kl` times the mean KL from the uniform law on subsets, $\log \binom{n}{k} - H$.

    Args:
        k: The number of items to choose.
        temperature: A number, or a schedule such as `Annealing`. Only the relaxed draw depends on it.
        gradient: "relaxed" or "mean".
        kl: The weight of the penalty.

    >>> choose = Choose(2, gradient="mean")
    >>> choose(torch.randn(5, 10)).sum(-1).tolist()
    [2.0, 2.0, 2.0, 2.0, 2.0]
    """

    def __init__(
        self, k: int, *, temperature: Setting = 0.5, gradient: Literal["relaxed", "mean"] = "relaxed", kl: float = 0.0
    ) -> None:
        super().__init__(temperature)
        self.k = require_count("k", k)
        require_one_of("gradient", gradient, "relaxed", "mean")
        self.gradient, self.kl = gradient, require_number("kl", kl)

    def forward(self, scores: Float[Tensor, "*batch n"], *, generator: Source | None = None) -> Tensor:
        """Choose items: a draw in training, those with the largest scores in evaluation."""
        logits, source = self._logits(scores), of_rows(generator, scores.shape[:-1])
        if self.training and self.gradient == "relaxed":
            noise = subset.noise(logits.shape, logits.dtype, device=logits.device, generator=source)
            value = subset_concrete.draw_few(logits, self.k, self.temperature, noise)
            if value is None:
                value = SubsetConcrete(logits=logits, k=self.k, temperature=self.temperature).push(noise)
            self._keep(Chosen(scores))
            return cast(value, scores.dtype)
        law = Subset(logits=logits, k=self.k)
        self._keep(Chosen(scores))
        if not self.training:
            return cast(law.mode, scores.dtype)
        return cast(straight_through(law.sample(generator=source), law.mean, lambda mean: mean), scores.dtype)

    @torch.no_grad()
    def sample(self, scores: Float[Tensor, "*batch n"], *, generator: Source | None = None) -> Tensor:
        """Draw exactly k items, without gradients."""
        return cast(self._law(scores).sample(generator=of_rows(generator, scores.shape[:-1])), scores.dtype)

    def _law(self, scores: Tensor) -> Subset:
        return Subset(logits=self._logits(scores), k=self.k)

    def _logits(self, scores: Tensor) -> Tensor:
        if not isinstance(scores, Tensor) or not scores.is_floating_point():
            got = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
            raise TypeError(f"scores must be a floating tensor, got {got}")
        if scores.dim() == 0 or scores.shape[-1] < self.k:
            raise ValueError(f"scores must have at least k = {self.k} items, got shape {tuple(scores.shape)}")
        return cast(scores, compute_dtype(scores.dtype))

    def penalty(self, scores: Float[Tensor, "*batch n"] | None = None) -> Float[Tensor, ""]:
        """Return the weighted KL for scores, by default those of the latest training forward."""
        if not self.kl:
            return self.step.new_zeros((), dtype=torch.float32)
        kept = self._kept(None if scores is None else Chosen(scores), Chosen)
        if kept is None:
            return self.step.new_zeros((), dtype=torch.float32)
        scores = kept.scores
        entropy = self._law(scores).entropy()
        sums = torch.stack([entropy.sum(), entropy.new_tensor(entropy.numel())])
        total, number = sum_over_ranks(sums).unbind()
        n = scores.shape[-1]
        most = math.lgamma(n + 1) - math.lgamma(self.k + 1) - math.lgamma(n - self.k + 1)
        return self.kl * (most - total / number.clamp(min=1))

    @property
    def _is_penalising(self) -> bool:
        return self.kl > 0

    def report(self) -> ChooseReport:
        """Return the entropy and the certainty. They are NaN before the first training forward."""
        if self._result is None:
            return ChooseReport(torch.tensor(math.nan), torch.tensor(math.nan))
        with torch.no_grad():
            law = self._law(self._result.scores.detach())
            return ChooseReport(law.entropy().mean(), law.mean.topk(self.k, -1).values.mean())

    def decide(self) -> None:
        """Return None: the layer has no parameters, and its choice depends on the scores."""

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"{self.k}, gradient={self.gradient!r}, kl={self.kl}"
