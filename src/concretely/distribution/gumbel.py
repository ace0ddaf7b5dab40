"""The Gumbel variable, whose largest draw among many picks a category."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from .. import noise
from ..noise import Source
from . import check
from .cast import cast, wide
from .node import Node

EULER = 0.57721566490153286061


class Gumbel(Node):
    r"""A Gumbel variable with location log α.

    $$X = \log α - \log(-\log U), \qquad \log p(x) = -z - e^{-z}, \quad z = x - \log α$$

    See [maddison2017concrete], section 3.1 and cheat sheet.

    >>> Gumbel(torch.zeros(3)).sample((2,)).shape
    torch.Size([2, 3])
    """

    arg_constraints = {"logits": constraints.real}  # noqa: RUF012
    support = constraints.real

    def __init__(self, logits: Tensor | float = 0.0, *, validate_args: bool | None = None) -> None:
        validate = check.validates(validate_args)
        logits = check.as_logits(logits, infinite="never", validate=validate)
        super().__init__(logits, logits.shape, torch.Size(), validate=validate)

    @classmethod
    def from_probs(cls, probs: Tensor | float, *, validate_args: bool | None = None) -> Self:
        """Build the variable from the probability whose logarithm is its location."""
        return cls(check.as_log_probs(probs, validate_args=validate_args), validate_args=validate_args)

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw standard Gumbel noise."""
        return self._drawn(noise.gumbel, sample_shape, generator)

    def _push(self, noise: Tensor) -> Tensor:
        return self.logits + noise

    def _log_density(self, value: Tensor) -> Tensor:
        return self._log_density_of_noise(wide(value) - wide(self.logits))

    def _log_density_of_noise(self, noise: Tensor) -> Tensor:
        return -noise - torch.exp(-noise)

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The probability of a smaller value."""
        return cast(torch.exp(-torch.exp(wide(self.logits) - wide(self._checked(value)))), self.logits.dtype)

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The value below which the variable falls with a given probability."""
        return self.push(-torch.log(-torch.log(check.as_fraction(value, validate=self._validate_args))))

    def entropy(self) -> Float[Tensor, "..."]:
        """The differential entropy."""
        return torch.full_like(self.logits, 1 + EULER)

    @property
    def mean(self) -> Float[Tensor, "..."]:
        """The expected value."""
        return self.logits + EULER

    @property
    def mode(self) -> Float[Tensor, "..."]:
        """The most probable value."""
        return self.logits

    @property
    def variance(self) -> Float[Tensor, "..."]:
        """The variance."""
        return torch.full_like(self.logits, math.pi**2 / 6)
