"""A selector of features."""

from contextlib import nullcontext
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..distribution import Subset
from ..functional.arithmetic import cast, compute_dtype
from ..functional.noise import Source
from ..functional.torch_draw import shared_draws
from ..spelling import require_one_of
from .base import Layer, Setting, require_count, require_last, require_number
from .rank import of_rows, whole


class SelectorReport(NamedTuple):
    """Diagnostics of a `Selector`."""

    probabilities: Tensor
    """The probability of every feature to be selected."""
    entropy: Tensor
    """The entropy of the selection in nats."""
    certainty: Tensor
    """The mean probability of the k most probable features, which is 1 if the selection is certain."""


class Selector(Layer):
    """A learned selection of exactly k of n features, all different.

    In training, features are multiplied by a relaxed draw of `Subset`, whose entries lie in [0, 1] and sum to k. In
    evaluation, they are multiplied by 1 for the k most probable features and by 0 for all others. The outputs have the
    shape of the inputs; `decide` returns the k features. The penalty is `weight` times the entropy.

    Args:
        features: The length of the last axis of the inputs.
        k: The number of features to select.
        temperature: A number, or a schedule such as `Annealing(10.0, 0.1, steps=1000)`.
        each: Whether a selection is drawn for each data point ("point") or for the whole batch ("batch").
        weight: The weight of the penalty.

    >>> selector = Selector(64, 10, temperature=0.5)
    >>> round(selector(torch.ones(64)).sum().item(), 3), len(selector.decide())
    (10.0, 10)
    """

    def __init__(
        self,
        features: int,
        k: int,
        *,
        temperature: Setting = 0.5,
        each: Literal["point", "batch"] = "point",
        weight: float = 0.0,
    ) -> None:
        super().__init__(temperature)
        self.features = require_count("features", features)
        self.k = require_count("k", k, most=features, of=", the number of features")
        require_one_of("each", each, "point", "batch")
        self.each, self.weight = each, require_number("weight", weight)
        self.logits = nn.Parameter(torch.zeros(features))

    def forward(self, x: Float[Tensor, "*batch n"], *, generator: Source | None = None) -> Float[Tensor, "*batch n"]:
        """Multiply features by a relaxed selection in training, else by the most probable one."""
        require_last("x", x, self.features)
        self._keeps()
        law = self._law()
        if not self.training:
            return x * cast(law.mode, x.dtype)
        shape = self._drawn_shape(x)
        with shared_draws() if self.each == "batch" else nullcontext():
            drawn = law.relax(self.temperature).rsample(shape, generator=of_rows(generator, shape))
        return x * cast(drawn, x.dtype)

    @torch.no_grad()
    def sample(self, x: Float[Tensor, "*batch n"], *, generator: Source | None = None) -> Float[Tensor, "*batch n"]:
        """Multiply features by a drawn selection, without gradients."""
        require_last("x", x, self.features)
        shape = self._drawn_shape(x)
        with shared_draws() if self.each == "batch" else nullcontext():
            return x * cast(self._law().sample(shape, generator=of_rows(generator, shape)), x.dtype)

    def _drawn_shape(self, x: Tensor) -> tuple[int, ...]:
        return tuple(x.shape[:-1]) if self.each == "point" else ()

    def _law(self) -> Subset:
        logits = whole(self.logits)
        return Subset(logits=cast(logits, compute_dtype(logits.dtype)), k=self.k, validate_args=False)

    def penalty(self) -> Float[Tensor, ""]:
        """Return the weighted entropy of the selection."""
        self._is_penalised = True
        return self.weight * self._law().entropy() if self.weight else self.logits.new_zeros(())

    @property
    def _is_penalising(self) -> bool:
        return self.weight > 0

    def report(self) -> SelectorReport:
        """Return the probabilities and the entropy."""
        with torch.no_grad():
            law = self._law()
            probabilities = law.mean
            return SelectorReport(probabilities, law.entropy(), probabilities.topk(self.k).values.mean())

    def decide(self) -> list[int]:
        """Return the k most probable features in ascending order."""
        return self._law().mode.nonzero().flatten().tolist()

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"{self.features}, {self.k}, each={self.each!r}, weight={self.weight}"
