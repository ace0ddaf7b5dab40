"""What a run of a stochastic graph leaves behind: a value, a distribution and a log probability for every node."""

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
    """What happened at a node: its value, its distribution as the program gave it, and whether it was observed."""

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
        """The unbounded node of a relaxed value, by which another distribution scores it exactly."""
        self._score: Callable[[], Tensor] | Tensor = score
        self.summed = summed
        """The log probability summed over so many axes of units, where that is less work than to sum it."""
        self._differentiates = torch.is_grad_enabled()

    @property
    def log_prob(self) -> Tensor:
        """The log probability of the value, one number for each unit, worked out when it is first asked for."""
        if not isinstance(self._score, Tensor):
            with self.as_when_drawn():
                self._score = self._score()  # what it was worked out from, such as noise, is let go of
        return self._score

    def as_when_drawn(self) -> AbstractContextManager[object]:
        """Gradients are recorded if they were when the node was drawn, whoever asks."""
        same = torch.is_grad_enabled() == self._differentiates
        return nullcontext() if same else torch.set_grad_enabled(self._differentiates)

    def __repr__(self) -> str:
        what = "observed" if self.observed else "drawn"
        return f"Outcome({tuple(self.value.shape)} {what} from {self.distribution})"


@dataclass(frozen=True)
class Trace:
    """The outcomes of a run by the name of their node, in the order of the program, and what the program returned.

    Values begin with the sample axis, if there is one, and the axes of the batch.
    """

    outcomes: Mapping[str, Outcome]
    output: Any
    samples: int | None
    """The length of the sample axis, or None if there is none."""
    batch_shape: Size
    find_parents: Callable[[], dict[str, tuple[str, ...]]] = field(repr=False)
    _totals: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @cached_property
    def parents(self) -> dict[str, tuple[str, ...]]:
        """For every node, the nodes that its distribution depends on; asked for, the program runs once more."""
        return self.find_parents()

    def __iter__(self) -> Iterator[str]:
        return iter(self.outcomes)

    def __contains__(self, name: object) -> bool:
        return name in self.outcomes

    def __getitem__(self, name: str) -> Outcome:
        return self.outcomes[name]

    @property
    def values(self) -> dict[str, Tensor]:
        """The value of every node."""
        return {name: outcome.value for name, outcome in self.outcomes.items()}

    @property
    def distributions(self) -> dict[str, Distribution]:
        """The distribution of every node, as the program gave it."""
        return {name: outcome.distribution for name, outcome in self.outcomes.items()}

    @property
    def log_probs(self) -> dict[str, Tensor]:
        """The log probability of every node, one number for each of its units."""
        return {name: outcome.log_prob for name, outcome in self.outcomes.items()}

    @property
    def latent(self) -> list[str]:
        """The names of the nodes that were not observed."""
        return [name for name, outcome in self.outcomes.items() if not outcome.observed]

    @property
    def observed(self) -> list[str]:
        """The names of the nodes that were observed."""
        return [name for name, outcome in self.outcomes.items() if outcome.observed]

    @property
    def shape(self) -> Size:
        """The shape of what belongs to one sample of one data point: the sample axis and the axes of the batch."""
        return self.batch_shape if self.samples is None else Size((self.samples, *self.batch_shape))

    def log_prob(self, name: str) -> Tensor:
        """The log probability of a node, summed over its units."""
        if name not in self._totals:
            with self.outcomes[name].as_when_drawn():
                self._totals[name] = self._total_log_prob(name)
        return self._totals[name]

    def total(self, name: str, quantity: Tensor) -> Tensor:
        """A quantity of the units of a node, summed over them, for every sample and data point."""
        axes = self._unit_axes(name)
        return self._spread(quantity.sum(tuple(range(-axes, 0))) if axes else quantity)

    def _total_log_prob(self, name: str) -> Tensor:
        outcome = self.outcomes[name]
        if outcome.summed is not None:
            return self._spread(outcome.summed(self._unit_axes(name)))
        return self.total(name, outcome.log_prob)

    def _unit_axes(self, name: str) -> int:
        """How many axes of a node count its units."""
        outcome = self.outcomes[name]
        shape = self.batch_shape if outcome.observed else self.shape  # what is observed has no sample axis
        return outcome.value.dim() - len(outcome.distribution.event_shape) - len(shape)

    def _spread(self, quantity: Tensor) -> Tensor:
        return quantity if quantity.shape == self.shape else quantity.broadcast_to(self.shape)
