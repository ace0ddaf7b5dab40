"""Discrete variables, and what relaxes them: a node squashed into the bounded set that spans the states of a mass."""

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Size, Tensor

from ..noise import Source
from . import check
from .cast import cast, wide
from .fused import Draw, summed
from .memory import recall, remember
from .node import Tempered
from .temperature import Temperature
from .variable import Continuous, Drawn, Variable


class Mass(Variable):
    """A discrete random variable."""

    has_enumerate_support = True

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Refuse: the derivative of a discrete draw is zero wherever it exists."""
        name = type(self).__name__
        raise NotImplementedError(f"{name} has no pathwise gradient: draw from {name}(...).relax(temperature) instead")

    def sample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw values and their log masses."""
        value, score, _ = self.drawn(sample_shape, generator=generator)
        return value, score()

    def drawn(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None, axes: int = 0) -> Drawn:
        """Draw values, and say how to work out their log masses, best summed over so many last axes of the batch."""
        fused = self._fused(sample_shape, generator, axes)
        if fused is not None:
            value = cast(fused.tensors[0], self.logits.dtype)
            value = value.reshape(*sample_shape, *self.batch_shape, *self.event_shape)
            return self._drawn_with(value, fused.score)
        value = self.sample(sample_shape, generator=generator)
        return Drawn(value, lambda: self._scored(value, 0))

    def summed_log_prob(self, value: Tensor, axes: int) -> Tensor:
        """The log mass of a value, summed over the last axes of the batch."""
        return self._scored(self._checked(value), axes)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log mass of a value."""
        return self._scored(self._checked(value), 0)

    def _fused(self, sample_shape: Sequence[int], generator: Source | None, axes: int) -> Draw | None:
        """Values and their log masses from a kernel, if there is one."""
        return None

    def _scored(self, value: Tensor, axes: int) -> Tensor:
        """The log mass of a value in the support, summed over the last axes of the batch."""
        fused = self._fused_score(value, axes)
        if fused is not None:
            return cast(fused, self.logits.dtype)
        return summed(cast(self._log_mass(value), self.logits.dtype), axes)

    def interpolated_log_prob(self, value: Tensor) -> Tensor:
        """The log masses of the states, weighed as a relaxed value weighs the states; at a state, its log mass.

        It has a derivative in the value. Put in place of a density it leaves an objective that bounds nothing.
        """
        return cast(self._interpolated_log_mass(self._shaped("value", value)), self.logits.dtype)

    @abstractmethod
    def relax(self, temperature: Temperature) -> "Relaxation":
        """The relaxation with the same logits."""

    def control(self, temperature: Temperature) -> "Relaxation":
        """The relaxation with the same logits by Gaussian noise, where there is one."""
        raise NotImplementedError(f"{type(self).__name__} has no relaxation by normal noise")

    @abstractmethod
    def _log_mass(self, value: Tensor) -> Tensor:
        """The log mass of a value in the support."""

    @abstractmethod
    def _interpolated_log_mass(self, value: Tensor) -> Tensor:
        """The log masses of the states, weighed as a value weighs the states."""


class Relaxation(Continuous):
    """A node squashed into the bounded set that spans the states of a mass.

    A drawn value remembers its node and is scored there.
    """

    arg_constraints = Tempered.arg_constraints
    _squashed_by: str
    """What kernels call the way of squashing."""

    def __init__(self, node: Tempered, *, logits: Tensor, event_shape: Size) -> None:
        self._node = node
        self._temperature = node._temperature
        super().__init__(logits, node.batch_shape, event_shape, validate=node._validate_args)

    @property
    def node(self) -> Tempered:
        """The unbounded variable before it is squashed."""
        return self._node if self._node.batch_shape == self.batch_shape else self._node.expand(self.batch_shape)

    @property
    def temperature(self) -> Tensor:
        """The temperature λ."""
        return self.node.temperature

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the noise behind so many samples."""
        return self.node.noise(sample_shape, generator=generator)

    def push(self, noise: Tensor) -> Tensor:
        """The value that noise becomes: all of sampling but the randomness."""
        return self._value(self.node._push(self.node._shaped("noise", noise)))

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw values and their log densities from the same noise: the form to train with."""
        self._require_density()
        noise = self.noise(sample_shape, generator=generator)
        node = self.node._push(noise)
        log_density = self.node._log_density_of_noise(noise) - self._log_slope(node)
        return self._value(node), cast(log_density, self.logits.dtype)

    def drawn(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None, axes: int = 0) -> Drawn:
        """Draw values, and say how to work out, once, the log densities of their nodes.

        They are best asked for summed over so many of the last axes of the batch.
        """
        self._require_density()
        fused = self.node._fused(sample_shape, generator, self._squashed_by, axes)
        if fused is not None:
            node, value = fused.tensors
            value = self._rounded(value.reshape(*sample_shape, *self.batch_shape, *self.event_shape))
            value = remember(value, self.node._rounded(node), support=self.support)
            return self._drawn_with(value, fused.score)
        noise = self.noise(sample_shape, generator=generator)
        return Drawn(self.push(noise), lambda: self.node.log_prob_of_noise_(noise))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of a value, at the node it remembers or, failing that, at the node it determines."""
        node = wide(self._node_of(self._checked(value)))
        return cast(self.node._log_density(node) - self._log_slope(node), self.logits.dtype)

    def node_log_prob(self, value: Tensor, axes: int = 0) -> Tensor:
        """The log density, at its node, of a value: what stands for the log mass of the state it relaxes.

        It is summed over so many of the last axes of the batch.
        """
        return self.node._scored(self._node_of(self._checked(value)), axes)

    def _value(self, node: Tensor) -> Tensor:
        """The value of a node, which it remembers."""
        return remember(self._rounded(self._squash(node)), self.node._rounded(node), support=self.support)

    def _node_of(self, value: Tensor) -> Tensor:
        """The node that a value remembers or, failing that, determines; NaN if it does neither and none can be told."""
        node = recall(value, support=self.support)
        if node is None:
            determined = self._determined(value)
            if self._validate_args:
                check.determined(value, determined, owner=type(self).__name__)
            return torch.where(determined, self._unsquash(wide(value)), math.nan)
        if value.requires_grad and not node.requires_grad:  # the gradient was asked for after the draw
            inverse = self._unsquash(wide(value))
            return wide(node) + (inverse - inverse.detach())
        return node

    @abstractmethod
    def discretize(self) -> Mass:
        """The mass that this variable relaxes."""

    @abstractmethod
    def _squash(self, node: Tensor) -> Tensor:
        """The value of a node, as far inside the edge as the dtype of the logits can tell."""

    @abstractmethod
    def _unsquash(self, value: Tensor) -> Tensor:
        """The node that a value determines."""

    @abstractmethod
    def _log_slope(self, node: Tensor) -> Tensor:
        """The logarithm of the volume that squashing makes of a unit volume around a node."""

    @abstractmethod
    def _determined(self, value: Tensor) -> Tensor:
        """Whether a value lies far enough inside the edge to determine its node, also before it was widened."""
