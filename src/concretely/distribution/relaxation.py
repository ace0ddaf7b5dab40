"""Relaxations: a node squashed into the bounded set that spans the states of a discrete variable."""

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

    `log_prob` is a function of the value alone, finite in the closed support. A float on the edge stands for all
    numbers that round to it, and is scored by the average density over them. At cold temperatures many draws lie on the
    edge; `rsample_and_log_prob` gives their exact log densities, as do traces of graphs, `monte_carlo_kl` and
    `kl_divergence`.
    """

    arg_constraints = Node.arg_constraints
    has_rsample = True
    _is_invertible = True
    """Whether log densities are those of values; else they are those of nodes, which values need not determine."""

    def __init__(self, node: Node, squashing: Squashing, *, logits: Tensor, event_shape: Size) -> None:
        self._node, self._squashing = node, squashing
        self._temperature = node._temperature
        super().__init__(logits, node.batch_shape, event_shape, validate=bool(node._validate_args))

    @property
    def node(self) -> Node:
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

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw values that carry the pathwise gradient."""
        return self.push(self.noise(sample_shape, generator=generator))

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw values and their log densities from the same noise: the form to train with."""
        drawn = self.node.drawn(sample_shape, generator=generator)
        value = self._value(drawn.value)
        slope = self._squashing.log_abs_det_jacobian(drawn.value) if self._is_invertible else 0
        return value, cast(drawn.score() - slope, self.logits.dtype)

    def drawn(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None, axes: int = 0) -> Drawn:
        """Draw values with their nodes, and say how to compute the log densities of the nodes.

        They are best asked for summed over so many of the last batch axes.
        """
        drawn = self.node.drawn(sample_shape, generator=generator, squashing=self._squashing, axes=axes)
        assert drawn.node is not None
        return self._rounded_draw(drawn, self._rounded(drawn.value), self.node._rounded(drawn.node))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of a value: a function of the value alone."""
        score = self._score(value)
        slope = score.log_abs_det_jacobian if self._is_invertible else 0
        return cast(score.log_density - slope, self.logits.dtype)

    def node_log_prob(self, value: Tensor, axes: int = 0, *, node: Tensor | None = None) -> Tensor:
        """The log density of the node behind a value, which stands for the log mass of the state it relaxes.

        It is summed over so many of the last batch axes. Without the node of a draw it is that which the value
        determines.
        """
        if node is not None:
            return self.node.summed_log_prob(node, axes)
        return sum_axes(cast(self._score(value).log_density, self.logits.dtype), axes)

    def _score(self, value: Tensor) -> Score:
        node = self.node
        return self._squashing.score(self._checked(value), node.law, *node._parameters, dtype=self.logits.dtype)

    def _value(self, node: Tensor) -> Tensor:
        """The value of a node."""
        return self._rounded(self._squashing(node, self.logits.dtype))

    @abstractmethod
    def discretize(self) -> DiscreteVariable:
        """The discrete variable that this one relaxes."""


def cdf_on_unit_interval(variable: Relaxation, value: Tensor) -> Tensor:
    """The probability of a smaller value of a variable on the unit interval."""
    return variable.node.cdf(torch.logit(to_float64(variable._checked(value))))


def icdf_on_unit_interval(variable: Relaxation, value: Tensor) -> Tensor:
    """The value below which a variable on the unit interval falls with a given probability."""
    return variable._value(to_float64(variable.node.icdf(value)))
