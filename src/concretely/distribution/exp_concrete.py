"""The ExpConcrete node: the logarithm of a Concrete variable, and what is scored in its place."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from .. import noise
from . import check
from .base import Tempered
from .cast import cast, wide, working
from .constraint import log_simplex
from .recover import recover
from .temperature import Temperature, cool, log


def push(
    logits: Float[Tensor, "*batch n"], temperature: Temperature, noise: Float[Tensor, "*shape n"]
) -> Float[Tensor, "*out n"]:
    """The log softmax of the noisy logits over the temperature; the log of their one-hot argmax where that is zero."""
    total = perturb(logits, noise)
    # with the largest at 0, a division by a small temperature leaves the limit and not a NaN
    cooled = cool(total.sub_(total.detach().amax(-1, keepdim=True)), temperature, log_one_hot_argmax)
    return cooled - cooled.exp().sum(-1, keepdim=True).log()


def perturb(logits: Float[Tensor, "*batch n"], noise: Float[Tensor, "*shape n"]) -> Float[Tensor, "*out n"]:
    """The noisy logits, up to a shift: beside a logit of a thousand, noise would be rounded away."""
    return (logits - logits.detach().amax(-1, keepdim=True)) + noise


def log_one_hot_argmax(total: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """Zero at the largest entry, minus infinity elsewhere."""
    return one_hot_argmax(total).log()


def one_hot_argmax(total: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """One at the largest entry, zero elsewhere."""
    category = torch.arange(total.shape[-1], device=total.device)
    return (category == total.argmax(-1, keepdim=True)).to(total.dtype)


class ExpConcrete(Tempered):
    r"""The logarithm of a Concrete variable, the stochastic node of n-ary relaxations.

    $$\log κ(y) = \log (n-1)! + (n-1) \log λ + \sum_k a_k - n \log \sum_k e^{a_k}, \quad a_k = \log α_k - λ y_k$$

    The density is with respect to the measure that exp carries over from the simplex, dy₁ … dyₙ₋₁ / xₙ, which cancels
    in every ratio of densities. See [maddison2017concrete], appendix C.3 and cheat sheet.

    >>> node = ExpConcrete(torch.tensor([1e4, 0.0, -1e4]), temperature=1e-3)
    >>> value, log_prob = node.rsample_and_log_prob((5,))
    >>> value.shape, bool(log_prob.isfinite().all())
    (torch.Size([5, 3]), True)
    """

    support = log_simplex
    category_axes = 1
    is_ranked = True

    @classmethod
    def from_probs(cls, probs: Tensor, temperature: Temperature, *, validate_args: bool | None = None) -> Self:
        """Build the variable from the probabilities of its categories."""
        return cls(check.as_log_probs(probs), temperature, validate_args=validate_args)

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Generator | None = None) -> Tensor:
        """Draw standard Gumbel noise for every category."""
        return self._drawn(noise.gumbel, sample_shape, generator)

    def _push(self, noise: Tensor) -> Tensor:
        return push(cast(self.logits, working(self.logits.dtype)), self._value_temperature, noise)

    def _log_density(self, value: Tensor) -> Tensor:
        # a shift common to all categories cancels, and with it the normaliser between a value and its noise
        return self._log_density_of_noise(recover(value, self.logits, self._value_temperature, up_to_shift=True))

    def _log_density_of_noise(self, noise: Tensor) -> Tensor:
        # neither drawn noise nor noise with its smallest entry at 0 is below -4: the plain exponential is safe
        n = self.event_shape[0]
        total = wide(noise.sum(-1))
        log_sum = wide(noise.neg_().exp().sum(-1)).log()
        return (math.lgamma(n) + (n - 1) * log(self._batch_temperature)) - total - n * log_sum

    def entropy(self) -> Float[Tensor, "*batch"]:
        """The differential entropy, which the logits do not change."""
        n = self.event_shape[0]
        harmonic = math.fsum(1 / k for k in range(1, n))
        return self._filled(n * harmonic - math.lgamma(n) - (n - 1) * log(self._batch_temperature))

    @property
    def mode(self) -> Float[Tensor, "*batch n"]:
        """The point of highest density: the log softmax of the logits over the temperature."""
        return self.push(torch.zeros_like(wide(self.logits)))
