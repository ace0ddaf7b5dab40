"""The base class of nodes: unbounded variables that score their own draws from the noise."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from ..functional.cast import cast, compute_dtype
from ..functional.draw import Drawn, draw_node, score_node
from ..functional.squash import Squashing
from ..functional.temperature import Temperature, as_precise
from ..noise import Source
from . import check
from .variable import Variable, expanded


class Node(Variable, Distribution):
    """A continuous random variable on an unbounded set.

    In the log density of its own draw the logits cancel, so it is exact for logits of any size and its total derivative
    by the logits is zero. The temperature broadcasts with the logits without their category axis to `batch_shape`.
    """

    arg_constraints = {"logits": constraints.real, "temperature": constraints.nonnegative}  # noqa: RUF012
    has_rsample = True
    law: Any
    """The functions of the family, such as the module `functional.logistic`."""

    def __init__(
        self, logits: Tensor | float, temperature: Temperature | None, *, validate_args: bool | None = None
    ) -> None:
        validate = check.validates(validate_args)
        logits = check.as_logits(logits, infinite="never", validate=validate)
        batch_shape, event_shape = check.split(logits, self.law.category_axes)
        if temperature is not None:
            self._temperature = check.as_temperature(temperature, validate=validate)
            batch_shape = check.broadcast(batch_shape, temperature)
        super().__init__(expanded(logits, batch_shape + event_shape), batch_shape, event_shape, validate=validate)

    @property
    def temperature(self) -> Tensor:
        """The temperature λ."""
        assert self._temperature is not None
        if isinstance(self._temperature, Tensor):
            return self._temperature
        return torch.full((), self._temperature, dtype=torch.float64, device=self.logits.device)

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the noise of samples."""
        shape, dtype = Size(sample_shape) + self.logits.shape, compute_dtype(self.logits.dtype)
        noise: Tensor = self.law.noise(shape, dtype, device=self.logits.device, generator=generator)
        return noise

    def push(self, noise: Tensor) -> Tensor:
        """Return the value made from noise: the deterministic part of sampling."""
        return self._rounded(self._push(self._shaped("noise", noise)))

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw values with a pathwise gradient."""
        return self.push(self.noise(sample_shape, generator=generator))

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw values and their exact log densities; use this in training."""
        drawn = self.drawn(sample_shape, generator=generator)
        return self._rounded(drawn.value), cast(drawn.score(), self.logits.dtype)

    def drawn(
        self,
        sample_shape: Sequence[int] = (),
        *,
        generator: Source | None = None,
        squashing: Squashing | None = None,
        axes: int = 0,
    ) -> Drawn:
        """Draw unrounded nodes, squash them, and return the functions that score the nodes.

        `axes` is the number of last batch axes that the caller will sum over, a hint for fusion.
        """
        self._require_density()
        return draw_node(
            self.law, *self._parameters, sample_shape=sample_shape, generator=generator, squashing=squashing, axes=axes
        )

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of a value."""
        return self.summed_log_prob(self._checked(value), 0)

    def summed_log_prob(self, value: Tensor, axes: int) -> Tensor:
        """Return the log density of a value in the support, summed over the last `axes` batch axes."""
        return score_node(self.law, value, *self._parameters, axes=axes)

    def log_prob_of_noise_(self, noise: Tensor) -> Tensor:
        """Return the log density of the value made from noise; overwrites the noise."""
        self._require_density()
        return cast(self._log_density_of_noise(noise), self.logits.dtype)

    @property
    def _parameters(self) -> tuple[Any, ...]:
        """The parameters that the functions of the law take."""
        return (self.logits,) if self._temperature is None else (self.logits, as_precise(self._temperature))

    @property
    def _batch_temperature(self) -> Temperature:
        """The temperature in float64, if it is a tensor."""
        assert self._temperature is not None
        return as_precise(self._temperature)

    def _push(self, noise: Tensor) -> Tensor:
        """Return the unrounded value made from noise."""
        value: Tensor = self.law.push(*self._parameters, noise)
        return value

    def _log_density_of_noise(self, noise: Tensor) -> Tensor:
        """Return the unrounded log density of the value made from noise; overwrites the noise."""
        log_density: Tensor = self.law.log_density_of_noise(noise, *self._parameters[1:])
        return log_density

    def _filled(self, constant: Temperature) -> Tensor:
        """Expand a constant that does not depend on the logits to the batch shape."""
        self._require_density()
        filled = torch.as_tensor(constant, dtype=torch.float64, device=self.logits.device)
        return cast(filled.expand(self.batch_shape), self.logits.dtype)
