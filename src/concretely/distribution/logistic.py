"""The logistic node: the log-odds of a binary Concrete variable, and what is scored in its place."""

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import softplus

from .. import noise
from ..kernel import logistic as kernel
from ..noise import Source
from . import check, fused
from . import recover as recovery
from .cast import cast, wide, working
from .node import Tempered
from .temperature import Temperature, cool, log


def push(logits: Float[Tensor, "..."], temperature: Temperature, noise: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The noisy log-odds over the temperature, and its sign times infinity where that is zero."""
    return cool(logits + noise, temperature, lambda total: torch.where(total >= 0, math.inf, -math.inf))


def standard_log_density(noise: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The log density of standard logistic noise, which is used up."""
    size = noise.abs_().neg_()
    return softplus(size).mul_(-2).add_(size)


class _LogDensity(torch.autograd.Function):
    """The log density of float32 values and, to differentiate it, their noise: fewer steps than one by one.

    It is written in the older of two ways, for which `torch.func` has no transforms but whose calls take half as long.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        noise = recovery.narrow(value, logits, temperature).to(torch.float32)
        recovery.keep(ctx, value, logits, temperature)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(noise)
        return standard_log_density(noise.clone()).add_(math.log(temperature)), noise

    @staticmethod
    def backward(ctx: Any, *grad: Tensor | None) -> tuple[Tensor | None, ...]:
        (noise,) = ctx.saved_tensors
        parts = [grad[1], None if grad[0] is None else -grad[0] * torch.tanh(noise / 2)]
        found = [part for part in parts if part is not None]
        return (*recovery.pull(ctx, sum(found[1:], found[0])), None) if found else (None, None, None)


class Logistic(Tempered):
    r"""A logistic variable, the stochastic node of a binary Concrete one.

    $$Y = (L + \log α) / λ, \qquad \log g(y) = \log λ + d - 2 \log(1 + e^d), \quad d = \log α - λ y$$

    See [maddison2017concrete], appendix C.3 and cheat sheet.

    >>> node = Logistic(torch.tensor([1e4, -50.0]), temperature=1e-3)
    >>> value, log_prob = node.rsample_and_log_prob((3,))
    >>> value.shape, bool(log_prob.isfinite().all())
    (torch.Size([3, 2]), True)
    """

    support = constraints.real
    category_axes = 0

    @classmethod
    def from_probs(cls, probs: Tensor | float, temperature: Temperature, *, validate_args: bool | None = None) -> Self:
        """Build the variable from the probability that its value is positive."""
        return cls(check.as_log_odds(probs, validate_args=validate_args), temperature, validate_args=validate_args)

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw standard logistic noise."""
        return self._drawn(noise.logistic, sample_shape, generator)

    def _fused(
        self, sample_shape: Sequence[int], generator: Source | None, squash: kernel.Squash, axes: int
    ) -> fused.Draw | None:
        return self._unit.draw(sample_shape, self.batch_shape, generator, squash, axes)

    def _fused_score(self, value: Tensor, axes: int) -> Tensor | None:
        return self._unit.score(value, axes)

    @property
    def _unit(self) -> fused.Unit:
        return fused.Unit(kernel, self.logits, 0, self._temperature)

    def _push(self, noise: Tensor) -> Tensor:
        return push(cast(self.logits, working(self.logits.dtype)), self._value_temperature, noise)

    def _log_density(self, value: Tensor) -> Tensor:
        temperature = self._value_temperature
        if recovery.is_narrow(value, self.logits, temperature) and not torch.compiler.is_compiling():
            try:
                return _LogDensity.apply(value, self.logits, temperature)[0]  # type: ignore[no-any-return, no-untyped-call]
            except RuntimeError:  # inside a transform of torch.func
                pass
        return self._log_density_of_noise(recovery.recover(value, self.logits, temperature))

    def _log_density_of_noise(self, noise: Tensor) -> Tensor:
        return standard_log_density(noise) + log(self._value_temperature)

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The probability of a smaller value."""
        return cast(
            torch.sigmoid(self._value_temperature * wide(self._checked(value)) - wide(self.logits)), self.logits.dtype
        )

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The value below which the variable falls with a given probability."""
        return self.push(torch.logit(check.as_fraction(value, validate=self._validate_args)))

    def entropy(self) -> Float[Tensor, "..."]:
        """The differential entropy."""
        return self._filled(2 - log(self._batch_temperature))

    @property
    def mean(self) -> Float[Tensor, "..."]:
        """The expected value."""
        return cast(wide(self.logits) / self._value_temperature, self.logits.dtype)

    @property
    def mode(self) -> Float[Tensor, "..."]:
        """The most probable value."""
        return self.mean

    @property
    def variance(self) -> Float[Tensor, "..."]:
        """The variance."""
        return self._filled((math.pi / self._batch_temperature) ** 2 / 3)
