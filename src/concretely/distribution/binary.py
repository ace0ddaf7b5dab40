"""The Bernoulli variable and its relaxation on the unit interval."""

from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.distributions import constraints

from concretely.functional.bernoulli import affine_log_likelihood, log_likelihood

from ..functional import bernoulli
from ..functional.arithmetic import Temperature, affine, cast, compute_dtype, to_float64
from ..functional.squashing import Sigmoid
from . import check
from .logistic import Logistic
from .node import Made, Relaxation, cdf_on_unit_interval, icdf_on_unit_interval
from .variable import DiscreteVariable, Variable


class _AffineLogits:
    """Logits computed by an affine map on first use, unless they were given."""

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None or "_affine" not in vars(instance):
            raise AttributeError(f"{owner.__name__!r} object has no attribute 'logits'")
        with torch.set_grad_enabled(instance._differentiates):  # the grad mode at construction
            state, weight, bias = instance._affine
            logits = affine(state, weight, bias, False)
        instance.logits = cast(logits, compute_dtype(logits.dtype))
        return instance.logits


class Bernoulli(DiscreteVariable):
    r"""A variable on 0 and 1 with log-odds log α, drawn by adding logistic noise L.

    $$X = 1 \text{ if } L + \log α ≥ 0 \text{ else } 0$$

    Give either `logits`, the log-odds, or `probs`, the probability of 1. See [maddison2017concrete], appendix B and
    cheat sheet.

    >>> Bernoulli(logits=torch.tensor([-1e4, 1e4])).sample()
    tensor([0., 1.])
    """

    arg_constraints = {"logits": constraints.real}  # noqa: RUF012
    _infinite = "either"
    support = constraints.boolean
    _conversion = check.LOG_ODDS
    logits: Tensor = _AffineLogits()  # type: ignore[assignment]
    _affine: tuple[Tensor, Tensor, Tensor]
    _differentiates: bool

    @staticmethod
    def _split(logits: Tensor) -> tuple[Tensor, Size, Size]:
        return logits, logits.shape, Size()

    @classmethod
    def from_affine(
        cls,
        state: Float[Tensor, "*batch inputs"],
        weight: Float[Tensor, "units inputs"],
        bias: Float[Tensor, " units"],
    ) -> Self:
        """Build the variable from a state and an affine map to the logits.

        The logits are computed on first use. A kernel can score values without computing them.
        """
        new = cls.__new__(cls)
        new._affine, new._differentiates = (state, weight, bias), torch.is_grad_enabled()
        super(Variable, new).__init__(Size((*state.shape[:-1], len(weight))), Size(), validate_args=False)
        return new

    def unfold(self, samples: int) -> Self:
        """Return the variable with its first batch axis split into samples and data points."""
        if "logits" in vars(self):
            return super().unfold(samples)
        state, weight, bias = self._affine
        return type(self).from_affine(state.unflatten(0, (samples, -1)), weight, bias)

    def relax(self, temperature: Temperature) -> "BinaryConcrete":
        """Return the Concrete variable with the same logits."""
        if self._is_finite:
            node = Logistic.of_finite(self.logits, temperature, validate=self._validate_args)
            return BinaryConcrete.of_node(node, Sigmoid())
        return BinaryConcrete(logits=self.logits, temperature=temperature, validate_args=self._validate_args)

    @property
    def _law(self) -> tuple[Any, Tensor, str]:
        return bernoulli, self.logits, "bit"

    def _summed_log_mass(self, value: Tensor, axes: int) -> Tensor:
        if axes == 1 and "logits" not in vars(self):
            return affine_log_likelihood(*self._affine, value)[0]
        if axes and self.logits.shape[self.logits.dim() - value.dim() :] == value.shape:
            return log_likelihood(self.logits, value, axes)
        return super()._summed_log_mass(value, axes)

    def _interpolated_log_mass(self, value: Tensor, node: Tensor | None) -> Tensor:
        return bernoulli.interpolated_log_mass(value, self.logits)

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
        logits = to_float64(self.logits)
        return cast(torch.sigmoid(logits) * torch.sigmoid(-logits), self.logits.dtype)

    def entropy(self) -> Float[Tensor, "..."]:
        """Return the entropy in nats."""
        size = to_float64(self.logits).abs()
        finite = torch.where(size.isinf(), 0, size)  # avoid 0 times infinity
        return cast(torch.log1p(torch.exp(-size)) + torch.sigmoid(-size) * finite, self.logits.dtype)

    def enumerate_support(self, expand: bool = True) -> Float[Tensor, "2 ..."]:
        """Return the two states along a new first axis."""
        states = torch.arange(2, dtype=self.logits.dtype, device=self.logits.device)
        states = states.view(-1, *(1 for _ in self.batch_shape))
        return states.expand(-1, *self.batch_shape) if expand else states


class BinaryConcrete(Relaxation):
    r"""The Concrete relaxation of a Bernoulli variable, on the unit interval, with logistic noise L.

    $$X = σ((L + \log α) / λ)$$

    Give either `logits`, here log α, or `probs`, and `temperature`, here λ. At temperatures up to 1 the density is
    log-convex and has no mode inside the interval.
    See [maddison2017concrete], appendix B.

    >>> relaxed = Bernoulli(logits=torch.tensor(1.0)).relax(temperature=0.5)
    >>> value, log_prob = relaxed.rsample_and_log_prob((4,))
    >>> value.shape, log_prob.shape
    (torch.Size([4]), torch.Size([4]))
    """

    support = constraints.unit_interval
    _conversion = check.LOG_ODDS

    def _made(self, logits: Any, temperature: Temperature | None, validate_args: bool | None) -> Made:
        node = Logistic(logits=logits, temperature=temperature, validate_args=validate_args)
        return node, Sigmoid(), node.logits, Size()

    def discretize(self) -> Bernoulli:
        """Return the Bernoulli variable with the same logits."""
        return Bernoulli(logits=self.logits, validate_args=self._validate_args)

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the CDF at a value."""
        return cdf_on_unit_interval(self, value)

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the inverse CDF at a probability."""
        return icdf_on_unit_interval(self, value)
