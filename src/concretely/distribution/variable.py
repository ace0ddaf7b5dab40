"""The base classes of random variables.

The package `functional` computes in at least float32, and in float64 where terms may cancel. These classes check the
arguments, and round the results once to the dtype of the logits.
"""

import copy
import sys
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from ..functional.arithmetic import Temperature, as_precise, cast, compute_dtype, filled, is_finite
from ..functional.draw import Drawn, draw_state, score_state
from ..functional.log_simplex import cast_in_order
from ..functional.noise import Source
from . import check

if TYPE_CHECKING:
    _Base = Distribution
else:
    _Base = object


class _Borrowed:
    """A method of pyro's mixin for distributions, bound to the variable."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        try:
            from pyro.distributions.torch_distribution import TorchDistributionMixin
        except ImportError as error:
            raise AttributeError(f"{owner.__name__}.{self.name} is pyro's, which is not installed") from error
        return getattr(TorchDistributionMixin, self.name).__get__(instance, owner)


class PyroMixin(_Base):
    """Makes a distribution usable in `pyro.sample`."""

    event_dim = _Borrowed()
    expand_by = _Borrowed()
    has_rsample_ = _Borrowed()
    infer_shapes = _Borrowed()
    mask = _Borrowed()
    score_parts = _Borrowed()
    shape = _Borrowed()
    to_event = _Borrowed()

    def __init__(self, batch_shape: Size, event_shape: Size, *, validate_args: bool) -> None:
        # as torch's constructor does, which would also check the parameters
        self._batch_shape, self._event_shape, self._validate_args = batch_shape, event_shape, validate_args
        # pyro.sample checks isinstance; a program that has not imported pyro does not call it
        pyro = None if torch.compiler.is_compiling() else sys.modules.get("pyro.distributions.torch_distribution")
        if pyro is not None:
            pyro.TorchDistributionMixin.register(PyroMixin)

    def __call__(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw values, with a pathwise gradient if available."""
        shape = tuple(sample_shape)
        return self.rsample(Size(shape)) if self.has_rsample else self.sample(Size(shape))


def expanded(logits: Tensor, shape: Size) -> Tensor:
    """Expand logits to a shape. Return them unchanged if they have it, which saves an autograd operation."""
    return logits if logits.shape == shape else logits.expand(shape)


def _shown(parameter: Temperature) -> str:
    """Return a number as text, or the shape of a tensor with axes or without data that can be read."""
    if isinstance(parameter, Tensor) and not parameter.dim():
        with suppress(RuntimeError):  # on the meta device, in a fake mode, inside vmap
            parameter = parameter.item()
    return str(tuple(parameter.shape)) if isinstance(parameter, Tensor) else f"{parameter:.6g}"


class Variable(PyroMixin):
    """A random variable that is a deterministic function of its parameters and of noise.

    It is a mixin for torch's `Distribution`.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (declared so by torch)
    support: constraints.Constraint
    is_ranked = False
    """Whether the argmax of a value is its category."""
    _temperature: Temperature | None = None
    _conversion: check.Conversion

    def __init__(self, logits: Tensor, batch_shape: Size, event_shape: Size, *, validate: bool) -> None:
        self.logits = logits
        # our own checks, which name the value and its index, ran before
        super().__init__(batch_shape, event_shape, validate_args=validate)

    @classmethod
    def _given(
        cls, positional: tuple[Any, ...], logits: Tensor | float | None, probs: Tensor | float | None, *, validate: bool
    ) -> Tensor | float:
        """Return the logits from a constructor's arguments; raise unless either logits= or probs= is given."""
        if positional or (logits is None) == (probs is None):
            got = "both" if logits is not None and probs is not None else "neither"
            got = "arguments without a name" if positional else got
            more = " and temperature=" if "temperature" in cls.arg_constraints else ""
            raise TypeError(f"{cls.__name__} must be given logits= or probs={more}, got {got}")
        return cls._conversion.to_logits(probs, validate=validate) if logits is None else logits

    @property
    def probs(self) -> Tensor:
        """The probability of 1 for a binary variable, else the probabilities of the discrete states."""
        return cast(self._conversion.to_probs(self.logits), self.logits.dtype)

    @abstractmethod
    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the noise from which `push` makes samples."""

    @abstractmethod
    def push(self, noise: Tensor) -> Tensor:
        """Return the value made from noise: the deterministic part of sampling."""

    @abstractmethod
    def rsample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw values with a pathwise gradient."""

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
        """Round the log probabilities of a draw to the dtype of the logits, or to float32 if that is wider."""
        dtype, summed = compute_dtype(self.logits.dtype), drawn.summed
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
        given = {"temperature": self._temperature} if isinstance(self._temperature, float) else {}
        shown = (f"{name}: {_shown(given.get(name) or getattr(self, name))}" for name in self.arg_constraints)
        return f"{type(self).__name__}({', '.join(shown)})"


class DiscreteVariable(Variable, Distribution):
    """A discrete random variable."""

    has_enumerate_support = True
    _infinite: Literal["minus", "either"] = "minus"
    """Which infinite logits are allowed."""
    _is_finite = False
    """Whether all logits are known to be finite, so that a relaxation need not check them again."""
    _unchecked: Tensor | None = None
    """The logits as they were given, if their check is postponed."""

    def __init__(
        self,
        *positional: Any,
        logits: Tensor | float | None = None,
        probs: Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        validate = check.validates(validate_args, logits, probs)
        given = check.as_floating("logits", self._given(positional, logits, probs, validate=validate))
        if validate and check.postpones_checks():
            self._unchecked = given
        else:
            self._check_logits(given, validate=validate)
        own, *shapes = self._split(given)
        super().__init__(own, *shapes, validate=validate)

    def _check_logits(self, given: Tensor, *, validate: bool) -> None:
        """Raise an error for logits that are not allowed, and note whether all are finite."""
        self._is_finite = validate and is_finite(given) is True
        if not self._is_finite:
            check.as_logits(given, infinite=self._infinite, validate=validate)

    def require_checked(self) -> None:
        """Check the logits now, if their check was postponed (see `check.postponing_checks`)."""
        if self._unchecked is not None:
            given, self._unchecked = self._unchecked, None
            self._check_logits(given, validate=True)

    @property
    def states(self) -> int:
        """The number of states."""
        law, logits, _ = self._law
        return logits.shape[-1] if law.category_axes else 2

    @staticmethod
    @abstractmethod
    def _split(logits: Tensor) -> tuple[Tensor, Size, Size]:
        """Return the logits, the batch shape and the event shape."""

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Raise an error: a discrete draw has no pathwise gradient."""
        name = type(self).__name__
        raise NotImplementedError(f"{name} has no pathwise gradient: draw from {name}(...).relax(temperature) instead")

    def sample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw values and their log probabilities."""
        drawn = self.drawn(sample_shape, generator=generator)
        return drawn.value, cast(drawn.score(), self.logits.dtype)

    def drawn(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None, axes: int = 0) -> Drawn:
        """Draw values, with functions that return their log probabilities in at least float32.

        `axes` is the number of last batch axes that the caller will sum over, a hint for fusion.
        """
        law, logits, squash = self._law
        drawn = draw_state(law, logits, squash=squash, sample_shape=sample_shape, generator=generator, axes=axes)
        value = self._from_law(drawn.value)
        return drawn if value is drawn.value else drawn._replace(value=value)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log probability of a value."""
        return cast(self._summed_log_mass(self._checked(value), 0), self.logits.dtype)

    def summed_log_prob(self, value: Tensor, axes: int) -> Tensor:
        """Return the log probability of a value in at least float32, summed over the last `axes` batch axes."""
        return self._summed_log_mass(self._checked(value), axes)

    def interpolated_log_prob(self, value: Tensor, node: Tensor | None = None) -> Tensor:
        """Return the mean of the states' log probabilities, weighted by a relaxed value: Σₖ valueₖ log P(state k).

        The result is in at least float32. It is differentiable in the value and equals `log_prob` at a state. An
        objective that uses it instead of a density is not a bound. On a hypercube, the weights are exp(`node`) if the
        unsquashed value `node` is given.
        """
        log_mass = self._interpolated_log_mass(self._shaped("value", value), node)
        return cast(log_mass, compute_dtype(self.logits.dtype))

    def widened(self) -> Self:
        """Return the variable with its logits in at least float32."""
        if self.logits.dtype.itemsize > 2:
            return self
        new = copy.copy(self)
        new.logits = cast(self.logits, torch.float32)
        return new

    def unfold(self, samples: int) -> Self:
        """Return the variable with its first batch axis split into samples and data points."""
        new, lead = object.__new__(type(self)), (samples, self.batch_shape[0] // samples)
        vars(new).update(vars(self))
        new.logits = self.logits.view(*lead, *self.logits.shape[1:])
        new._batch_shape = Size((*lead, *self.batch_shape[1:]))
        return new

    @abstractmethod
    def relax(self, temperature: Temperature) -> "RelaxedVariable":
        """Return the Concrete relaxation with the same logits."""

    def relax_gaussian(self, temperature: Temperature) -> "RelaxedVariable":
        """Return the relaxation by Gaussian noise with the same logits; raise an error if there is none."""
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
        """The module of the family (such as `functional.bernoulli`), the logits for it, and its name for the states."""

    def _from_law(self, state: Tensor) -> Tensor:
        """Convert a state from the family's shape to a value."""
        return state

    def _to_law(self, value: Tensor) -> Tensor:
        """Convert a value to the family's shape."""
        return value

    def _summed_log_mass(self, value: Tensor, axes: int) -> Tensor:
        """Return the summed log probability of a value in the support, in at least float32."""
        law, logits, squash = self._law
        return score_state(law, self._to_law(value), logits, squash=squash, axes=axes)

    @abstractmethod
    def _interpolated_log_mass(self, value: Tensor, node: Tensor | None) -> Tensor:
        """Return the mean of the states' log probabilities, weighted by a value."""


class RelaxedVariable(Variable):
    """A continuous random variable that relaxes a discrete one and is a function of an unbounded variable, its node.

    It is a mixin for torch's `Distribution`.
    """

    arg_constraints = {"logits": constraints.real, "temperature": constraints.nonnegative}  # noqa: RUF012
    has_rsample = True

    @property
    def temperature(self) -> Tensor:
        """The temperature λ."""
        assert self._temperature is not None
        if isinstance(self._temperature, Tensor):
            return self._temperature
        return filled((), self._temperature, self.logits.device)

    @property
    def _precise(self) -> Temperature:
        """The temperature: a float, or a tensor in float64."""
        assert self._temperature is not None
        return as_precise(self._temperature)

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw values with a gradient, and the exact log densities of their nodes."""
        drawn = self.drawn(sample_shape, generator=generator)
        return drawn.value, cast(drawn.score(), self.logits.dtype)

    @abstractmethod
    def drawn(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None, axes: int = 0) -> Drawn:
        """Draw values and their unsquashed values, with functions that return log densities of the unsquashed ones."""

    @abstractmethod
    def node_log_prob(self, value: Tensor, axes: int = 0, *, node: Tensor | None = None) -> Tensor:
        """Return the log density of the unsquashed variable, summed over the last `axes` batch axes."""

    @abstractmethod
    def discretize(self) -> DiscreteVariable:
        """Return the discrete variable that this one relaxes."""
