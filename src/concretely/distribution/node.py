"""Nodes: continuous and unbounded variables that know the log density of their own draws from the noise alone."""

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
    """A continuous random variable on an unbounded set: the one whose density is scored.

    The logits cancel in the log density of an own draw. It is exact at any size of the logits, and its total
    derivative in them, along the value and directly, is zero. The temperature broadcasts against the shape of the
    logits less their category axis; the result is `batch_shape`.
    """

    arg_constraints = {"logits": constraints.real, "temperature": constraints.nonnegative}  # noqa: RUF012
    has_rsample = True
    law: Any
    """The functions of its family, such as the module `functional.logistic`."""

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
        """Draw the noise behind so many samples."""
        shape, dtype = Size(sample_shape) + self.logits.shape, compute_dtype(self.logits.dtype)
        noise: Tensor = self.law.noise(shape, dtype, device=self.logits.device, generator=generator)
        return noise

    def push(self, noise: Tensor) -> Tensor:
        """The value that noise becomes: all of sampling but the randomness."""
        return self._rounded(self._push(self._shaped("noise", noise)))

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw values that carry the pathwise gradient."""
        return self.push(self.noise(sample_shape, generator=generator))

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw values and their log densities from the same noise: the form to train with."""
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
        """Draw nodes and what they are squashed to, unrounded, and say how to compute their log densities.

        They are best asked for summed over so many of the last batch axes.
        """
        self._require_density()
        return draw_node(
            self.law, *self._parameters, sample_shape=sample_shape, generator=generator, squashing=squashing, axes=axes
        )

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of a value."""
        return self.summed_log_prob(self._checked(value), 0)

    def summed_log_prob(self, value: Tensor, axes: int) -> Tensor:
        """The log density of a value in the support, summed over the last batch axes."""
        return score_node(self.law, value, *self._parameters, axes=axes)

    def log_prob_of_noise_(self, noise: Tensor) -> Tensor:
        """The log density of the value that noise becomes; the noise is overwritten."""
        self._require_density()
        return cast(self._log_density_of_noise(noise), self.logits.dtype)

    @property
    def _parameters(self) -> tuple[Any, ...]:
        """What the functions of the law take beside a value or noise."""
        return (self.logits,) if self._temperature is None else (self.logits, as_precise(self._temperature))

    @property
    def _batch_temperature(self) -> Temperature:
        """The temperature in float64, if it is a tensor."""
        assert self._temperature is not None
        return as_precise(self._temperature)

    def _push(self, noise: Tensor) -> Tensor:
        """The value that noise becomes, unrounded."""
        value: Tensor = self.law.push(*self._parameters, noise)
        return value

    def _log_density_of_noise(self, noise: Tensor) -> Tensor:
        """The log density of the value that noise becomes, unrounded; the noise is overwritten."""
        log_density: Tensor = self.law.log_density_of_noise(noise, *self._parameters[1:])
        return log_density

    def _filled(self, constant: Temperature) -> Tensor:
        """A quantity of the density that the logits do not change, for every member of the batch."""
        self._require_density()
        filled = torch.as_tensor(constant, dtype=torch.float64, device=self.logits.device)
        return cast(filled.expand(self.batch_shape), self.logits.dtype)
