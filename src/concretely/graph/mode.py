"""Modes: ways to draw the nodes of a stochastic graph.

A program calls `draw(name, distribution)` and does not depend on the mode. A mode has two methods: `draw` samples a
value, and `score` returns the log probability of a given value. In all modes, a continuous node, such as a normal one,
is drawn with its pathwise gradient. `Discrete` also draws the discrete distributions of torch.
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

from ..distribution.check import broadcast_shapes
from ..distribution.variable import DiscreteVariable, RelaxedVariable, Variable
from ..functional.arithmetic import Temperature, bool_or_none, is_hidden
from ..functional.draw import Drawn, sum_axes
from ..functional.noise import Source, seeded
from ..spelling import did_you_mean, require_one_of
from ..temperature import ByStates
from .trace import Outcome, Rows, Trace

__all__ = ["Discrete", "Enumerate", "Mode", "Relaxed", "Replay", "Surrogate"]

STATES = 2**20
"""The maximum number of joint states to enumerate."""

Temperatures = Temperature | Mapping[str, Temperature] | ByStates
"""One temperature for all nodes, a mapping from node names to temperatures, or one for each number of states."""

Noise = Literal["gumbel", "normal"]
"""The noise added to logits: Gumbel (logistic for a binary node), or Gaussian for a control experiment of the paper."""


class Shape(NamedTuple):
    """The shape of a discrete node without a sample axis."""

    unit_shape: Size
    """The axes of the independent units of one data point."""
    categories: int
    """The number of states of a unit."""

    @property
    def states(self) -> int:
        """Return the number of joint states of the units."""
        return int(self.categories ** self.unit_shape.numel())


Structure = Mapping[str, Shape]
"""The shapes of the drawn nodes by name, in program order."""


class Request(NamedTuple):
    """The arguments of a draw: all that a mode needs to draw a node."""

    name: str
    distribution: Distribution
    sample_shape: tuple[int, ...]
    """The axes that the draw adds in front."""
    generator: Source | None
    axes: int
    """The number of last unit axes that the caller will sum over, a hint for fusion."""
    rows: Rows


class Mode(ABC):
    """Base class of the modes."""

    repeats = True
    """Whether a draw adds the sample axis. If False, the values of this mode already have one."""

    def prepare(self, structure: Callable[[], Structure]) -> "Mode":
        """Return the mode to use for a graph. Calling `structure` runs the program once."""
        return self

    @property
    def samples(self) -> int | None:
        """Return the number of samples if the mode sets it, else None."""
        return None

    @property
    def names(self) -> frozenset[str]:
        """Return the node names that the mode refers to. The graph must draw these nodes."""
        return frozenset()

    @abstractmethod
    def draw(self, request: Request) -> Drawn:
        """Draw the value of a node."""

    @abstractmethod
    def score(
        self, name: str, distribution: Distribution, value: Tensor, axes: int = 0, *, node: Tensor | None = None
    ) -> Tensor:
        """Return the log probability of a given value, summed over the last `axes` unit axes.

        `node` is the unbounded (unsquashed) form of a relaxed value, if known. It is exact even where the value was
        rounded to 0 or 1.
        """


@dataclass(frozen=True)
class Discrete(Mode):
    """Draw discrete values without a gradient, and score them by their log mass."""

    def draw(self, request: Request) -> Drawn:
        """Draw a discrete state."""
        node, sample_shape, generator = request.distribution, request.sample_shape, request.generator
        if not isinstance(node, DiscreteVariable):
            return _other(request, relaxes=False)
        return node.drawn(sample_shape, generator=generator, axes=request.axes)

    def score(
        self, name: str, distribution: Distribution, value: Tensor, axes: int = 0, *, node: Tensor | None = None
    ) -> Tensor:
        """Return the log mass."""
        return _log_mass(distribution, value, axes)


@dataclass(frozen=True)
class Relaxed(Mode):
    """Replace every discrete node by its Concrete relaxation with the same logits.

    `temperature` is one temperature for all nodes, or a mapping from node names to temperatures. `scored_by="density"`
    scores a value by the log density of its unbounded (unsquashed) variable. `scored_by="mass"` scores it by
    Σₖ valueₖ log P(state k), with the discrete probabilities P; the resulting objective is not a bound.
    `noise="normal"` replaces the Gumbel or logistic noise by Gaussian noise, as in a control experiment of the paper.
    See [maddison2017concrete], section 3.3 and appendix C.

    >>> mode = Relaxed({"h1": 2 / 3, "h2": 1 / 2})
    """

    temperature: Temperatures
    scored_by: Literal["density", "mass"] = "density"
    noise: Noise = "gumbel"

    def __post_init__(self) -> None:
        _require_positive(self.temperature)
        require_one_of("scored_by", self.scored_by, "density", "mass")
        require_one_of("noise", self.noise, "gumbel", "normal")

    @property
    def names(self) -> frozenset[str]:
        """Return the nodes whose temperature is given by name."""
        return _names(self.temperature)

    def draw(self, request: Request) -> Drawn:
        """Draw a relaxed value with its pathwise gradient."""
        distribution = request.distribution
        if not isinstance(distribution, DiscreteVariable):
            return _other(request)
        relaxed = _relaxed(request.name, distribution, self.temperature, self.noise)
        drawn = relaxed.drawn(request.sample_shape, generator=request.generator, axes=request.axes)
        if self.scored_by == "mass":
            value, node = drawn.value, drawn.node
            return Drawn(value, lambda: distribution.interpolated_log_prob(value, node), node=node)
        return drawn

    def score(
        self, name: str, distribution: Distribution, value: Tensor, axes: int = 0, *, node: Tensor | None = None
    ) -> Tensor:
        """Return the log density of the unsquashed variable, or the weighted log masses (see `scored_by`)."""
        if not isinstance(distribution, DiscreteVariable):
            return sum_axes(distribution.log_prob(value), axes)
        if self.scored_by == "mass":
            return sum_axes(distribution.interpolated_log_prob(value, node), axes)
        return _relaxed(name, distribution, self.temperature, self.noise).node_log_prob(value, axes, node=node)


@dataclass(frozen=True)
class Surrogate(Mode):
    """Draw discrete values with a surrogate gradient: of the mean or, given a temperature, of a relaxed value.

    The relaxed value has the same noise. The log mass also has a gradient with respect to the value.
    See [bengio2013estimating] and [jang2017categorical].
    """

    temperature: Temperatures | None = None

    def __post_init__(self) -> None:
        if self.temperature is not None:
            _require_positive(self.temperature)

    @property
    def names(self) -> frozenset[str]:
        """Return the nodes whose temperature is given by name."""
        return frozenset() if self.temperature is None else _names(self.temperature)

    def draw(self, request: Request) -> Drawn:
        """Draw a discrete state with a surrogate gradient."""
        name, distribution = request.name, request.distribution
        if not isinstance(distribution, DiscreteVariable):
            return _other(request)
        noise = distribution.noise(request.sample_shape, generator=request.generator)
        if self.temperature is None:
            soft = distribution.mean
        else:
            soft = _relaxed(name, distribution, self.temperature).push(noise)
        value = distribution.push(noise) + (soft - soft.detach())
        return Drawn(value, lambda: self.score(name, distribution, value))

    def score(
        self, name: str, distribution: Distribution, value: Tensor, axes: int = 0, *, node: Tensor | None = None
    ) -> Tensor:
        """Return the log mass, interpolated so that it is differentiable in the value."""
        if not isinstance(distribution, DiscreteVariable):
            return sum_axes(distribution.log_prob(value), axes)
        return sum_axes(distribution.interpolated_log_prob(value), axes)


@dataclass(frozen=True)
class Enumerate(Mode):
    """Enumerate all joint states of the nodes along the sample axis, at most 2²⁰.

    The last unit of the last node changes fastest.
    """

    repeats = False
    shapes: Structure | None = None
    """The shapes of the nodes; `prepare` sets them."""

    def prepare(self, structure: Callable[[], Structure]) -> "Enumerate":
        """Count the joint states of a graph; raise if there are too many."""
        shapes, bits = structure(), 0.0
        for name, shape in shapes.items():
            bits += shape.unit_shape.numel() * math.log2(shape.categories)
            if bits > math.log2(STATES):
                raise ValueError(
                    f"a graph must have at most 2^20 states to be enumerated, got 2^{bits:.0f} up to node {name!r}"
                )
        return Enumerate(shapes)

    @property
    def samples(self) -> int | None:
        """Return the number of joint states."""
        return None if self.shapes is None else math.prod([shape.states for shape in self.shapes.values()])

    def draw(self, request: Request) -> Drawn:
        """Return the states of a node, one for each joint state."""
        distribution, rows = request.distribution, request.rows
        assert isinstance(distribution, DiscreteVariable)
        assert self.shapes is not None
        unit_shape, categories = self.shapes[request.name]
        later = list(self.shapes)[list(self.shapes).index(request.name) + 1 :]
        joint = torch.arange(self.samples or 0, device=distribution.logits.device)
        joint = joint // math.prod([self.shapes[other].states for other in later])
        unit = torch.arange(unit_shape.numel() - 1, -1, -1, device=joint.device)
        state = joint.unsqueeze(-1) // categories**unit % categories
        support = distribution.enumerate_support(expand=False).reshape(categories, *distribution.event_shape)
        value = support[state].view(-1, *(1,) * len(rows.batch_shape), *unit_shape, *distribution.event_shape)
        value = value.expand(-1, *rows.batch_shape, *unit_shape, *distribution.event_shape)
        return _given(self, request, rows.fold(value))

    def score(
        self, name: str, distribution: Distribution, value: Tensor, axes: int = 0, *, node: Tensor | None = None
    ) -> Tensor:
        """Return the log mass."""
        return _log_mass(distribution, value, axes)


class MissingNodeError(ValueError):
    """Raised if a replayed trace lacks a node of the graph. `missing` is the name of the node."""

    def __init__(self, missing: str) -> None:
        super().__init__(f"a replayed run must have every node of the graph, got no {missing}")
        self.missing = missing


@dataclass(frozen=True)
class Replay(Mode):
    """Reuse the values of a trace or of a mapping, and score them with another mode, by default `Discrete`."""

    repeats = False
    trace: Trace | Mapping[str, Tensor]
    scored_as: Mode | None = None

    @property
    def samples(self) -> int | None:
        """Return the number of samples of the trace."""
        return self.trace.samples if isinstance(self.trace, Trace) else None

    @property
    def names(self) -> frozenset[str]:
        """Return the node names that the scoring mode refers to."""
        return frozenset() if self.scored_as is None else self.scored_as.names

    def draw(self, request: Request) -> Drawn:
        """Return the stored value of a node."""
        name, value = request.name, self.trace.get(request.name)
        if value is None:
            raise MissingNodeError(f"{name!r}{did_you_mean(name, self.trace)}")
        if isinstance(value, Outcome):
            return _given(self, request, value.seen, value.node)
        rows = request.rows
        return _given(self, request, rows.fold(value) if value.shape[: len(rows.shape)] == rows.shape else value)

    def score(
        self, name: str, distribution: Distribution, value: Tensor, axes: int = 0, *, node: Tensor | None = None
    ) -> Tensor:
        """Return the log probability under the scoring mode."""
        mode = Discrete() if self.scored_as is None else self.scored_as
        return mode.score(name, distribution, value, axes, node=node)


def _given(mode: Mode, request: Request, value: Tensor, node: Tensor | None = None) -> Drawn:
    """Return a given value and its log probability."""
    rows, shape = request.rows, request.distribution.batch_shape
    if rows.batch_shape and rows.have_any(shape) and not rows.have_samples(value.shape):
        got = f"{tuple(value.shape)} and {tuple(rows.folded)}"
        raise ValueError(f"the given value of node {request.name!r} must have the rows of this run, got {got}")
    aligned, distribution = rows.align(value, request.distribution)
    batch = aligned.shape[: aligned.dim() - len(distribution.event_shape)]
    if broadcast_shapes(batch, distribution.batch_shape) != batch:
        got = f"{tuple(aligned.shape)} and {tuple(distribution.batch_shape)}"
        raise ValueError(f"node {request.name!r} must have as many units as its given value, got {got}")
    at = node if node is None or aligned is value else request.rows.unfold(node)
    score = partial(mode.score, request.name, distribution, aligned, node=at)
    return Drawn(value, score, score, node)


def _other(request: Request, *, relaxes: bool = True) -> Drawn:
    """Draw a node that is not a discrete variable of this library, with its pathwise gradient if it has one."""
    name, distribution, sample_shape, generator = request[:4]
    if isinstance(distribution, Variable):
        value = distribution.rsample(sample_shape, generator=generator)
    elif distribution.has_rsample:
        with seeded(generator):
            value = distribution.rsample(Size(sample_shape))
    elif not relaxes:
        with torch.no_grad(), seeded(generator):
            value = distribution.sample(Size(sample_shape))
    else:
        raise TypeError(
            f"node {name!r} must be a discrete distribution of concretely to have a relaxation, or have rsample, got "
            + described(distribution, otherwise="use an estimator that needs only samples, such as RLOO()")
        )
    return Drawn(value, lambda: distribution.log_prob(value))


def described(distribution: Distribution, *, otherwise: str) -> str:
    """Return the class of a distribution that a mode refuses, and what to do."""
    inside = getattr(distribution, "base_dist", None)
    advice = "pass what is inside, whose units are summed" if isinstance(inside, DiscreteVariable) else otherwise
    return f"{type(distribution).__name__} of {type(distribution).__module__}: {advice}"


def _log_mass(distribution: Distribution, value: Tensor, axes: int) -> Tensor:
    if isinstance(distribution, DiscreteVariable):
        return distribution.summed_log_prob(value, axes)
    return sum_axes(distribution.log_prob(value), axes)


def _relaxed(name: str, mass: DiscreteVariable, temperature: Temperatures, noise: Noise = "gumbel") -> RelaxedVariable:
    if not isinstance(temperature, float | Tensor) and isinstance(temperature, Mapping):  # the Mapping check is slow
        if name not in temperature:
            raise ValueError(f"temperature must name every node, got none for {name!r}")
        temperature = temperature[name]
    elif isinstance(temperature, ByStates):
        temperature = temperature(mass.states)
    relaxed = mass.relax(temperature) if noise == "gumbel" else mass.relax_gaussian(temperature)
    if relaxed.batch_shape != mass.batch_shape:  # added axes would be mistaken for sample or batch axes
        raise ValueError(
            f"temperature must broadcast to the batch shape {tuple(mass.batch_shape)} of node {name!r}, "
            f"got one that enlarges it to {tuple(relaxed.batch_shape)}"
        )
    return relaxed


def _names(temperature: Temperatures) -> frozenset[str]:
    return frozenset(temperature) if isinstance(temperature, Mapping) else frozenset()


def _require_positive(temperature: Temperatures) -> None:
    if isinstance(temperature, ByStates):
        return
    by_name = temperature if isinstance(temperature, Mapping) else {"": temperature}
    for name, entry in by_name.items():
        place = f" at node {name!r}" if name else ""
        if isinstance(entry, Tensor):
            is_read = not entry.is_cuda and not is_hidden(entry)  # reading it would wait for a GPU
            positive = bool_or_none(((entry > 0) & (entry < math.inf)).all()) if is_read else None
        elif isinstance(entry, Real) and not isinstance(entry, bool):
            positive = 0 < entry < math.inf
        else:
            hint = ": call it with a step, or pass it to fit as temperature=" if callable(entry) else ""
            raise TypeError(f"temperature must be a number or a tensor, got {type(entry).__name__}{place}{hint}")
        if positive is False:
            shown = entry.tolist() if isinstance(entry, Tensor) else f"{entry:.9g}"
            raise ValueError(f"temperature must be positive, got {shown}{place}")
