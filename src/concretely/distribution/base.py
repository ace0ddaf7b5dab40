"""What all random variables share: logits, noise, and a deterministic function that pushes one through the other.

Three kinds follow. A `Mass` is discrete. A `Node` is continuous and unbounded, and knows the log density of its own
draws from their noise alone. A `Relaxation` squashes a node into the bounded set that spans the states of a mass.
Methods that begin with an underscore compute, in at least float32 and in float64 where terms may cancel; the public
ones round the result, once.
"""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Size, Tensor
from torch.distributions import constraints

from ..noise import Source
from . import check
from .cast import WIDE, cast, cast_in_order, wide, working
from .fused import Draw, summed
from .memory import recall, remember
from .site import Site
from .temperature import Temperature


@runtime_checkable
class Law(Protocol):
    """A way of drawing noise, as in `concretely.noise`."""

    def __call__(
        self, shape: Sequence[int], dtype: torch.dtype, *, device: torch.device, generator: Source | None
    ) -> Tensor: ...


class Drawn(NamedTuple):
    """A value, and how to work out its log probability."""

    value: Tensor
    score: Callable[[], Tensor]
    summed: Callable[[int], Tensor] | None = None
    """The log probability summed over so many of the last axes of the batch, where that is less work than to sum it."""


def expanded(logits: Tensor, shape: Size) -> Tensor:
    """Logits of a shape; those that have it already are spared a step that would be differentiated."""
    return logits if logits.shape == shape else logits.expand(shape)


class Variable(Site):
    """A random variable that is a deterministic function of its parameters and of noise with a fixed law."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (declared so by torch)
    support: constraints.Constraint
    is_ranked = False
    """Whether the largest entry of a value stands for a category."""
    _temperature: Temperature | None = None

    def __init__(self, logits: Tensor, batch_shape: Size, event_shape: Size, *, validate: bool) -> None:
        self.logits = logits
        # The checks of torch know neither the value nor the place of what is wrong; ours ran before.
        super().__init__(batch_shape, event_shape, validate_args=False)
        self._validate_args = validate

    @abstractmethod
    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the noise behind so many samples."""

    @abstractmethod
    def push(self, noise: Tensor) -> Tensor:
        """The value that noise becomes: all of sampling but the randomness."""

    def sample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw values without a gradient."""
        with torch.no_grad():
            return self.push(self.noise(sample_shape, generator=generator))

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Self:
        """The same variable with a larger batch shape."""
        new = copy.copy(self)
        new._batch_shape = Size(batch_shape)
        new.logits = self.logits.expand(new.batch_shape + self.logits.shape[len(self.batch_shape) :])
        return new

    def _drawn(self, law: Law, sample_shape: Sequence[int], generator: Source | None) -> Tensor:
        """Noise of a law in the shape of values."""
        shape = Size(sample_shape) + self.batch_shape + self.event_shape
        return law(shape, working(self.logits.dtype), device=self.logits.device, generator=generator)

    def _shaped(self, name: str, value: Tensor) -> Tensor:
        return check.as_shaped(name, value, batch_shape=self.batch_shape, event_shape=self.event_shape)

    def _rounded(self, value: Tensor) -> Tensor:
        """A value in the dtype of the logits."""
        return (cast_in_order if self.is_ranked else cast)(value, self.logits.dtype)

    def _drawn_with(self, value: Tensor, score: Callable[[int], Tensor]) -> Drawn:
        """A value of a kernel with its log probabilities, in the dtype of the logits."""

        def rounded(axes: int) -> Tensor:
            return cast(score(axes), self.logits.dtype)

        return Drawn(value, lambda: rounded(0), rounded)

    def _fused_score(self, value: Tensor, axes: int) -> Tensor | None:
        """The log probability of a value, summed over the last axes of the batch, from a kernel, if there is one."""
        return None

    def _require_density(self) -> None:
        """Refuse what the discrete limit does not have."""
        if self._validate_args:
            check.has_density(self._temperature)

    def _checked(self, value: Tensor) -> Tensor:
        """A value to be scored; its shape is always looked at, its entries when arguments are validated."""
        self._require_density()
        value = self._shaped("value", value)
        if self._validate_args:
            check.in_support(value, self.support, owner=type(self).__name__)
        return value

    def __repr__(self) -> str:
        parameters = ((name, getattr(self, name)) for name in self.arg_constraints)
        shown = (f"{name}: {tuple(p.shape) if p.dim() else f'{p.item():.6g}'}" for name, p in parameters)
        return f"{type(self).__name__}({', '.join(shown)})"


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


class Continuous(Variable):
    """A random variable with a density and a pathwise gradient."""

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw values that carry the pathwise gradient."""
        return self.push(self.noise(sample_shape, generator=generator))

    @abstractmethod
    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw values and their log densities from the same noise: the form to train with."""


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
