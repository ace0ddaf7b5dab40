"""The logistic-normal control: Gaussian noise in the place of Gumbel noise, all else the same."""

import math
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from .. import noise
from ..kernel import exp_logistic_normal as kernel
from ..noise import Source
from .concrete import Discrete
from .log_simplex import OnLogSimplex
from .squash import OnSimplex
from .temperature import log

LOG_TWO_PI = math.log(2 * math.pi)


class ExpLogisticNormal(OnLogSimplex):
    r"""The logarithm of a logistic-normal variable, with the measure of `ExpConcrete`.

    $$\log κ(y) = (n-1)(\log λ - \tfrac12 \log 2π) - \tfrac12 \log n - \tfrac12 \sum_k (d_k - \bar d)^2,
    \quad d_k = λ y_k - \log α_k$$

    See [maddison2017concrete], section 5.2 and appendix C.4.

    >>> import torch
    >>> ExpLogisticNormal(torch.zeros(3), temperature=1.0).sample().shape
    torch.Size([3])
    """

    _kernel = kernel

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw standard normal noise for every category."""
        return self._drawn(noise.normal, sample_shape, generator)

    def _log_density_of_noise(self, noise: Tensor) -> Tensor:
        n = noise.shape[-1]
        constant = (n - 1) * (log(self._batch_temperature) - LOG_TWO_PI / 2) - math.log(n) / 2
        return constant - (noise - noise.mean(-1, keepdim=True)).square().sum(-1) / 2

    def entropy(self) -> Float[Tensor, "*batch"]:
        """The differential entropy, which the logits do not change."""
        n = self.event_shape[0]
        return self._filled((n - 1) * ((1 + LOG_TWO_PI) / 2 - log(self._batch_temperature)) + math.log(n) / 2)


class LogisticNormal(OnSimplex):
    r"""A softmax of logits with Gaussian noise, the control of the paper's experiments.

    $$X = \mathrm{softmax}((\log α + ε) / λ), \quad ε \sim N(0, I)$$

    Its argmax does not follow the softmax of the logits. `discretize` gives the discrete variable of the logits all the
    same, as the paper evaluated it. See [maddison2017concrete], section 5.2.

    >>> import torch
    >>> LogisticNormal(torch.zeros(3), temperature=1.0).sample((2,)).shape
    torch.Size([2, 3])
    """

    node_class = ExpLogisticNormal

    def discretize(self) -> Discrete:
        """The discrete variable with the same logits."""
        return Discrete(self.logits, validate_args=self._validate_args)
