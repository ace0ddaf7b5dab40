"""The ExpConcrete node: the logarithm of a Concrete variable, and what is scored in its place."""

import math
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from .. import noise
from ..kernel import exp_concrete as kernel
from ..noise import Source
from .cast import wide
from .log_simplex import OnLogSimplex
from .temperature import log


class ExpConcrete(OnLogSimplex):
    r"""The logarithm of a Concrete variable, the stochastic node of n-ary relaxations.

    $$\log κ(y) = \log (n-1)! + (n-1) \log λ + \sum_k a_k - n \log \sum_k e^{a_k}, \quad a_k = \log α_k - λ y_k$$

    The density is with respect to the measure that exp carries over from the simplex, dy₁ … dyₙ₋₁ / xₙ, which cancels
    in every ratio of densities. See [maddison2017concrete], appendix C.3 and cheat sheet.

    >>> import torch
    >>> node = ExpConcrete(torch.tensor([1e4, 0.0, -1e4]), temperature=1e-3)
    >>> value, log_prob = node.rsample_and_log_prob((5,))
    >>> value.shape, bool(log_prob.isfinite().all())
    (torch.Size([5, 3]), True)
    """

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw standard Gumbel noise for every category."""
        return self._drawn(noise.gumbel, sample_shape, generator)

    _kernel = kernel

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
