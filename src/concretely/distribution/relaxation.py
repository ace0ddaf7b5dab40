"""Relaxations of discrete variables: a node squashed into a bounded set."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Size, Tensor
from torch.distributions import Distribution

from ..functional.cast import cast, to_float64
from ..functional.draw import Drawn, sum_axes
from ..functional.squash import Score, Squashing
from ..noise import Source
from .discrete import DiscreteVariable
from .node import Node
from .variable import Variable


class Relaxation(Variable, Distribution):
    """A node and the squashing that bounds it.

    `log_prob` depends on the value alone and is finite on the closed support. On the edge it averages the density over
    all numbers that round to the value. At low temperatures many draws lie on the edge; `rsample_and_log_prob`, traces
    of graphs, `monte_carlo_kl` and `kl_divergence` use their exact log densities.
    """

    arg_constraints = Node.arg_constraints
    has_rsample = True
    _is_invertible = True
    """Whether `log_prob` is the density of the value; otherwise it is that of the node."""

    def __init__(self, node: Node, squashing: Squashing, *, logits: Tensor, event_shape: Size) -> None:
        self._node, self._squashing = node, squashing
        self._temperature = node._temperature
        super().__init__(logits, node.batch_shape, event_shape, validate=bool(node._validate_args))

    @property
    def node(self) -> Node:
        """The unbounded variable before squashing."""
        return self._node if self._node.batch_shape == self.batch_shape else self._node.expand(self.batch_shape)

    @property
    def temperature(self) -> Tensor:
        """The temperature λ."""
        return self.node.temperature

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the noise of samples."""
        return self.node.noise(sample_shape, generator=generator)

    def push(self, noise: Tensor) -> Tensor:
        """Return the value made from noise: the deterministic part of sampling."""
        return self._value(self.node._push(self.node._shaped("noise", noise)))

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw values with a pathwise gradient."""
        return self.push(self.noise(sample_shape, generator=generator))

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw values and their exact log densities; use this in training."""
        drawn = self.node.drawn(sample_shape, generator=generator)
        value = self._value(drawn.value)
        slope = self._squashing.log_abs_det_jacobian(drawn.value) if self._is_invertible else 0
        return value, cast(drawn.score() - slope, self.logits.dtype)

    def drawn(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None, axes: int = 0) -> Drawn:
        """Draw values with their nodes and the functions that score the nodes.

        `axes` is the number of last batch axes that the caller will sum over, a hint for fusion.
        """
        drawn = self.node.drawn(sample_shape, generator=generator, squashing=self._squashing, axes=axes)
        assert drawn.node is not None
        return self._rounded_draw(drawn, self._rounded(drawn.value), self.node._rounded(drawn.node))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of a value."""
        score = self._score(value)
        slope = score.log_abs_det_jacobian if self._is_invertible else 0
        return cast(score.log_density - slope, self.logits.dtype)

    def node_log_prob(self, value: Tensor, axes: int = 0, *, node: Tensor | None = None) -> Tensor:
        """Return the log density of the node behind a value, summed over the last `axes` batch axes.

        Without `node`, the node is computed from the value.
        """
        if node is not None:
            return self.node.summed_log_prob(node, axes)
        return sum_axes(cast(self._score(value).log_density, self.logits.dtype), axes)

    def _score(self, value: Tensor) -> Score:
        node = self.node
        return self._squashing.score(self._checked(value), node.law, *node._parameters, dtype=self.logits.dtype)

    def _value(self, node: Tensor) -> Tensor:
        return self._rounded(self._squashing(node, self.logits.dtype))

    @abstractmethod
    def discretize(self) -> DiscreteVariable:
        """Return the discrete variable that this one relaxes."""


def cdf_on_unit_interval(variable: Relaxation, value: Tensor) -> Tensor:
    """Return the CDF of a variable on the unit interval."""
    return variable.node.cdf(torch.logit(to_float64(variable._checked(value))))


def icdf_on_unit_interval(variable: Relaxation, value: Tensor) -> Tensor:
    """Return the inverse CDF of a variable on the unit interval."""
    return variable._value(to_float64(variable.node.icdf(value)))
