"""The log-likelihood of data under the discrete graph of a model: estimated from many samples, or by enumeration."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Generator, Tensor, nn
from torch.distributions import Distribution

from ..distribution.discrete import DiscreteVariable
from ..functional.bound import total
from ..functional.draw import Drawn
from ..mode import Discrete, Enumerate, Mode
from ..model.base import Model
from ..noise import Source
from ..objective import log_weights
from ..program import eval_mode
from .progress import counting

PAIRS_ON_CPU, PAIRS_ON_GPU = 4_096, 2**20
"""How many pairs of a sample and a data point are run at once, where there is room: 784 units take 13 MB or 3 GB.

Beyond that a CPU spends its time on fresh memory; below it, a GPU spends its time on waiting to be told.
"""
FEW = 1_000
"""The samples of data points that are not scored thoroughly."""
SHARE, BYTES = 1 / 8, 8
"""The share of free memory that is used there, and the bytes that a pair takes for every unit of a layer."""

Data = tuple[Tensor, ...]
Estimate = tuple[Float64[Tensor, " points"], Float64[Tensor, " thorough"]]
"""The log-likelihoods of data points, and the effective sample sizes of those that were scored thoroughly."""


@dataclass(frozen=True)
class Likelihood:
    """The log-likelihood of every data point, and how well it is known."""

    log_likelihood: Float64[Tensor, " points"]
    """On average a lower bound, which more samples tighten; minus infinity if no sample can have given the data.

    Of those that were not scored thoroughly only the mean is.
    """
    effective_sample_size: Float64[Tensor, " thorough"]
    """The number of equal weights that would be worth as much as those found, zero if there are none but zeros."""
    samples: int
    """The number of samples for each data point that was scored thoroughly."""
    seconds: float
    doubt: float = 0.0
    """The standard error of what has been added to data points that were not."""

    @property
    def thorough(self) -> int:
        """The number of data points that were scored thoroughly; what the others miss on average has been added."""
        return len(self.effective_sample_size)

    @property
    def mean(self) -> float:
        """The log-likelihood in nats, averaged over the data."""
        return self.log_likelihood.mean().item()

    @property
    def nll(self) -> float:
        """The negative log-likelihood in nats, averaged over the data."""
        return -self.mean

    @property
    def standard_error(self) -> float:
        """How far chance in the choice of the data moves the mean; what chance in the samples adds is left out.

        Chance in the choice of those that were scored thoroughly is part of it.
        """
        return math.hypot(standard_error(self.log_likelihood), self.doubt)

    def __str__(self) -> str:
        points = len(self.log_likelihood)
        some = f" for {self.thorough:,} of {points:,} data points" if self.thorough < points else ""
        return (
            f"NLL {self.nll:.2f} ± {self.standard_error:.2f} ({self.samples:,} sample{'s' * (self.samples > 1)}{some}, "
            f"mean effective sample size {self.effective_sample_size.mean().item():,.0f}, {self.seconds:.1f} s)"
        )


def evaluate(
    model: Model,
    *data: Shaped[Tensor, "points ..."],
    samples: int = 50_000,
    thorough: int | None = None,
    chunk: int | None = None,
    generator: Generator | None = None,
    progress: bool = False,
) -> Likelihood:
    r"""Estimate the log-likelihood of data under the discrete graph by the multi-sample bound.

    $$\log \frac1m \sum_{i=1}^m \frac{p(x, z_i)}{q(z_i \mid x)}, \quad z_i \sim q$$

    The data are the inputs of the model: x, or the context and x. Their first axis counts data points. However many
    there are, and however many samples, only `chunk` pairs of a sample and a data point are in memory at once, by
    default as many as suit the device; which draws fall to which data point depends on it. The modules of the model
    are in evaluation mode meanwhile. `progress` shows a bar on stderr.

    `thorough` gives so many samples to so many data points only, chosen by chance, and 1,000 to all, where that is less
    work. What 1,000 miss on average is found from the former and added to the others: the mean is, on average, that of
    all samples for all data points.
    See [burda2016importance] and [maddison2017concrete], section 5.

    >>> import concretely as c
    >>> result = evaluate(c.density("2H-6V"), torch.zeros(10, 6), samples=100)
    >>> result.log_likelihood.shape, result.samples
    (torch.Size([10]), 100)
    """
    started = time.perf_counter()
    _require_data(model, data)
    chunk = _suitable(model, data) if chunk is None else chunk
    points = len(data[0])
    thorough = points if thorough is None else thorough
    for name, number in (("samples", samples), ("thorough", thorough), ("chunk", chunk)):
        _require_positive(name, number)
    pairs = min(points * samples, points * FEW + thorough * samples)
    shown = counting("log-likelihood", pairs, shown=progress)
    with shown as advance, eval_mode(model), torch.no_grad(), torch.cuda.device_of(data[0]):
        _require_scores(model, data, chunk)

        def estimated(part: Data, samples: int) -> Estimate:
            return _estimated(model, part, samples, chunk=chunk, generator=generator, advance=advance)

        if pairs == points * samples:
            found, effective, doubt = *estimated(data, samples), 0.0
        else:
            device = "cpu" if generator is None else generator.device
            chosen = torch.randperm(points, generator=generator, device=device)[:thorough].sort().values
            found, effective, doubt = _surveyed(estimated, data, samples, chosen.cpu())
    return Likelihood(found, effective, samples, seconds=time.perf_counter() - started, doubt=doubt)


def standard_error(values: Float64[Tensor, " points"]) -> float:
    """How far chance in the choice of the data moves the mean of values.

    It is infinite if nothing is known of it: for a single data point, and if the mean is infinite.

    >>> standard_error(torch.tensor([1.0, 3.0], dtype=torch.float64))
    1.0
    """
    if len(values) == 1 or not math.isfinite(values.mean().item()):
        return math.inf
    return values.std().item() / math.sqrt(len(values))


def exact_log_likelihood(model: Model, *data: Shaped[Tensor, "points ..."]) -> Float64[Tensor, " points"]:
    r"""Work out the log-likelihood of every data point from all states of the latents, of which 2²⁰ are allowed.

    $$\log \sum_z p(x, z)$$

    All states of at least one data point are in memory at once.

    >>> import concretely as c
    >>> exact_log_likelihood(c.density("2H-6V"), torch.zeros(10, 6)).shape
    torch.Size([10])
    """
    _require_data(model, data)
    with eval_mode(model), torch.no_grad():
        _require_scores(model, data, _suitable(model, data))
        states = len(_log_joint(model, tuple(tensor[:1] for tensor in data)))
        parts = _parts(data, max(1, _suitable(model, data) // states))
        return _numbers(torch.cat([_log_joint(model, part).logsumexp(0).cpu() for _, part in parts]))


def _estimated(
    model: Model,
    data: Data,
    samples: int,
    *,
    chunk: int,
    generator: Generator | None,
    advance: Callable[[int], None],
) -> Estimate:
    """Every data point by so many samples."""
    at_once = math.ceil(samples / math.ceil(samples / chunk))  # as few runs as possible, all of nearly one size
    sums = []
    for first, part in _parts(data, max(1, chunk // at_once)):
        runs = _log_sums(model, part, samples, at_once=at_once, generator=generator, advance=advance)
        sums.append(reduce(torch.logaddexp, runs))
        if first == 0:  # not at every part, which would wait for the device
            _numbers(sums[0].cpu())
    log_sum, log_sum_of_squares = _numbers(torch.cat(sums, -1).cpu())
    effective = torch.where(log_sum == -math.inf, 0, torch.exp(2 * log_sum - log_sum_of_squares))
    return log_sum - math.log(samples), effective


def _surveyed(
    estimated: Callable[[Data, int], Estimate], data: Data, samples: int, chosen: Int64[Tensor, " thorough"]
) -> tuple[Float64[Tensor, " points"], Float64[Tensor, " thorough"], float]:
    """All data points by few samples, and some by many, which say what few samples miss on average, and how surely."""
    found, _ = estimated(data, FEW)
    right, effective = estimated(tuple(tensor[chosen.to(tensor.device)] for tensor in data), samples)
    missed = right - found[chosen]
    if not (found.isfinite().all() and missed.isfinite().all()):  # there is no average to add
        return *estimated(data, samples), 0.0
    found += missed.mean()
    found[chosen] = right
    return found, effective, standard_error(missed) * math.sqrt(1 - len(chosen) / len(found))


def _log_sums(
    model: Model,
    part: Data,
    samples: int,
    *,
    at_once: int,
    generator: Generator | None,
    advance: Callable[[int], None],
) -> Iterator[Float64[Tensor, "2 points"]]:
    """The logarithms of the sum of weights and of the sum of their squares, for some samples after another."""
    for done in range(0, samples, at_once):
        drawn = min(at_once, samples - done)
        log_w = log_weights(model, *part, mode=Discrete(), samples=drawn, generator=generator).log_w.double()
        yield torch.stack([log_w.logsumexp(0), (2 * log_w).logsumexp(0)])
        advance(log_w.numel())


def _log_joint(model: Model, part: Data) -> Float64[Tensor, "states points"]:
    """The log probability of the data together with every state of the latents."""
    weights = log_weights(model, *part, mode=Enumerate())
    # without q, what was drawn was drawn from p
    terms = weights.log_p if weights.divides else {**weights.log_q, **weights.log_p}
    return total(terms.values()).double()


def _suitable(model: Model, data: Data) -> int:
    """How many pairs to run at once where the data are."""
    device = data[0].device
    if device.type != "cuda":
        return PAIRS_ON_CPU
    free, _ = torch.cuda.mem_get_info(device)
    maps = (module.out_features for module in model.modules() if isinstance(module, nn.Linear))
    room = int(SHARE * free) // (BYTES * (sum(maps) + sum(tensor[0].numel() for tensor in data)))
    return min(PAIRS_ON_GPU, 1 << max(room, 1).bit_length() - 1)  # of few sizes, as draws fall to data by chunks


def _parts(data: Data, points: int) -> Iterator[tuple[int, Data]]:
    """So many data points after another, and the index of the first of them."""
    for first in range(0, len(data[0]), points):
        yield first, tuple(tensor[first : first + points] for tensor in data)


def _require_positive(name: str, number: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{name} must be a positive whole number, got {number!r}")


def _require_data(model: Model, data: Data) -> None:
    if not isinstance(model, Model):
        raise TypeError(f'model must be a Model, such as density("200H~784V"), got {type(model).__name__}')
    if not data:
        raise ValueError("data must be one or more tensors, the inputs of the model, got none")
    for tensor in data:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"data must be tensors, got {type(tensor).__name__}")
        if tensor.dim() == 0:
            raise ValueError("data must have a first axis that counts data points, got shape ()")
        if len(tensor) == 0:
            raise ValueError(f"data must have at least one data point, got shape {tuple(tensor.shape)}")
    if len({len(tensor) for tensor in data}) > 1:
        raise ValueError(
            f"data must have as many data points in every input, got {' and '.join(str(len(part)) for part in data)}"
        )


def _require_scores(model: Model, data: Data, chunk: int) -> None:
    """Have the model score all data once, at its likeliest latents: what it refuses is refused before any work."""
    try:
        for _, part in _parts(data, max(1, chunk // 4)):  # which leaves room for what a run remembers
            _score(model, part)
    except Exception:
        refused = True
    else:
        refused = False
    if refused:
        _score(model, data)  # again, so that the place in its sentence is one in the whole data
    _score(model, tuple(tensor[:1] for tensor in data))  # a lone data point without its axis does not pass for many


def _score(model: Model, inputs: Data) -> None:
    p, _ = model.trace(*inputs, mode=_Likeliest())
    for name in p.observed:
        p.log_prob(name)


class _Likeliest(Mode):
    """Every discrete node takes its most probable state, without any randomness."""

    def draw(
        self, name: str, distribution: Distribution, sample_shape: tuple[int, ...], generator: Source | None, axes: int
    ) -> Drawn:
        value = distribution.mode if isinstance(distribution, DiscreteVariable) else distribution.sample()
        return Drawn(value, lambda: self.score(name, distribution, value))

    def score(
        self, name: str, distribution: Distribution, value: Tensor, axes: int = 0, *, node: Tensor | None = None
    ) -> Tensor:
        return Discrete().score(name, distribution, value, axes)


def _numbers(found: Float64[Tensor, "*sums points"]) -> Float64[Tensor, "*sums points"]:
    """What was found for data points, refused if it is not a number."""
    wrong = found.isnan().view(-1, found.shape[-1]).any(0)
    if wrong.any():
        index = int(wrong.nonzero()[0])
        raise ValueError(f"the log-likelihood must be a number, got nan at data point {index}: is a parameter nan?")
    return found
