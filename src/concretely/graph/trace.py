"""The result of running a stochastic graph: a value, a distribution and a log probability for every node."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Distribution

__all__ = ["Trace"]


class Outcome:
    """The value and the distribution of one node, and whether it was observed."""

    def __init__(
        self,
        value: Tensor,
        distribution: Distribution,
        *,
        observed: bool,
        score: Callable[[], Tensor],
        summed: Callable[[int], Tensor] | None = None,
        node: Tensor | None = None,
    ) -> None:
        self.value = value
        self.distribution = distribution
        self.observed = observed
        self.node = node
        """The unbounded node of a relaxed value; other distributions use it to score the value exactly."""
        self._score: Callable[[], Tensor] | Tensor = score
        self.summed = summed
        """Returns the log probability summed over a given number of unit axes; None if that is not cheaper."""
        self._differentiates = torch.is_grad_enabled()

    @property
    def log_prob(self) -> Tensor:
        """Return the log probability of each unit; it is computed on first access."""
        if not isinstance(self._score, Tensor):
            with self.as_when_drawn():
                self._score = self._score()  # this frees the noise
        return self._score

    def as_when_drawn(self) -> AbstractContextManager[object]:
        """Restore the gradient mode that was active when the node was drawn."""
        same = torch.is_grad_enabled() == self._differentiates
        return nullcontext() if same else torch.set_grad_enabled(self._differentiates)

    def __repr__(self) -> str:
        what = "observed" if self.observed else "drawn"
        return f"Outcome({tuple(self.value.shape)} {what} from {self.distribution})"


@dataclass(frozen=True)
class Trace:
    """The outcomes of a run by node name, in program order, and the output of the program.

    The first axes of a value are the sample axis, if there is one, and the batch axes.
    """

    outcomes: Mapping[str, Outcome]
    output: Any
    samples: int | None
    """The length of the sample axis; None without one."""
    batch_shape: Size
    find_parents: Callable[[], dict[str, tuple[str, ...]]] = field(repr=False)
    _totals: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @cached_property
    def parents(self) -> dict[str, tuple[str, ...]]:
        """Return the parents of every node; the first access runs the program several times."""
        return self.find_parents()

    def __iter__(self) -> Iterator[str]:
        return iter(self.outcomes)

    def __contains__(self, name: object) -> bool:
        return name in self.outcomes

    def __getitem__(self, name: str) -> Outcome:
        return self.outcomes[name]

    @property
    def values(self) -> dict[str, Tensor]:
        """Return the value of every node."""
        return {name: outcome.value for name, outcome in self.outcomes.items()}

    @property
    def distributions(self) -> dict[str, Distribution]:
        """Return the distribution of every node."""
        return {name: outcome.distribution for name, outcome in self.outcomes.items()}

    @property
    def log_probs(self) -> dict[str, Tensor]:
        """Return the log probabilities of every node, one for each unit."""
        return {name: outcome.log_prob for name, outcome in self.outcomes.items()}

    @property
    def latent(self) -> list[str]:
        """Return the names of the nodes that were not observed."""
        return [name for name, outcome in self.outcomes.items() if not outcome.observed]

    @property
    def observed(self) -> list[str]:
        """Return the names of the observed nodes."""
        return [name for name, outcome in self.outcomes.items() if outcome.observed]

    @property
    def shape(self) -> Size:
        """Return the sample axis, if there is one, and the batch axes."""
        return self.batch_shape if self.samples is None else Size((self.samples, *self.batch_shape))

    def log_prob(self, name: str) -> Tensor:
        """Return the log probability of a node, summed over its units."""
        if name not in self._totals:
            with self.outcomes[name].as_when_drawn():
                self._totals[name] = self._total_log_prob(name)
        return self._totals[name]

    def total(self, name: str, quantity: Tensor) -> Tensor:
        """Sum a quantity over the units of a node, for every sample and data point."""
        axes = self._unit_axes(name)
        return self._spread(quantity.sum(tuple(range(-axes, 0))) if axes else quantity)

    def _total_log_prob(self, name: str) -> Tensor:
        outcome = self.outcomes[name]
        if outcome.summed is not None:
            return self._spread(outcome.summed(self._unit_axes(name)))
        return self.total(name, outcome.log_prob)

    def _unit_axes(self, name: str) -> int:
        """Return the number of unit axes of a node."""
        outcome = self.outcomes[name]
        shape = self.batch_shape if outcome.observed else self.shape  # observed values have no sample axis
        return outcome.value.dim() - len(outcome.distribution.event_shape) - len(shape)

    def _spread(self, quantity: Tensor) -> Tensor:
        return quantity if quantity.shape == self.shape else quantity.broadcast_to(self.shape)
