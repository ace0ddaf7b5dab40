"""The base class of discrete variables."""

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
        """Raise an error: a discrete draw has no pathwise gradient."""
        name = type(self).__name__
        raise NotImplementedError(f"{name} has no pathwise gradient: draw from {name}(...).relax(temperature) instead")

    def sample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw values and their log probabilities."""
        drawn = self.drawn(sample_shape, generator=generator)
        return drawn.value, drawn.score()

    def drawn(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None, axes: int = 0) -> Drawn:
        """Draw values and the functions that score them.

        `axes` is the number of last batch axes that the caller will sum over, a hint for fusion.
        """
        law, logits, squash = self._law
        drawn = draw_state(law, logits, squash=squash, sample_shape=sample_shape, generator=generator, axes=axes)
        return drawn._replace(value=self._from_law(drawn.value))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log probability of a value."""
        return self._summed_log_mass(self._checked(value), 0)

    def summed_log_prob(self, value: Tensor, axes: int) -> Tensor:
        """Return the log probability of a value, summed over the last `axes` batch axes."""
        return self._summed_log_mass(self._checked(value), axes)

    def interpolated_log_prob(self, value: Tensor, node: Tensor | None = None) -> Tensor:
        """Return the mean log probability of the states, weighted by a relaxed value.

        It is differentiable in the value and equals `log_prob` at a state. An objective that uses it instead of a
        density is not a bound. On a hypercube the weights come from `node`, if given.
        """
        return cast(self._interpolated_log_mass(self._shaped("value", value), node), self.logits.dtype)

    @abstractmethod
    def relax(self, temperature: Temperature) -> "Relaxation":
        """Return the Concrete relaxation with the same logits."""

    def relax_gaussian(self, temperature: Temperature) -> "Relaxation":
        """Return the Gaussian relaxation with the same logits, if there is one."""
        raise NotImplementedError(f"{type(self).__name__} has no relaxation by normal noise")

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the noise of samples: logistic if binary, else Gumbel noise for every category."""
        law, logits, _ = self._law
        shape, dtype = Size(sample_shape) + logits.shape, compute_dtype(logits.dtype)
        noise: Tensor = law.noise(shape, dtype, device=logits.device, generator=generator)
        return noise

    def push(self, noise: Tensor) -> Tensor:
        """Return the state made from noise: the deterministic part of sampling."""
        law, logits, squash = self._law
        event_shape = logits.shape[logits.dim() - law.category_axes :]
        noise = check.as_shaped("noise", noise, batch_shape=self.batch_shape, event_shape=event_shape)
        return self._from_law(law.push(logits, noise, squash))

    @property
    @abstractmethod
    def _law(self) -> tuple[Any, Tensor, str]:
        """The functions of the family (such as `functional.bernoulli`), its logits, and the kind of states."""

    def _from_law(self, state: Tensor) -> Tensor:
        """Convert a state from the family's shape to a value."""
        return state

    def _to_law(self, value: Tensor) -> Tensor:
        """Convert a value to the family's shape."""
        return value

    def _summed_log_mass(self, value: Tensor, axes: int) -> Tensor:
        """Return the summed log probability of a value in the support, in the dtype of the logits."""
        law, logits, squash = self._law
        return score_state(law, self._to_law(value), logits, squash=squash, axes=axes)

    @abstractmethod
    def _interpolated_log_mass(self, value: Tensor, node: Tensor | None) -> Tensor:
        """Return the mean log probability of the states, weighted by a value."""
