"""Binary variables: the Bernoulli mass and its relaxation on the unit interval."""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid

from .. import noise
from ..functional.affine import affine
from ..functional.likelihood import affine_log_likelihood, log_likelihood
from ..kernel import bernoulli as kernel
from ..noise import Source
from . import check, fused
from .base import Mass
from .cast import cast, wide, working
from .logistic import Logistic
from .squash import OnUnitInterval
from .temperature import Temperature
from .variable import Variable


class Bernoulli(Mass):
    r"""A variable on 0 and 1 with log-odds log α.

    $$X = 1 \text{ if } L + \log α ≥ 0 \text{ else } 0$$

    See [maddison2017concrete], appendix B and cheat sheet.

    >>> Bernoulli(torch.tensor([-1e4, 1e4])).sample()
    tensor([0., 1.])
    """

    arg_constraints = {"logits": constraints.real}  # noqa: RUF012
    support = constraints.boolean
    _affine: tuple[Tensor, Tensor, Tensor]
    _differentiates: bool

    def __init__(self, logits: Tensor | float, *, validate_args: bool | None = None) -> None:
        validate = check.validates(validate_args)
        logits = check.as_logits(logits, infinite="either", validate=validate)
        super().__init__(logits, logits.shape, Size(), validate=validate)

    @classmethod
    def from_probs(cls, probs: Tensor | float, *, validate_args: bool | None = None) -> Self:
        """Build the variable from the probability of 1."""
        return cls(check.as_log_odds(probs, validate_args=validate_args), validate_args=validate_args)

    @classmethod
    def from_affine(
        cls,
        state: Float[Tensor, "*batch inputs"],
        weight: Float[Tensor, "units inputs"],
        bias: Float[Tensor, " units"],
    ) -> Self:
        """Build the variable from a state and the affine map that makes logits of it.

        The logits are computed when they are first used. A kernel scores values without them.
        """
        new = cls.__new__(cls)
        new._affine, new._differentiates = (state, weight, bias), torch.is_grad_enabled()
        super(Variable, new).__init__(Size((*state.shape[:-1], len(weight))), Size(), validate_args=False)
        return new

    def __getattr__(self, name: str) -> Tensor:
        if name != "logits" or "_affine" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with torch.set_grad_enabled(self._differentiates):  # as they would be computed by the layer, whoever asks
            logits = affine(*self._affine, False)
        self.logits = cast(logits, working(logits.dtype))
        return self.logits

    def relax(self, temperature: Temperature) -> "BinaryConcrete":
        """The Concrete variable with the same logits."""
        return BinaryConcrete(self.logits, temperature, validate_args=self._validate_args)

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw standard logistic noise."""
        return self._drawn(noise.logistic, sample_shape, generator)

    def push(self, noise: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """One where the noisy log-odds are not negative."""
        return (self.logits + self._shaped("noise", noise) >= 0).to(self.logits.dtype)

    def _fused(self, sample_shape: Sequence[int], generator: Source | None, axes: int) -> fused.Draw | None:
        return self._unit.draw(sample_shape, self.batch_shape, generator, "bit", axes)

    def _fused_score(self, value: Tensor, axes: int) -> Tensor | None:
        lead = self.logits.shape[: self.logits.dim() - value.dim()]
        if axes and fused.suits(self.logits) and self.logits.shape == lead + value.shape:
            return log_likelihood(self.logits, value, axes)
        return self._unit.score(value, axes, "bit")

    @property
    def _unit(self) -> fused.Unit:
        return fused.Unit(kernel, self.logits, 0)

    def summed_log_prob(self, value: Tensor, axes: int) -> Tensor:
        """The log mass of a value, summed over the last axes of the batch."""
        if axes == 1 and "logits" not in vars(self):
            return affine_log_likelihood(*self._affine, self._checked(value))[0]
        return super().summed_log_prob(value, axes)

    def _log_mass(self, value: Tensor) -> Tensor:
        logits = cast(self.logits, working(self.logits.dtype))
        sign = 2 * value.detach().to(logits.dtype) - 1
        return logsigmoid(logits * sign)  # one pass, where a choice between the logits and their negative takes three

    def _interpolated_log_mass(self, value: Tensor) -> Tensor:
        logits, value = (cast(tensor, working(tensor.dtype)) for tensor in (self.logits, value))
        # an impossible state that the value leaves out adds nothing
        one = torch.where(value == 0, 0, logsigmoid(logits))
        zero = torch.where(value == 1, 0, logsigmoid(-logits))
        return value * one + (1 - value) * zero

    @property
    def probs(self) -> Float[Tensor, "..."]:
        """The probability of 1."""
        return cast(torch.sigmoid(wide(self.logits)), self.logits.dtype)

    @property
    def mean(self) -> Float[Tensor, "..."]:
        """The expected value."""
        return self.probs

    @property
    def mode(self) -> Float[Tensor, "..."]:
        """The most probable value."""
        return (self.logits >= 0).to(self.logits.dtype)

    @property
    def variance(self) -> Float[Tensor, "..."]:
        """The variance."""
        logits = wide(self.logits)
        return cast(torch.sigmoid(logits) * torch.sigmoid(-logits), self.logits.dtype)

    def entropy(self) -> Float[Tensor, "..."]:
        """The entropy in nats."""
        size = wide(self.logits).abs()
        certain = torch.where(size.isinf(), 0, size)  # an impossible state adds nothing
        return cast(torch.log1p(torch.exp(-size)) + torch.sigmoid(-size) * certain, self.logits.dtype)

    def enumerate_support(self, expand: bool = True) -> Float[Tensor, "2 ..."]:
        """The two states, along a new first axis."""
        states = torch.arange(2, dtype=self.logits.dtype, device=self.logits.device)
        states = states.view(-1, *(1 for _ in self.batch_shape))
        return states.expand(-1, *self.batch_shape) if expand else states


class BinaryConcrete(OnUnitInterval):
    r"""A Concrete variable on the unit interval, the relaxation of a Bernoulli one.

    $$X = σ((L + \log α) / λ)$$

    At temperatures up to 1 its density is log-convex, so that no mode lies inside. A drawn value remembers its node,
    and `log_prob` scores it there; a value rounded to the edge that has lost its node is refused.
    See [maddison2017concrete], appendix B.

    >>> relaxed = Bernoulli(torch.tensor(8.0)).relax(temperature=0.05)
    >>> value, log_prob = relaxed.rsample_and_log_prob((4,))
    >>> bool((relaxed.log_prob(value) - log_prob).abs().max() < 1e-3)
    True
    """

    def __init__(self, logits: Tensor | float, temperature: Temperature, *, validate_args: bool | None = None) -> None:
        node = Logistic(logits, temperature, validate_args=validate_args)
        super().__init__(node, logits=node.logits, event_shape=Size())

    @classmethod
    def from_probs(cls, probs: Tensor | float, temperature: Temperature, *, validate_args: bool | None = None) -> Self:
        """Build the variable from the probability that it rounds to 1."""
        return cls(check.as_log_odds(probs, validate_args=validate_args), temperature, validate_args=validate_args)

    def discretize(self) -> Bernoulli:
        """The Bernoulli variable with the same logits."""
        return Bernoulli(self.logits, validate_args=self._validate_args)
