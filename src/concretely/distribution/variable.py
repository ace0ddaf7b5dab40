"""What all random variables share: logits, noise, and a deterministic function that pushes one through the other.

Methods that begin with an underscore compute, in at least float32 and in float64 where terms may cancel; the public
ones round the result, once.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Size, Tensor
from torch.distributions import constraints

from ..noise import Source
from . import check
from .cast import cast, cast_in_order, working
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
