"""What all random variables share: logits, noise, and a deterministic function that pushes one through the other.

The arithmetic is that of `functional`, in at least float32 and in float64 where terms may cancel; the classes check
arguments and round results, once.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Size, Tensor
from torch.distributions import constraints

from ..functional.cast import cast, cast_in_order
from ..functional.draw import Drawn
from ..functional.temperature import Temperature
from ..noise import Source
from . import check
from .pyro import PyroMixin


def expanded(logits: Tensor, shape: Size) -> Tensor:
    """Logits of a shape; those that have it already are spared a step that would be differentiated."""
    return logits if logits.shape == shape else logits.expand(shape)


class Variable(PyroMixin):
    """A random variable that is a deterministic function of its parameters and of noise with a fixed law.

    It is mixed into a `Distribution` of torch.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (declared so by torch)
    support: constraints.Constraint
    is_ranked = False
    """Whether the largest entry of a value stands for a category."""
    _temperature: Temperature | None = None
    _logits_of: Callable[..., Tensor]
    """How probabilities become logits: as log-odds of the upper state, or as logarithms."""

    def __init__(self, logits: Tensor, batch_shape: Size, event_shape: Size, *, validate: bool) -> None:
        self.logits = logits
        # The checks of torch know neither the value nor the place of what is wrong; ours ran before.
        super().__init__(batch_shape, event_shape, validate_args=False)
        self._validate_args = validate

    @classmethod
    def from_probs(
        cls, probs: Tensor | float, *parameters: Any, validate_args: bool | None = None, **options: Any
    ) -> Self:
        """Build the variable from probabilities in the place of logits; what else it takes follows."""
        logits = cls._logits_of(probs, validate_args=validate_args)
        return cls(logits, *parameters, validate_args=validate_args, **options)  # type: ignore[call-arg]

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

    def _shaped(self, name: str, value: Tensor) -> Tensor:
        return check.as_shaped(name, value, batch_shape=self.batch_shape, event_shape=self.event_shape)

    def _rounded(self, value: Tensor) -> Tensor:
        """A value in the dtype of the logits."""
        return (cast_in_order if self.is_ranked else cast)(value, self.logits.dtype)

    def _rounded_draw(self, drawn: Drawn, value: Tensor, node: Tensor | None) -> Drawn:
        """A draw with its log probabilities in the dtype of the logits."""
        dtype, summed = self.logits.dtype, drawn.summed
        rounded = None if summed is None else lambda axes: cast(summed(axes), dtype)
        return Drawn(value, lambda: cast(drawn.score(), dtype), rounded, node)

    def _require_density(self) -> None:
        """Refuse what the discrete limit does not have."""
        if self._validate_args:
            check.has_density(self._temperature)

    def _checked(self, value: Tensor) -> Tensor:
        """A value to be scored; its shape is always checked, its entries when arguments are validated."""
        self._require_density()
        value = self._shaped("value", value)
        if self._validate_args:
            check.in_support(value, self.support, owner=type(self).__name__)
        return value

    def __repr__(self) -> str:
        parameters = ((name, getattr(self, name)) for name in self.arg_constraints)
        shown = (f"{name}: {tuple(p.shape) if p.dim() else f'{p.item():.6g}'}" for name, p in parameters)
        return f"{type(self).__name__}({', '.join(shown)})"
