"""Categorical variables: the discrete mass on one-hot vectors and its relaxation on the simplex."""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.distributions import constraints

from .. import noise
from ..kernel import discrete as kernel
from ..noise import Source
from . import check, fused
from .base import Mass, Relaxation
from .cast import cast, wide
from .constraint import one_hot
from .exp_concrete import ExpConcrete
from .log_simplex import one_hot_argmax, perturb
from .squash import OnSimplex
from .temperature import Temperature


class Discrete(Mass):
    r"""A one-hot vector with unnormalised log probabilities log α.

    $$X_k = 1 \text{ if } \log α_k + G_k \text{ is the largest of all, else } 0$$

    A logit of minus infinity rules a category out. See [maddison2017concrete], section 3.1.

    >>> Discrete(torch.tensor([0.0, 1e4, 0.0])).sample()
    tensor([0., 1., 0.])
    """

    arg_constraints = {"logits": constraints.real_vector}  # noqa: RUF012
    support = one_hot

    def __init__(self, logits: Tensor, *, validate_args: bool | None = None) -> None:
        validate = check.validates(validate_args)
        logits = check.as_logits(logits, infinite="minus", validate=validate)
        batch_shape, event_shape = check.split(logits, 1)
        super().__init__(logits, batch_shape, event_shape, validate=validate)

    @classmethod
    def from_probs(cls, probs: Tensor, *, validate_args: bool | None = None) -> Self:
        """Build the variable from the probabilities of its categories."""
        return cls(check.as_log_probs(probs, validate_args=validate_args), validate_args=validate_args)

    def relax(self, temperature: Temperature) -> "Concrete":
        """The Concrete variable with the same logits."""
        return Concrete(self.logits, temperature, validate_args=self._validate_args)

    def control(self, temperature: Temperature) -> Relaxation:
        """The logistic-normal variable with the same logits."""
        from .logistic_normal import LogisticNormal

        return LogisticNormal(self.logits, temperature, validate_args=self._validate_args)

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw standard Gumbel noise for every category."""
        return self._drawn(noise.gumbel, sample_shape, generator)

    def push(self, noise: Float[Tensor, "*shape n"]) -> Float[Tensor, "*shape n"]:
        """One at the largest noisy logit."""
        return one_hot_argmax(perturb(self.logits, self._shaped("noise", noise))).to(self.logits.dtype)

    def _fused(self, sample_shape: Sequence[int], generator: Source | None, axes: int) -> fused.Draw | None:
        return self._unit.draw(sample_shape, self.batch_shape, generator, "one-hot", axes)

    def _log_probs(self) -> Tensor:
        return wide(self.logits).log_softmax(-1)

    def _fused_score(self, value: Tensor, axes: int) -> Tensor | None:
        return self._unit.score(value, axes, "one-hot")

    @property
    def _unit(self) -> fused.Unit:
        return fused.Unit(kernel, self.logits, 1)

    def _log_mass(self, value: Tensor) -> Tensor:
        return log_mass_of(self._log_probs(), value.argmax(-1))

    def _interpolated_log_mass(self, value: Tensor) -> Tensor:
        return weighed(self._log_probs(), wide(value))

    @property
    def probs(self) -> Float[Tensor, "*batch n"]:
        """The probabilities of the categories."""
        return cast(self._log_probs().exp(), self.logits.dtype)

    @property
    def mean(self) -> Float[Tensor, "*batch n"]:
        """The expected value."""
        return self.probs

    @property
    def mode(self) -> Float[Tensor, "*batch n"]:
        """The most probable value."""
        return one_hot_argmax(self.logits)

    @property
    def variance(self) -> Float[Tensor, "*batch n"]:
        """The variance of each entry."""
        probs = self._log_probs().exp()
        return cast(probs * (1 - probs), self.logits.dtype)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """The entropy in nats."""
        return cast(-expected(self._log_probs(), self._log_probs()), self.logits.dtype)

    def enumerate_support(self, expand: bool = True) -> Float[Tensor, "n ..."]:
        """The n states, along a new first axis."""
        n = self.event_shape[0]
        states = torch.eye(n, dtype=self.logits.dtype, device=self.logits.device)
        states = states.view(n, *(1 for _ in self.batch_shape), n)
        return states.expand(n, *self.batch_shape, n) if expand else states


def log_mass_of(log_probs: Tensor, category: Tensor) -> Tensor:
    """The log probability of a category."""
    shape = Size(torch.broadcast_shapes(log_probs.shape[:-1], category.shape))
    log_probs = log_probs.expand(shape + log_probs.shape[-1:])
    return log_probs.gather(-1, category.expand(shape).unsqueeze(-1)).squeeze(-1)


def weighed(log_probs: Tensor, weight: Tensor) -> Tensor:
    """The sum of weights times log probabilities, to which impossible categories of no weight add nothing."""
    return (weight * torch.where(weight == 0, 0, log_probs)).sum(-1)


def expected(log_probs: Tensor, quantity: Tensor) -> Tensor:
    """The expectation of a quantity over categories, to which impossible ones add nothing."""
    return weighed(quantity, log_probs.exp())


class Concrete(OnSimplex):
    r"""A Concrete variable on the simplex, the relaxation of a discrete one.

    $$X = \mathrm{softmax}((\log α + G) / λ), \quad
    p(x) = (n-1)! \, λ^{n-1} \prod_k α_k x_k^{-λ-1} / \sum_i α_i x_i^{-λ}$$

    At temperatures up to 1 / (n-1) its density is log-convex, so that no mode lies inside. A drawn value remembers its
    node, and `log_prob` scores it there. See [maddison2017concrete], definition 1 and proposition 1.

    >>> relaxed = Discrete(torch.tensor([0.7, -0.7, 0.0])).relax(temperature=0.5)
    >>> value, log_prob = relaxed.rsample_and_log_prob((4,))
    >>> value.shape, log_prob.shape
    (torch.Size([4, 3]), torch.Size([4]))
    """

    node_class = ExpConcrete

    def discretize(self) -> Discrete:
        """The discrete variable with the same logits."""
        return Discrete(self.logits, validate_args=self._validate_args)
