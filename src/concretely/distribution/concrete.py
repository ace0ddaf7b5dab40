"""Categorical variables on one-hot vectors, and their relaxations on the simplex."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.distributions import constraints

from ..functional import categorical
from ..functional.arithmetic import Temperature, cast, to_float64
from ..functional.log_simplex import one_hot_argmax
from ..functional.squashing import Exponential
from . import check
from .constraint import one_hot, simplex
from .exp_concrete import ExpConcrete, ExpLogisticNormal
from .node import VECTOR, Made, Relaxation
from .variable import DiscreteVariable


class OneHotCategorical(DiscreteVariable):
    r"""A one-hot vector with unnormalised log probabilities log α, called Discrete in the paper.

    $$X_k = 1 \text{ if } \log α_k + G_k \text{ is the largest of all, else } 0$$

    G is Gumbel noise. Give either `logits`, here log α, or `probs`, with the categories along the last axis. A logit of
    minus infinity excludes a category. See [maddison2017concrete], section 3.1.

    >>> OneHotCategorical(logits=torch.tensor([0.0, 1e4, 0.0])).sample()
    tensor([0., 1., 0.])
    """

    arg_constraints = {"logits": constraints.real_vector}  # noqa: RUF012
    support = one_hot
    _conversion = check.LOG_PROBS

    @staticmethod
    def _split(logits: Tensor) -> tuple[Tensor, Size, Size]:
        return logits, *check.split(logits, 1)

    def relax(self, temperature: Temperature) -> "Concrete":
        """Return the Concrete variable with the same logits."""
        if self._is_finite:
            node = ExpConcrete.of_finite(self.logits, temperature, validate=self._validate_args)
            return Concrete.of_node(node, Exponential())
        return Concrete(logits=self.logits, temperature=temperature, validate_args=self._validate_args)

    def relax_gaussian(self, temperature: Temperature) -> "LogisticNormal":
        """Return the logistic-normal variable with the same logits."""
        return LogisticNormal(logits=self.logits, temperature=temperature, validate_args=self._validate_args)

    @property
    def _law(self) -> tuple[Any, Tensor, str]:
        return categorical, self.logits, "one-hot"

    def _log_probs(self) -> Tensor:
        return categorical.log_probs(self.logits)

    def _interpolated_log_mass(self, value: Tensor, node: Tensor | None) -> Tensor:
        return categorical.weighted(self._log_probs(), to_float64(value))

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
        """Return the entropy in nats."""
        return cast(-categorical.expectation(self._log_probs(), self._log_probs()), self.logits.dtype)

    def enumerate_support(self, expand: bool = True) -> Float[Tensor, "n ..."]:
        """Return the n states along a new first axis."""
        n = self.event_shape[0]
        states = torch.eye(n, dtype=self.logits.dtype, device=self.logits.device)
        states = states.view(n, *(1 for _ in self.batch_shape), n)
        return states.expand(n, *self.batch_shape, n) if expand else states


class Concrete(Relaxation):
    r"""The Concrete relaxation of a categorical variable, on the simplex, with Gumbel noise G.

    $$X = \mathrm{softmax}((\log α + G) / λ), \quad
    p(x) = (n-1)! \, λ^{n-1} \prod_k \frac{α_k x_k^{-λ-1}}{\sum_i α_i x_i^{-λ}}$$

    Give either `logits`, here log α, or `probs`, and `temperature`, here λ. At temperatures up to 1 / (n-1) the density
    is log-convex and has no mode inside the simplex.
    See [maddison2017concrete], definition 1 and proposition 1.

    >>> relaxed = OneHotCategorical(logits=torch.tensor([0.7, -0.7, 0.0])).relax(temperature=0.5)
    >>> value, log_prob = relaxed.rsample_and_log_prob((4,))
    >>> value.shape, log_prob.shape
    (torch.Size([4, 3]), torch.Size([4]))
    """

    arg_constraints = VECTOR
    support = simplex
    _conversion = check.LOG_PROBS
    is_ranked = True

    def _made(self, logits: Any, temperature: Temperature | None, validate_args: bool | None) -> Made:
        node = ExpConcrete(logits=logits, temperature=temperature, validate_args=validate_args)
        return node, Exponential(), node.logits, node.event_shape

    def discretize(self) -> OneHotCategorical:
        """Return the categorical variable with the same logits."""
        return OneHotCategorical(logits=self.logits, validate_args=self._validate_args)


class LogisticNormal(Relaxation):
    r"""A softmax of logits with Gaussian noise, for a control experiment of the paper.

    $$X = \mathrm{softmax}((\log α + ε) / λ), \quad ε \sim N(0, I)$$

    Its argmax is not distributed as the softmax of the logits. As in the paper's evaluation, `discretize` still returns
    the categorical variable with the same logits. See [maddison2017concrete], section 5.2.

    >>> LogisticNormal(logits=torch.zeros(3), temperature=1.0).sample((2,)).shape
    torch.Size([2, 3])
    """

    arg_constraints = VECTOR
    support = simplex
    _conversion = check.LOG_PROBS
    is_ranked = True

    def _made(self, logits: Any, temperature: Temperature | None, validate_args: bool | None) -> Made:
        node = ExpLogisticNormal(logits=logits, temperature=temperature, validate_args=validate_args)
        return node, Exponential(), node.logits, node.event_shape

    def discretize(self) -> OneHotCategorical:
        """Return the categorical variable with the same logits."""
        return OneHotCategorical(logits=self.logits, validate_args=self._validate_args)
