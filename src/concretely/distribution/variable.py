"""The base class of all random variables.

`functional` computes in at least float32, and in float64 where terms may cancel. The classes check arguments and round
results once.
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
    """Expand logits to a shape; skip the autograd step if they already have it."""
    return logits if logits.shape == shape else logits.expand(shape)


class Variable(PyroMixin):
    """A random variable that is a deterministic function of its parameters and of noise.

    It is a mixin for torch's `Distribution`.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (declared so by torch)
    support: constraints.Constraint
    is_ranked = False
    """Whether the argmax of a value is its category."""
    _temperature: Temperature | None = None
    _logits_of: Callable[..., Tensor]
    """Converts probabilities to logits."""

    def __init__(self, logits: Tensor, batch_shape: Size, event_shape: Size, *, validate: bool) -> None:
        self.logits = logits
        # our own checks, which name the value and its index, ran before
        super().__init__(batch_shape, event_shape, validate_args=False)
        self._validate_args = validate

    @classmethod
    def from_probs(
        cls, probs: Tensor | float, *parameters: Any, validate_args: bool | None = None, **options: Any
    ) -> Self:
        """Build the variable from probabilities instead of logits; other arguments follow."""
        logits = cls._logits_of(probs, validate_args=validate_args)
        return cls(logits, *parameters, validate_args=validate_args, **options)  # type: ignore[call-arg]

    @abstractmethod
    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the noise of samples."""

    @abstractmethod
    def push(self, noise: Tensor) -> Tensor:
        """Return the value made from noise: the deterministic part of sampling."""

    def sample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw values without a gradient."""
        with torch.no_grad():
            return self.push(self.noise(sample_shape, generator=generator))

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Self:
        """Return the variable expanded to a larger batch shape."""
        new = copy.copy(self)
        new._batch_shape = Size(batch_shape)
        new.logits = self.logits.expand(new.batch_shape + self.logits.shape[len(self.batch_shape) :])
        return new

    def _shaped(self, name: str, value: Tensor) -> Tensor:
        return check.as_shaped(name, value, batch_shape=self.batch_shape, event_shape=self.event_shape)

    def _rounded(self, value: Tensor) -> Tensor:
        """Round a value to the dtype of the logits."""
        return (cast_in_order if self.is_ranked else cast)(value, self.logits.dtype)

    def _rounded_draw(self, drawn: Drawn, value: Tensor, node: Tensor | None) -> Drawn:
        """Round the log probabilities of a draw to the dtype of the logits."""
        dtype, summed = self.logits.dtype, drawn.summed
        rounded = None if summed is None else lambda axes: cast(summed(axes), dtype)
        return Drawn(value, lambda: cast(drawn.score(), dtype), rounded, node)

    def _require_density(self) -> None:
        """Raise an error at temperature zero."""
        if self._validate_args:
            check.has_density(self._temperature)

    def _checked(self, value: Tensor) -> Tensor:
        """Check the shape of a value, and its entries if arguments are validated."""
        self._require_density()
        value = self._shaped("value", value)
        if self._validate_args:
            check.in_support(value, self.support, owner=type(self).__name__)
        return value

    def __repr__(self) -> str:
        parameters = ((name, getattr(self, name)) for name in self.arg_constraints)
        shown = (f"{name}: {tuple(p.shape) if p.dim() else f'{p.item():.6g}'}" for name, p in parameters)
        return f"{type(self).__name__}({', '.join(shown)})"
