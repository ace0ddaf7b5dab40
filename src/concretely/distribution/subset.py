"""Subsets of exactly k of n items, and their relaxation on the hypersimplex."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.distributions import Distribution, constraints
from torch.nn.functional import logsigmoid

from ..functional import subset, subset_concrete
from ..functional.arithmetic import Temperature, bool_or_none, cast, compute_dtype, is_finite, to_float64
from ..functional.categorical import weighted
from ..functional.draw import Drawn, sum_axes
from ..functional.noise import Source
from ..functional.threshold import largest
from . import check
from .constraint import Hypersimplex, KHot
from .variable import DiscreteVariable, RelaxedVariable, Variable, expanded

STATES = 2**20
"""The maximum number of subsets to enumerate."""


def as_items(
    logits: Tensor | float, k: Any, *, validate: bool, infinite: Literal["never", "either"]
) -> tuple[int, Tensor]:
    """Check the number of chosen items and the logits; raise unless that many items are possible."""
    logits = check.as_floating("logits", logits)
    is_doubtful = validate and is_finite(logits) is False
    logits = check.as_logits(logits, infinite=infinite, validate=is_doubtful)
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"k must be a whole number, got {type(k).__name__}")
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise ValueError(f"logits must have a last axis of at least 1 item, got shape {tuple(logits.shape)}")
    if not 0 <= k <= logits.shape[-1]:
        raise ValueError(f"k must lie between 0 and the number of items {logits.shape[-1]}, got {k}")
    if is_doubtful:
        check.require("logits", "be below infinity", logits, logits < math.inf)
        possible = (logits > -math.inf).sum(-1)
        if bool_or_none((possible < k).any()):
            row = tuple((possible < k).nonzero()[0].tolist())
            got = f"{possible[row].item()}{f' in row {row}' if row else ''}"
            raise ValueError(f"logits must leave at least {k} items possible, got {got}")
    return k, logits


class Subset(DiscreteVariable):
    r"""A subset of exactly k of n items, as a vector of k ones and n - k zeros: the conditional Bernoulli law.

    $$p(x) = \frac{\prod_i e^{θ_i x_i}}{\sum_{|s| = k} \prod_i e^{θ_i s_i}}$$

    It is the law of independent Bernoulli variables with log-odds θ, or probabilities `probs`, given that exactly k of
    them are 1. A common shift of the logits changes nothing. It differs from the law of the k largest of logits with
    Gumbel noise. `mean` holds the exact marginals, so that the straight-through gradient is that of SIMPLE
    [ahmed2023simple]. See [chen1997statistical].

    >>> subset = Subset(logits=torch.tensor([1.0, 0.0, -1.0, 1e4]), k=2)
    >>> subset.sample().sum(), subset.mean.sum()
    (tensor(2.), tensor(2.))
    """

    arg_constraints = {"logits": constraints.real_vector}  # noqa: RUF012
    _conversion = check.LOG_ODDS

    def __init__(
        self,
        *positional: Any,
        logits: Tensor | float | None = None,
        k: int | None = None,
        probs: Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        validate = check.validates(validate_args, logits, probs)
        given = self._given(positional, logits, probs, validate=validate)
        self.k, own = as_items(given, k, validate=validate, infinite="either")
        Variable.__init__(self, own, own.shape[:-1], own.shape[-1:], validate=validate)

    @property
    def support(self) -> constraints.Constraint:  # type: ignore[override]
        """Vectors of exactly k ones."""
        return KHot(self.k)

    @property
    def states(self) -> int:
        """The number of subsets."""
        return math.comb(self.event_shape[0], self.k)

    @staticmethod
    def _split(logits: Tensor) -> tuple[Tensor, Size, Size]:
        return logits, logits.shape[:-1], logits.shape[-1:]

    def relax(self, temperature: Temperature) -> "SubsetConcrete":
        """Return the relaxation with the same logits."""
        return SubsetConcrete(logits=self.logits, k=self.k, temperature=temperature, validate_args=self._validate_args)

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the uniform noise of samples, which selects subsets in its first row. The relaxation uses both rows."""
        return draw_noise(self.logits, sample_shape, generator)

    def push(self, noise: Tensor) -> Tensor:
        """Return the subset made from noise: the deterministic part of sampling."""
        return subset.push(self.logits, self.k, checked_noise(noise, self))

    def drawn(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None, axes: int = 0) -> Drawn:
        """Draw values, with functions that return their log probabilities."""
        value = self.push(self.noise(sample_shape, generator=generator))
        return Drawn(value, lambda: self._summed_log_mass(value, 0))

    @property
    def _law(self) -> tuple[Any, Tensor, str]:
        return subset, self.logits, "k-hot"

    def _summed_log_mass(self, value: Tensor, axes: int) -> Tensor:
        return sum_axes(cast(subset.log_mass(value, self.logits, self.k), compute_dtype(self.logits.dtype)), axes)

    def _interpolated_log_mass(self, value: Tensor, node: Tensor | None) -> Tensor:
        return self.mean_log_mass(to_float64(value))

    def mean_log_mass(self, inclusion: Tensor) -> Tensor:
        """Return the mean log probability, in float64, of subsets that include the items with these probabilities."""
        log_odds = subset.log_odds_of(self.logits, self.k)
        own = weighted(logsigmoid(log_odds), inclusion) + weighted(logsigmoid(-log_odds), 1 - inclusion)
        return own - subset.log_probability(log_odds, self.k)

    @property
    def mean(self) -> Float[Tensor, "*batch n"]:
        """The probability of each item to be in the subset."""
        return cast(subset.marginals(self.logits, self.k), self.logits.dtype)

    @property
    def mode(self) -> Float[Tensor, "*batch n"]:
        """The most probable subset, that of the k largest logits."""
        return largest(self.logits, self.k).to(self.logits.dtype)

    @property
    def variance(self) -> Float[Tensor, "*batch n"]:
        """The variance of each entry."""
        mean = subset.marginals(self.logits, self.k)
        return cast(mean * (1 - mean), self.logits.dtype)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Return the entropy in nats."""
        return cast(-self.mean_log_mass(subset.marginals(self.logits, self.k)), self.logits.dtype)

    def enumerate_support(self, expand: bool = True) -> Float[Tensor, "states ..."]:
        """Return all subsets along a new first axis, in the order of `itertools.combinations`."""
        n = self.event_shape[0]
        if self.states > STATES:
            raise ValueError(f"a subset must have at most 2^20 states to be enumerated, got {self.states}")
        chosen = torch.tensor(list(itertools.combinations(range(n), self.k)), dtype=torch.int64).view(
            self.states, self.k
        )
        states = torch.zeros(len(chosen), n).scatter_(1, chosen, 1.0)
        states = states.to(self.logits.device, self.logits.dtype).view(-1, *(1 for _ in self.batch_shape), n)
        return states.expand(-1, *self.batch_shape, n) if expand else states

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, k: {self.k})"


class SubsetConcrete(RelaxedVariable, Distribution):
    r"""The relaxation of a subset: a vector of entries in [0, 1] that sum to k at every temperature.

    $$X_i = σ((s_i - c) / λ) \text{ with the } c \text{ for which they sum to } k$$

    The scores s have independent logistic laws around the logits, shifted so that k positive scores are expected, given
    that exactly k are positive. These k are the draw of `Subset` on the same noise, and the k largest entries of X; the
    k largest of logits with unconditional noise would follow another law. The gradient is that of logits plus constant
    noise. It ignores that the law of the noise depends on the logits: its direction is about right at all temperatures,
    but it is too small well below 1/2. Log densities are those of `node`, the scores divided by the temperature.

    >>> relaxed = Subset(logits=torch.tensor([1.0, 0.0, -1.0, 2.0]), k=2).relax(temperature=0.5)
    >>> value, log_prob = relaxed.rsample_and_log_prob((5,))
    >>> bool(((value.sum(-1) - 2).abs() < 1e-5).all()), log_prob.shape
    (True, torch.Size([5]))
    """

    _conversion = check.LOG_ODDS

    def __init__(
        self,
        *positional: Any,
        logits: Tensor | float | None = None,
        k: int | None = None,
        probs: Tensor | float | None = None,
        temperature: Temperature | None = None,
        validate_args: bool | None = None,
    ) -> None:
        validate = check.validates(validate_args, logits, probs)
        given = self._given(positional, logits, probs, validate=validate)
        self.k, own = as_items(given, k, validate=validate, infinite="never")
        self._temperature = check.as_temperature(temperature, dtype=own.dtype, validate=validate)
        batch_shape, event_shape = check.broadcast(own.shape[:-1], self._temperature), own.shape[-1:]
        super().__init__(expanded(own, batch_shape + event_shape), batch_shape, event_shape, validate=validate)

    @property
    def support(self) -> constraints.Constraint:  # type: ignore[override]
        """Points of the hypersimplex: entries in [0, 1] that sum to k."""
        return Hypersimplex(self.k)

    def noise(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw the uniform noise of samples: a row that selects subsets, and a row of distances from the threshold."""
        return draw_noise(self.logits, sample_shape, generator)

    def push(self, noise: Tensor) -> Tensor:
        """Return the value made from noise: the deterministic part of sampling."""
        return subset_concrete.draw(self.logits, self.k, self._precise, checked_noise(noise, self))

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None) -> Tensor:
        """Draw values with a gradient."""
        return self.push(self.noise(sample_shape, generator=generator))

    def drawn(self, sample_shape: Sequence[int] = (), *, generator: Source | None = None, axes: int = 0) -> Drawn:
        """Draw values, with their scores and functions that return the log densities of the latter."""
        self._require_density()
        scores = self._scores(self.noise(sample_shape, generator=generator))

        def score() -> Tensor:
            centred = subset_concrete.location(self.logits, self.k)
            density = subset_concrete.log_density_of_noise(scores.noise, centred, self.k, self._precise)
            return cast(density, compute_dtype(self.logits.dtype))

        return Drawn(self._squash(scores), score, node=cast(scores.node, self.logits.dtype))

    def node_log_prob(self, value: Tensor, axes: int = 0, *, node: Tensor | None = None) -> Tensor:
        """Return the log density of the scores, summed over the last `axes` batch axes. `node` must be given."""
        self._require_density()
        if node is None:
            raise ValueError(
                "a relaxed subset does not determine its scores and cannot be scored without them: "
                "use rsample_and_log_prob, or keep the trace of the run that drew it"
            )
        density = subset_concrete.log_density(self._shaped("node", node), self.logits, self.k, self._precise)
        return sum_axes(cast(density, compute_dtype(self.logits.dtype)), axes)

    def log_prob(self, value: Tensor) -> Tensor:
        """Raise an error: many scores lead to one value."""
        return self.node_log_prob(self._checked(value))

    def discretize(self) -> Subset:
        """Return the subset with the same logits."""
        return Subset(logits=self.logits, k=self.k, validate_args=self._validate_args)

    def _scores(self, noise: Tensor) -> subset_concrete.Scores:
        return subset_concrete.push(self.logits, self.k, self._precise, checked_noise(noise, self))

    def _squash(self, scores: subset_concrete.Scores) -> Tensor:
        return subset_concrete.squash(scores, self.k, self._precise, self.logits.dtype)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, k: {self.k})"


def draw_noise(logits: Tensor, sample_shape: Sequence[int], generator: Source | None) -> Tensor:
    """Draw the noise of subsets."""
    shape, dtype = Size(sample_shape) + logits.shape, compute_dtype(logits.dtype)
    return subset.noise(shape, dtype, device=logits.device, generator=generator)


def checked_noise(noise: Tensor, variable: Variable) -> Tensor:
    """Check the dtype and the shape of noise and, unless that would wait for a GPU, its values."""
    event_shape = Size((2, *variable.event_shape))
    noise = check.as_shaped("noise", noise, batch_shape=variable.batch_shape, event_shape=event_shape)
    if variable._validate_args and noise.is_cpu and noise.numel():
        low, high = noise.detach().aminmax()
        if bool_or_none((low > 0) & (high < 1)) is False:  # also if one of them is NaN
            check.require("noise", "lie between 0 and 1", noise, (noise > 0) & (noise < 1))
    return noise
