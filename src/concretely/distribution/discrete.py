"""Discrete variables: drawn and scored without a relaxation."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Size, Tensor
from torch.distributions import Distribution

from ..functional.cast import cast, compute_dtype
from ..functional.draw import Drawn, draw_state, score_state
from ..functional.temperature import Temperature
from ..noise import Source
from . import check
from .variable import Variable

if TYPE_CHECKING:
    from .relaxation import Relaxation


class DiscreteVariable(Variable, Distribution):
    """A discrete random variable."""

    has_enumerate_support = True

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Raise an error: the derivative of a discrete draw is zero wherever it exists."""
        name = type(self).__name__
        raise NotImplementedError(f"{name} has no pathwise gradient: draw from {name}(...).relax(temperature) instead")

    def sample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw values and their log masses."""
        drawn = self.drawn(sample_shape, generator=generator)
        return drawn.value, drawn.score()

    def drawn(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None, axes: int = 0) -> Drawn:
        """Draw values, and say how to compute their log masses.

        They are best asked for summed over so many of the last batch axes.
        """
        law, logits, squash = self._law
        drawn = draw_state(law, logits, squash=squash, sample_shape=sample_shape, generator=generator, axes=axes)
        return drawn._replace(value=self._from_law(drawn.value))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log mass of a value."""
        return self._summed_log_mass(self._checked(value), 0)

    def summed_log_prob(self, value: Tensor, axes: int) -> Tensor:
        """The log mass of a value, summed over the last batch axes."""
        return self._summed_log_mass(self._checked(value), axes)

    def interpolated_log_prob(self, value: Tensor, node: Tensor | None = None) -> Tensor:
        """The log masses of the states, weighted as a relaxed value weights the states; at a state, its log mass.

        It has a derivative in the value. Put in place of a density it leaves an objective that bounds nothing. Where a
        value does not determine its weights, as on a hypercube, those of its node are taken, if it is given.
        """
        return cast(self._interpolated_log_mass(self._shaped("value", value), node), self.logits.dtype)

    @abstractmethod
    def relax(self, temperature: Temperature) -> "Relaxation":
        """The relaxation with the same logits."""

    def relax_gaussian(self, temperature: Temperature) -> "Relaxation":
        """The relaxation with the same logits by Gaussian noise, where there is one."""
        raise NotImplementedError(f"{type(self).__name__} has no relaxation by normal noise")

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the noise behind so many samples: logistic if binary, else Gumbel for every category."""
        law, logits, _ = self._law
        shape, dtype = Size(sample_shape) + logits.shape, compute_dtype(logits.dtype)
        noise: Tensor = law.noise(shape, dtype, device=logits.device, generator=generator)
        return noise

    def push(self, noise: Tensor) -> Tensor:
        """The state that noise becomes: all of sampling but the randomness."""
        law, logits, squash = self._law
        event_shape = logits.shape[logits.dim() - law.category_axes :]
        noise = check.as_shaped("noise", noise, batch_shape=self.batch_shape, event_shape=event_shape)
        return self._from_law(law.push(logits, noise, squash))

    @property
    @abstractmethod
    def _law(self) -> tuple[Any, Tensor, str]:
        """The functions of its family, such as the module `functional.bernoulli`, its logits there, and its states."""

    def _from_law(self, state: Tensor) -> Tensor:
        """A state as the functions of the family give it, as a value."""
        return state

    def _to_law(self, value: Tensor) -> Tensor:
        """A value as the functions of the family take it."""
        return value

    def _summed_log_mass(self, value: Tensor, axes: int) -> Tensor:
        """The log mass of a value in the support, summed over the last batch axes, in the dtype of the logits."""
        law, logits, squash = self._law
        return score_state(law, self._to_law(value), logits, squash=squash, axes=axes)

    @abstractmethod
    def _interpolated_log_mass(self, value: Tensor, node: Tensor | None) -> Tensor:
        """The log masses of the states, weighted as a value weights the states."""
