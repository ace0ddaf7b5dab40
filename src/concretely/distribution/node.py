"""Nodes: continuous and unbounded, they know the log density of their own draws from the noise alone."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from ..noise import Source
from . import check
from .cast import WIDE, cast, wide
from .fused import Draw, summed
from .temperature import Temperature
from .variable import Continuous, expanded


class Node(Continuous):
    """A continuous random variable on an unbounded set: the one whose density is scored.

    The logits cancel in the log density of an own draw. It is exact at any size of the logits, and its total
    derivative in them, along the value and directly, is zero.
    """

    def push(self, noise: Tensor) -> Tensor:
        """The value that noise becomes: all of sampling but the randomness."""
        return self._rounded(self._push(self._shaped("noise", noise)))

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw values and their log densities from the same noise: the form to train with."""
        self._require_density()
        fused = self._fused(sample_shape, generator, "none", 0)
        if fused is not None:
            return self._rounded(fused.tensors[0]), cast(fused.score(0), self.logits.dtype)
        noise = self.noise(sample_shape, generator=generator)
        value = self._rounded(self._push(noise))
        return value, self.log_prob_of_noise_(noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of a value."""
        return self._scored(self._checked(value), 0)

    def log_prob_of_noise_(self, noise: Tensor) -> Tensor:
        """The log density of the value that noise becomes; the noise is used up."""
        self._require_density()
        return cast(self._log_density_of_noise(noise), self.logits.dtype)

    def _fused(self, sample_shape: Sequence[int], generator: Source | None, squash: Any, axes: int) -> Draw | None:
        """Nodes, what they are squashed to and their log densities from a kernel, if there is one."""
        return None

    def _scored(self, value: Tensor, axes: int) -> Tensor:
        """The log density of a value in the support, summed over the last axes of the batch."""
        fused = self._fused_score(value, axes)
        if fused is not None:
            return cast(fused, self.logits.dtype)
        return summed(cast(self._log_density(value), self.logits.dtype), axes)

    @abstractmethod
    def _push(self, noise: Tensor) -> Tensor:
        """The value that noise becomes."""

    @abstractmethod
    def _log_density(self, value: Tensor) -> Tensor:
        """The log density of a value in the support."""

    @abstractmethod
    def _log_density_of_noise(self, noise: Tensor) -> Tensor:
        """The log density of the value that noise becomes; the noise is used up."""


class Tempered(Node):
    """A node with a temperature.

    The temperature broadcasts against the shape of the logits less their category axis; the result is `batch_shape`.
    """

    arg_constraints = {"logits": constraints.real, "temperature": constraints.nonnegative}  # noqa: RUF012
    _temperature: Temperature
    category_axes: int
    """One if the last axis of the logits runs over categories, zero if a logit is a log-odds."""

    def __init__(self, logits: Tensor | float, temperature: Temperature, *, validate_args: bool | None = None) -> None:
        validate = check.validates(validate_args)
        logits = check.as_logits(logits, infinite="never", validate=validate)
        self._temperature = check.as_temperature(temperature, validate=validate)
        batch_shape, event_shape = check.split(logits, self.category_axes)
        batch_shape = check.broadcast(batch_shape, temperature)
        super().__init__(expanded(logits, batch_shape + event_shape), batch_shape, event_shape, validate=validate)

    @property
    def temperature(self) -> Tensor:
        """The temperature λ."""
        if isinstance(self._temperature, Tensor):
            return self._temperature
        return torch.full((), self._temperature, dtype=torch.float64, device=self.logits.device)

    @property
    def _batch_temperature(self) -> Temperature:
        """The temperature in a shape that meets the batch."""
        return wide(self._temperature) if isinstance(self._temperature, Tensor) else self._temperature

    @property
    def _value_temperature(self) -> Temperature:
        """The temperature in a shape that meets values."""
        temperature = self._batch_temperature
        return temperature.unsqueeze(-1) if self.category_axes and isinstance(temperature, Tensor) else temperature

    def _filled(self, constant: Temperature) -> Tensor:
        """A quantity of the density that the logits do not change, for every member of the batch."""
        self._require_density()
        filled = torch.as_tensor(constant, dtype=WIDE, device=self.logits.device)
        return cast(filled.expand(self.batch_shape), self.logits.dtype)
