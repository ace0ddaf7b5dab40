"""Modes: what a draw of a stochastic graph means.

A program asks for `draw(name, distribution)` and never knows which mode answers. Every mode has two methods: `draw`
gives a value and the way to score it, `score` gives the log probability of a value that is already there. Nodes that
are no masses of this library, a normal one, say, are drawn with their pathwise gradient in all modes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Literal, NamedTuple

import torch
from torch import Size, Tensor
from torch.distributions import Distribution

from .distribution.discrete import DiscreteVariable
from .distribution.node import Node
from .distribution.relaxation import Relaxation
from .functional.draw import Drawn, sum_axes
from .functional.peek import bool_or_none, is_hidden
from .functional.temperature import Temperature
from .noise import Source
from .spelling import did_you_mean
from .trace import Trace

__all__ = ["Discrete", "Enumerate", "Mode", "Relaxed", "Replay", "StraightThrough"]

STATES = 2**20
"""The most states that are enumerated."""

Temperatures = Temperature | Mapping[str, Temperature]
"""One temperature for all nodes, or one for each by its name."""

Noise = Literal["gumbel", "normal"]
"""What makes a node of logits: Gumbels, or logistic noise as their difference; or Gaussians, as a control."""


class Shape(NamedTuple):
    """A node as it is when nothing has a sample axis."""

    batch_shape: Size
    """The axes of data points, then those of the independent units of a data point."""
    unit_shape: Size
    """The axes of the units alone."""
    categories: int | None
    """The number of states of a unit, None if they cannot be counted."""

    @property
    def states(self) -> int:
        """The number of joint states of the units."""
        return int((self.categories or 1) ** self.unit_shape.numel())


Structure = Mapping[str, Shape]
"""The nodes of a graph that are drawn, by their names, in the order of the program."""


class Mode(ABC):
    """A meaning of draws."""

    repeats = True
    """Whether a draw adds the sample axis where it is missing."""

    def prepare(self, structure: Callable[[], Structure]) -> "Mode":
        """The mode that answers in a graph of this structure; to know the structure costs a run."""
        return self

    @property
    def samples(self) -> int | None:
        """The number of samples that the mode itself brings, if it does."""
        return None

    @property
    def names(self) -> frozenset[str]:
        """The nodes that the mode speaks of by name, and which the graph must have."""
        return frozenset()

    @abstractmethod
    def draw(
        self, name: str, distribution: Distribution, sample_shape: tuple[int, ...], generator: Source | None, axes: int
    ) -> Drawn:
        """Give a node its value, whose log probability is best asked for summed over so many axes of units."""

    @abstractmethod
    def score(
        self, name: str, distribution: Distribution, value: Tensor, axes: int = 0, *, node: Tensor | None = None
    ) -> Tensor:
        """The log probability under a distribution of a value that another drew, summed over so many axes of units.

        A relaxed value that was drawn comes with its node, which is exact where the value was rounded to an edge.
        """


@dataclass(frozen=True)
class Discrete(Mode):
    """Nodes are what they are: discrete values without a gradient, scored by their log mass."""

    def draw(
        self, name: str, distribution: Distribution, sample_shape: tuple[int, ...], generator: Source | None, axes: int
    ) -> Drawn:
        """Draw a state."""
        if not isinstance(distribution, DiscreteVariable):
            return _pathwise(name, distribution, sample_shape, generator)
        return distribution.drawn(sample_shape, generator=generator, axes=axes)

    def score(
        self, name: str, distribution: Distribution, value: Tensor, axes: int = 0, *, node: Tensor | None = None
    ) -> Tensor:
        """The log mass."""
        return _log_mass(distribution, value, axes)


@dataclass(frozen=True)
class Relaxed(Mode):
    """Every discrete node becomes its Concrete twin with the same logits.

    The temperature is one for all, or a map from the names of all nodes to theirs. Values are scored by the log density
    of their node or, which bounds nothing, by the discrete log masses weighted as the value weights the states.
    With normal noise the twin is the paper's control, which has a Gaussian in the place of a Gumbel.
    See [maddison2017concrete], section 3.3 and appendix C.

    >>> mode = Relaxed({"h1": 2 / 3, "h2": 1 / 2})
    """

    temperature: Temperatures
    scored_by: Literal["density", "mass"] = "density"
    noise: Noise = "gumbel"

    def __post_init__(self) -> None:
        _require_positive(self.temperature)

    @property
    def names(self) -> frozenset[str]:
        """The nodes whose temperature is given by name."""
        return _names(self.temperature)

    def draw(
        self, name: str, distribution: Distribution, sample_shape: tuple[int, ...], generator: Source | None, axes: int
    ) -> Drawn:
        """Draw a relaxed value, which carries the pathwise gradient."""
        if not isinstance(distribution, DiscreteVariable):
            return _pathwise(name, distribution, sample_shape, generator)
        relaxed = _relaxed(name, distribution, self.temperature, self.noise)
        drawn = relaxed.drawn(sample_shape, generator=generator, axes=axes)
        if self.scored_by == "mass":
            value, node = drawn.value, drawn.node
            return Drawn(value, lambda: distribution.interpolated_log_prob(value, node), node=node)
        return drawn

    def score(
        self, name: str, distribution: Distribution, value: Tensor, axes: int = 0, *, node: Tensor | None = None
    ) -> Tensor:
        """The log density of the node behind a relaxed value, or the weighted log masses."""
        if not isinstance(distribution, DiscreteVariable):
            return sum_axes(distribution.log_prob(value), axes)
        if self.scored_by == "mass":
            return sum_axes(distribution.interpolated_log_prob(value, node), axes)
        return _relaxed(name, distribution, self.temperature, self.noise).node_log_prob(value, axes, node=node)


@dataclass(frozen=True)
class StraightThrough(Mode):
    """Values are discrete, and their gradient is that of the mean or, with a temperature, of the relaxed twin.

    The relaxed twin has the same noise. Values are scored by their log mass, which passes a gradient to them.
    See [bengio2013estimating] and [jang2017categorical].
    """

    temperature: Temperatures | None = None

    def __post_init__(self) -> None:
        if self.temperature is not None:
            _require_positive(self.temperature)

    @property
    def names(self) -> frozenset[str]:
        """The nodes whose temperature is given by name."""
        return frozenset() if self.temperature is None else _names(self.temperature)

    def draw(
        self, name: str, distribution: Distribution, sample_shape: tuple[int, ...], generator: Source | None, axes: int
    ) -> Drawn:
        """Draw a state with a gradient that is not its own."""
        if not isinstance(distribution, DiscreteVariable):
            return _pathwise(name, distribution, sample_shape, generator)
        noise = distribution.noise(sample_shape, generator=generator)
        if self.temperature is None:
            soft = distribution.mean
        else:
            soft = _relaxed(name, distribution, self.temperature).push(noise)
        value = distribution.push(noise) + (soft - soft.detach())
        return Drawn(value, lambda: self.score(name, distribution, value))

    def score(
        self, name: str, distribution: Distribution, value: Tensor, axes: int = 0, *, node: Tensor | None = None
    ) -> Tensor:
        """The log mass, extended to a function with a gradient in the value."""
        if not isinstance(distribution, DiscreteVariable):
            return sum_axes(distribution.log_prob(value), axes)
        return sum_axes(distribution.interpolated_log_prob(value), axes)


@dataclass(frozen=True)
class Enumerate(Mode):
    """The sample axis runs over all joint states of the nodes, the last node's last unit changing fastest.

    Data points are enumerated side by side. More than 2²⁰ states are refused.
    """

    repeats = False
    shapes: Structure | None = None
    """What is enumerated; left to the graph."""

    def prepare(self, structure: Callable[[], Structure]) -> "Enumerate":
        """Count the states of a graph, and refuse too many."""
        shapes, bits = structure(), 0.0
        for name, shape in shapes.items():
            if shape.categories is None:
                raise ValueError(f"a graph must be discrete to be enumerated, got a continuous node {name!r}")
            bits += shape.unit_shape.numel() * math.log2(shape.categories)
            if bits > math.log2(STATES):
                raise ValueError(
                    f"a graph must have at most 2^20 states to be enumerated, got 2^{bits:.0f} up to node {name!r}"
                )
        return Enumerate(shapes)

    @property
    def samples(self) -> int | None:
        """The number of joint states."""
        return None if self.shapes is None else math.prod(shape.states for shape in self.shapes.values())

    def draw(
        self, name: str, distribution: Distribution, sample_shape: tuple[int, ...], generator: Source | None, axes: int
    ) -> Drawn:
        """Lay out the states of a node beside those of the others."""
        assert isinstance(distribution, DiscreteVariable)
        assert self.shapes is not None
        batch_shape, unit_shape, categories = self.shapes[name]
        assert categories is not None
        later = list(self.shapes)[list(self.shapes).index(name) + 1 :]
        joint = torch.arange(self.samples or 0, device=distribution.logits.device)
        joint = joint // math.prod(self.shapes[other].states for other in later)
        unit = torch.arange(unit_shape.numel() - 1, -1, -1, device=joint.device)
        state = joint.unsqueeze(-1) // categories**unit % categories
        support = distribution.enumerate_support(expand=False).reshape(categories, *distribution.event_shape)
        data_axes = (1 for _ in batch_shape[len(unit_shape) :])
        value = support[state].view(-1, *data_axes, *unit_shape, *distribution.event_shape)
        value = value.expand(-1, *batch_shape, *distribution.event_shape)
        return Drawn(value, lambda: self.score(name, distribution, value))

    def score(
        self, name: str, distribution: Distribution, value: Tensor, axes: int = 0, *, node: Tensor | None = None
    ) -> Tensor:
        """The log mass."""
        return _log_mass(distribution, value, axes)


@dataclass(frozen=True)
class Replay(Mode):
    """Nodes take the values of another run, or of a map from names to values, and are scored as another mode does.

    Left out, the other mode is the discrete one.
    """

    repeats = False
    trace: Trace | Mapping[str, Tensor]
    scored_as: Mode | None = None

    @property
    def samples(self) -> int | None:
        """The number of samples in the other run."""
        return self.trace.samples if isinstance(self.trace, Trace) else None

    @property
    def names(self) -> frozenset[str]:
        """The nodes that the other mode speaks of."""
        return frozenset() if self.scored_as is None else self.scored_as.names

    def draw(
        self, name: str, distribution: Distribution, sample_shape: tuple[int, ...], generator: Source | None, axes: int
    ) -> Drawn:
        """Give a node the value that it had."""
        values = self.trace.values if isinstance(self.trace, Trace) else self.trace
        if name not in values:
            raise ValueError(
                f"a replayed run must have every node of the graph, got no {name!r}{did_you_mean(name, values)}"
            )
        value, node = values[name], self.trace[name].node if isinstance(self.trace, Trace) else None
        score = partial(self.score, name, distribution, value, node=node)
        return Drawn(value, score, score, node)

    def score(
        self, name: str, distribution: Distribution, value: Tensor, axes: int = 0, *, node: Tensor | None = None
    ) -> Tensor:
        """The log probability in the other mode."""
        return self._other.score(name, distribution, value, axes, node=node)

    @property
    def _other(self) -> Mode:
        return Discrete() if self.scored_as is None else self.scored_as


def _pathwise(name: str, distribution: Distribution, sample_shape: tuple[int, ...], generator: Source | None) -> Drawn:
    """A continuous node, which needs no relaxation."""
    if not distribution.has_rsample:
        raise TypeError(
            f"node {name!r} must be one of concretely's masses, or have a pathwise gradient, "
            f"got {type(distribution).__name__}"
        )
    if isinstance(distribution, Node | Relaxation):
        value = distribution.rsample(sample_shape, generator=generator)
    elif generator is None:
        value = distribution.rsample(Size(sample_shape))
    else:
        raise TypeError(
            f"node {name!r} must be one of concretely's to take a generator, got {type(distribution).__name__}"
        )
    return Drawn(value, lambda: distribution.log_prob(value))


def _log_mass(distribution: Distribution, value: Tensor, axes: int) -> Tensor:
    if isinstance(distribution, DiscreteVariable):
        return distribution.summed_log_prob(value, axes)
    return sum_axes(distribution.log_prob(value), axes)


def _relaxed(name: str, mass: DiscreteVariable, temperature: Temperatures, noise: Noise = "gumbel") -> Relaxation:
    if not isinstance(temperature, float | Tensor) and isinstance(temperature, Mapping):  # quicker in this order
        if name not in temperature:
            raise ValueError(f"temperature must name every node, got none for {name!r}")
        temperature = temperature[name]
    relaxed = mass.relax(temperature) if noise == "gumbel" else mass.relax_gaussian(temperature)
    if relaxed.batch_shape != mass.batch_shape:  # the axes that it adds would be taken for samples or data
        raise ValueError(
            f"temperature must broadcast to the batch shape {tuple(mass.batch_shape)} of node {name!r}, "
            f"got one that enlarges it to {tuple(relaxed.batch_shape)}"
        )
    return relaxed


def _names(temperature: Temperatures) -> frozenset[str]:
    return frozenset(temperature) if isinstance(temperature, Mapping) else frozenset()


def _require_positive(temperature: Temperatures) -> None:
    by_name = temperature if isinstance(temperature, Mapping) else {"": temperature}
    for name, entry in by_name.items():
        place = f" at node {name!r}" if name else ""
        if isinstance(entry, Tensor):
            positive = None if is_hidden(entry) else bool_or_none(((entry > 0) & (entry < math.inf)).all())
        elif isinstance(entry, Real) and not isinstance(entry, bool):
            positive = 0 < entry < math.inf
        else:
            raise TypeError(f"temperature must be a number or a tensor, got {type(entry).__name__}{place}")
        if positive is False:
            shown = entry.tolist() if isinstance(entry, Tensor) else f"{entry:.9g}"
            raise ValueError(f"temperature must be positive, got {shown}{place}")
