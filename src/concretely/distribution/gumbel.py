"""The Gumbel variable, the noise of the Gumbel-max trick."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from ..functional import gumbel
from ..functional.arithmetic import cast, to_float64
from ..functional.gumbel import EULER
from . import check
from .node import Node


class Gumbel(Node):
    r"""A Gumbel variable with scale 1 and location log α. U is uniform noise.

    $$X = \log α - \log(-\log U), \qquad \log p(x) = -z - e^{-z}, \quad z = x - \log α$$

    See [maddison2017concrete], section 3.1 and cheat sheet.

    >>> Gumbel(torch.zeros(3)).sample((2,)).shape
    torch.Size([2, 3])
    """

    arg_constraints = {"loc": constraints.real}  # noqa: RUF012
    support = constraints.real
    law = gumbel

    def __init__(self, loc: Tensor | float = 0.0, *, validate_args: bool | None = None) -> None:
        validate, loc = check.validates(validate_args, loc), check.as_floating("loc", loc)
        if validate:
            check.require("loc", "be finite", loc, loc.isfinite())
        self._set(loc, None, validate=validate)

    @property
    def loc(self) -> Float[Tensor, "..."]:
        """The location."""
        return self.logits

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the CDF at a value."""
        return cast(
            torch.exp(-torch.exp(to_float64(self.logits) - to_float64(self._checked(value)))), self.logits.dtype
        )

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the inverse CDF at a probability."""
        return self.push(-torch.log(-torch.log(check.as_fraction(value, validate=self._validate_args))))

    def entropy(self) -> Float[Tensor, "..."]:
        """Return the differential entropy."""
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
