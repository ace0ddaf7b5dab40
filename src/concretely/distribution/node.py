"""`Node`, an unbounded variable that scores its draws from their noise, and `Relaxation`, a squashed `Node`.

In graphs and models, a node is any random variable. Here it is the unbounded variable before squashing.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from ..functional.arithmetic import Temperature, as_precise, cast, compute_dtype, filled, to_float64
from ..functional.draw import Drawn, draw_node, score_node, sum_axes
from ..functional.log_simplex import other_form
from ..functional.noise import Source
from ..functional.squashing import Score, Squashing
from . import check
from .variable import RelaxedVariable, Variable, expanded

VECTOR = {"logits": constraints.real_vector, "temperature": constraints.nonnegative}
"""The constraints on the parameters of a variable with a last axis of categories."""


class Node(Variable, Distribution):
    """A continuous random variable on an unbounded set.

    The log density of a draw is computed from its noise, without the logits. It is therefore exact for logits of any
    size, and its total derivative by the logits is zero. The temperature has no category axis; it broadcasts with the
    other axes of the logits to `batch_shape`.
    """

    arg_constraints = {"logits": constraints.real, "temperature": constraints.nonnegative}  # noqa: RUF012
    has_rsample = True
    law: Any
    """The functions of the family, such as the module `functional.logistic`."""

    def __init__(
        self,
        *positional: Any,
        logits: Tensor | float | None = None,
        probs: Tensor | float | None = None,
        temperature: Temperature | None = None,
        validate_args: bool | None = None,
    ) -> None:
        validate = check.validates(validate_args, logits, probs)
        given = self._given(positional, logits, probs, validate=validate)
        own = check.as_logits(given, infinite="never", validate=validate)
        self._set(own, check.as_temperature(temperature, dtype=own.dtype, validate=validate), validate=validate)

    @classmethod
    def of_finite(cls, logits: Tensor, temperature: Temperature, *, validate: bool) -> Self:
        """Build the variable from logits that are known to be finite, and check only the temperature."""
        new = cls.__new__(cls)
        new._set(logits, check.as_temperature(temperature, dtype=logits.dtype, validate=validate), validate=validate)
        return new

    def _set(self, logits: Tensor, temperature: Temperature | None, *, validate: bool) -> None:
        """Set the parameters and the shapes that follow from them."""
        batch_shape, event_shape = check.split(logits, self.law.category_axes)
        if temperature is not None:
            self._temperature = temperature
            batch_shape = check.broadcast(batch_shape, temperature)
        super().__init__(expanded(logits, batch_shape + event_shape), batch_shape, event_shape, validate=validate)

    @property
    def temperature(self) -> Tensor:
        """The temperature λ."""
        assert self._temperature is not None
        if isinstance(self._temperature, Tensor):
            return self._temperature
        return filled((), self._temperature, self.logits.device)

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the noise from which `push` makes samples."""
        shape, dtype = Size(sample_shape) + self.logits.shape, compute_dtype(self.logits.dtype)
        noise: Tensor = self.law.noise(shape, dtype, device=self.logits.device, generator=generator)
        return noise

    def push(self, noise: Tensor) -> Tensor:
        """Return the value made from noise: the deterministic part of sampling."""
        return self._rounded(self._push(self._shaped("noise", noise)))

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw values with a pathwise gradient."""
        return self._rounded(self._drawn(sample_shape, generator).value)

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw values with a pathwise gradient, and their exact log densities. Use this in training."""
        self._require_density()
        drawn = self._drawn(sample_shape, generator, connects=True)
        return self._rounded(drawn.value), self._connected(cast(drawn.score(), self.logits.dtype))

    def drawn(
        self,
        sample_shape: Sequence[int] = (),
        *,
        generator: Source | None = None,
        squashing: Squashing | None = None,
        axes: int = 0,
    ) -> Drawn:
        """Draw values without rounding, and squash them if requested. Log densities are of the unsquashed values.

        `axes` is the number of last batch axes that the caller will sum over, a hint for fusion.
        """
        self._require_density()
        return self._drawn(sample_shape, generator, squashing, axes)

    def _drawn(
        self,
        sample_shape: Sequence[int],
        generator: Source | None,
        squashing: Squashing | None = None,
        axes: int = 0,
        *,
        connects: bool = False,
    ) -> Drawn:
        """Draw values as `drawn` does. At temperature zero they have no log density."""
        return draw_node(
            self.law,
            *self._parameters,
            sample_shape=sample_shape,
            generator=generator,
            squashing=squashing,
            axes=axes,
            connects=connects,
            finite=bool(self._validate_args),
        )

    def _connected(self, log_prob: Tensor) -> Tensor:
        """Give the log density of draws a gradient of zero by the logits, so that it can be differentiated alone."""
        logits = self.logits
        if not logits.requires_grad or log_prob.requires_grad or not torch.is_grad_enabled():
            return log_prob
        # a zero whose gradient is zero; as it is computed from the logits, a compiler draws and scores in one pass
        zero = (logits.sign() / 2).trunc()
        return log_prob + (zero.sum(-1) if self.law.category_axes else zero)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of a value."""
        return cast(self.summed_log_prob(self._checked(value), 0), self.logits.dtype)

    def summed_log_prob(self, value: Tensor, axes: int) -> Tensor:
        """Return the log density of a value in the support, in at least float32, summed over the last `axes` axes."""
        return score_node(self.law, value, *self._parameters, axes=axes)

    def log_prob_of_noise_(self, noise: Tensor) -> Tensor:
        """Return the log density of the value made from `noise`, which may be modified in place."""
        self._require_density()
        return cast(self._log_density_of_noise(noise), self.logits.dtype)

    @property
    def _parameters(self) -> tuple[Any, ...]:
        """The parameters that the functions of `law` take."""
        return (self.logits,) if self._temperature is None else (self.logits, as_precise(self._temperature))

    @property
    def _batch_temperature(self) -> Temperature:
        """The temperature: a float, or a tensor in float64."""
        assert self._temperature is not None
        return as_precise(self._temperature)

    def _push(self, noise: Tensor) -> Tensor:
        """Return the unrounded value made from noise."""
        value: Tensor = self.law.push(*self._parameters, noise)
        return value

    def _log_density_of_noise(self, noise: Tensor) -> Tensor:
        """Return the unrounded log density of the value made from `noise`, which may be modified in place."""
        log_density: Tensor = self.law.log_density_of_noise(noise, *self._parameters[1:])
        return log_density

    def _filled(self, constant: Temperature) -> Tensor:
        """Expand a constant that does not depend on the logits to the batch shape."""
        self._require_density()
        number = constant if isinstance(constant, Tensor) else filled((), constant, self.logits.device)
        return cast(number.expand(self.batch_shape), self.logits.dtype)


Made = tuple[Node, Squashing, Tensor, Size]
"""A node, its squashing, the logits of the variable and its event shape."""


class Relaxation(RelaxedVariable, Distribution):
    """A bounded variable: a squashed `Node`.

    `log_prob` depends on the value alone and is finite on the closed support. On the edge it averages the density over
    all numbers that round to the value. At low temperatures many draws are rounded to the edge. The log densities of
    `rsample_and_log_prob`, traces of graphs and `monte_carlo_kl` are exact nevertheless, as is `kl_divergence`.
    """

    _is_invertible = True
    """Whether `log_prob` is the log density of the value. Otherwise it is that of the unsquashed variable."""

    def __init__(
        self,
        *positional: Any,
        logits: Tensor | float | None = None,
        probs: Tensor | float | None = None,
        temperature: Temperature | None = None,
        validate_args: bool | None = None,
    ) -> None:
        given = self._given(positional, logits, probs, validate=check.validates(validate_args, logits, probs))
        self._set(*self._made(given, temperature, validate_args))

    @classmethod
    def of_node(cls, node: Node, squashing: Squashing) -> Self:
        """Build the variable from its node, whose logits and event shape it has, and the squashing."""
        new = cls.__new__(cls)
        new._set(node, squashing, node.logits, node.event_shape)
        return new

    def _set(self, node: Node, squashing: Squashing, logits: Tensor, event_shape: Size) -> None:
        """Set the parts that the variable is made of."""
        self._node, self._squashing, self._temperature = node, squashing, node._temperature
        super().__init__(logits, node.batch_shape, event_shape, validate=bool(node._validate_args))

    @abstractmethod
    def _made(self, logits: Any, temperature: Temperature | None, validate_args: bool | None) -> Made:
        """Return the parts that the variable is made of."""

    @property
    def node(self) -> Node:
        """The unbounded variable before squashing."""
        return self._node if self._node.batch_shape == self.batch_shape else self._node.expand(self.batch_shape)

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the noise from which `push` makes samples."""
        return self.node.noise(sample_shape, generator=generator)

    def push(self, noise: Tensor) -> Tensor:
        """Return the value made from noise: the deterministic part of sampling."""
        return self._value(self.node._push(self.node._shaped("noise", noise)))

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw values with a pathwise gradient."""
        return self._rounded(self.node._drawn(sample_shape, generator, self._squashing).value)

    def rsample_and_log_prob(
        self, sample_shape: Sequence[int] = (), *, generator: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw values with a pathwise gradient, and their exact log densities. Use this in training."""
        node = self.node
        node._require_density()
        drawn = node._drawn(sample_shape, generator, self._squashing, connects=not self._is_invertible)
        assert drawn.node is not None
        value, log_density = self._rounded(drawn.value), drawn.score()
        if self._is_invertible:
            return value, cast(log_density - self._squashing.log_abs_det_jacobian(drawn.node), self.logits.dtype)
        return value, node._connected(cast(log_density, self.logits.dtype))

    def drawn(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None, axes: int = 0) -> Drawn:
        """Draw values and their unsquashed values, with functions that return log densities of the unsquashed ones.

        `axes` is the number of last batch axes that the caller will sum over, a hint for fusion.
        """
        node = self.node
        drawn = node.drawn(sample_shape, generator=generator, squashing=self._squashing, axes=axes)
        assert drawn.node is not None
        return self._rounded_draw(drawn, self._rounded(drawn.value), node._rounded(drawn.node))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of a value."""
        score = self._score(value)
        slope = score.log_abs_det_jacobian if self._is_invertible else 0
        return cast(score.log_density - slope, self.logits.dtype)

    def node_log_prob(self, value: Tensor, axes: int = 0, *, node: Tensor | None = None) -> Tensor:
        """Return the log density of the unsquashed variable in at least float32, summed over the last `axes` axes.

        `node` is the unsquashed value, also that of a variable with other noise. By default it is computed from
        `value`.
        """
        if node is not None:
            own = self.node
            own_axes = value.dim() - len(self.event_shape) + own.law.category_axes
            return own.summed_log_prob(node if node.dim() == own_axes else other_form(node, own_axes), axes)
        return sum_axes(cast(self._score(value).log_density, compute_dtype(self.logits.dtype)), axes)

    def _score(self, value: Tensor) -> Score:
        node = self.node
        return self._squashing.score(self._checked(value), node.law, *node._parameters, dtype=self.logits.dtype)

    def _value(self, node: Tensor) -> Tensor:
        return self._rounded(self._squashing(node, self.logits.dtype))


def cdf_on_unit_interval(variable: Relaxation, value: Tensor) -> Tensor:
    """Return the CDF of a variable on the unit interval. Its gradient by the value is 0 on the edge."""
    value = to_float64(variable._checked(value))
    inside = (value > 0) & (value < 1)
    result = variable.node.cdf(torch.logit(torch.where(inside, value, 0.5)))
    return torch.where(inside, result, cast(value, result.dtype).detach())


def icdf_on_unit_interval(variable: Relaxation, value: Tensor) -> Tensor:
    """Return the inverse CDF of a variable on the unit interval."""
    return variable._value(to_float64(variable.node.icdf(value)))
