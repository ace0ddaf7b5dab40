"""The log-likelihood of data under the discrete graph of a model, estimated from samples or by enumeration."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, overload

import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Generator, Tensor, nn
from torch.distributions import Distribution

from ..distribution.check import checking_on_gpu
from ..distribution.variable import DiscreteVariable
from ..functional.bound import total
from ..functional.draw import Drawn
from ..functional.noise import Keys, Source
from ..functional.slice import Slice
from ..graph.mode import Discrete, Enumerate, Mode, Request
from ..graph.program import Program, eval_mode
from ..model.model import Model
from ..objective import log_weights
from ..spelling import explain_loose, format_effective
from .cost import Cost, evaluate_cost
from .points import (
    PAIRS_ON_CPU,
    PAIRS_ON_GPU,
    Packed,
    points_at_once,
    require_positive,
    run_in_parts,
    standard_error,
    tensors_of,
)
from .progress import Advance, counting

SAMPLES, FEW = 50_000, 1_000
"""The default number of samples, the paper's, and that for data points outside of `full_points`."""
SHARE, BYTES = 1 / 8, 8
"""The share of free GPU memory to use, and the bytes that a pair needs for every unit of a layer."""


Data = tuple[Tensor, ...]
Estimate = tuple[Float64[Tensor, " points"], Float64[Tensor, " full_points"]]
"""The log-likelihood of every data point, and the effective sample sizes of those scored with all samples."""


@dataclass(frozen=True)
class Likelihood:
    """The log-likelihood of every data point, and its precision."""

    log_likelihood: Float64[Tensor, " points"]
    """The estimate for every data point, in expectation a lower bound that more samples tighten.

    It is minus infinity if no sample explains the data point. For points that were not scored with all samples, only
    the average over points is a lower bound.
    """
    effective_sample_size: Float64[Tensor, " full_points"]
    """The effective sample size of the importance weights, or zero if all weights are zero."""
    samples: int
    """The number of samples for each of the `full_points` data points."""
    seconds: float
    correction_se: float = 0.0
    """The standard error of the correction that was added to the other data points."""

    @property
    def full_points(self) -> int:
        """The number of data points scored with all samples. The others have few samples and a correction."""
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
        """The standard error of `mean`, from the data points and the correction, without the Monte Carlo error."""
        return math.hypot(standard_error(self.log_likelihood), self.correction_se)

    def __str__(self) -> str:
        points = len(self.log_likelihood)
        some = f" for {self.full_points:,} of {points:,} data points" if self.full_points < points else ""
        effective = self.effective_sample_size.mean().item()
        text = (
            f"NLL {self.nll:.2f} ± {self.standard_error:.2f} ({self.samples:,} sample{'s' * (self.samples > 1)}{some}, "
            f"mean effective sample size {format_effective(effective)}, {self.seconds:.1f} s)"
        )
        return f"{text}. {loose}" if (loose := explain_loose(effective, self.samples)) else text


@overload
def evaluate(
    model: Model,
    *data: Shaped[Tensor, "points ..."] | Packed,
    samples: int | None = None,
    full_points: int | None = None,
    chunk: int | None = None,
    generator: Generator | Slice | None = None,
    progress: bool = False,
) -> Likelihood: ...


@overload
def evaluate(
    model: Program,
    *data: Any,
    samples: int | None = None,
    full_points: int | None = None,
    chunk: int | None = None,
    generator: Generator | Slice | None = None,
    progress: bool = False,
) -> Likelihood | Cost: ...


def evaluate(
    model: Model | Program,
    *data: Any,
    samples: int | None = None,
    full_points: int | None = None,
    chunk: int | None = None,
    generator: Generator | Slice | None = None,
    progress: bool = False,
) -> Likelihood | Cost:
    r"""Estimate the log-likelihood of data under the discrete graph of a model, or the expected cost of a program.

    The log-likelihood is estimated by the multi-sample bound, by default with 50,000 samples:

    $$\log \frac1m \sum_{i=1}^m \frac{p(x, z_i)}{q(z_i \mid x)}, \quad z_i \sim q$$

    The cost of a program is averaged over discrete draws, by default 1,000.

    The data are the inputs of the model: x, or the context and x, as tensors or sets of bits. Their first axis counts
    data points. The inputs of a program may also be dictionaries and tuples of tensors; those with other rows than the
    first tensor, such as weights, are passed whole. `chunk` is the largest number of pairs of a sample and a data point
    in memory at a time, by default 4,096, or for a `Model` on a GPU one that suits its memory; the random draws depend
    on it. The model runs in evaluation mode. With `progress`, a progress bar is shown on stderr.

    With `full_points`, all data points of a model are scored with 1,000 samples, and only that many of them, chosen at
    random, also with all samples, if that is less work. The mean difference between the two scores of the chosen points
    is added to the scores of the others. The expected mean is therefore the same as with all samples for all points.

    If the generator is a `Slice`, the ranks share the work, and each returns the result of one process.
    See [burda2016importance] and [maddison2017concrete], section 5.

    >>> import concretely as c
    >>> result = evaluate(c.density("2H-6V"), torch.zeros(10, 6), samples=100)
    >>> result.log_likelihood.shape, result.samples
    (torch.Size([10]), 100)
    """
    started = time.perf_counter()
    data = tensors_of(data)
    if not isinstance(model, Model):
        if full_points is not None:
            raise ValueError(f"full_points must be left out, as a program has no likelihood, got {full_points!r}")
        how: dict[str, Any] = {"chunk": chunk, "generator": generator, "progress": progress}
        return evaluate_cost(model, *data, samples=FEW if samples is None else samples, **how)
    _require_data(model, data)
    samples = SAMPLES if samples is None else samples
    model = model.with_kl_weight(1.0) if model.is_weighted else model
    chunk = _suitable(model, data, generator) if chunk is None else chunk
    points = len(data[0])
    full_points = points if full_points is None else full_points
    for name, number in (("samples", samples), ("full_points", full_points), ("chunk", chunk)):
        require_positive(name, number)
    pairs = min(points * samples, points * FEW + full_points * samples)
    shown = counting("log-likelihood", pairs, shown=progress)
    with shown as advance, eval_mode(model), torch.no_grad(), torch.cuda.device_of(data[0]):
        _require_scores(model, data, chunk)

        def estimated(part: Data, samples: int) -> Estimate:
            return _estimated(model, part, samples, chunk=chunk, generator=generator, advance=advance)

        if pairs == points * samples:
            log_likelihood, effective, correction_se = *estimated(data, samples), 0.0
        else:
            own = generator.source if isinstance(generator, Slice) else generator
            assert not isinstance(own, Keys)
            device = "cpu" if own is None else own.device
            chosen = torch.randperm(points, generator=own, device=device)[:full_points].sort().values
            log_likelihood, effective, correction_se = _corrected(estimated, data, samples, chosen.cpu())
    seconds = time.perf_counter() - started
    return Likelihood(log_likelihood, effective, samples, seconds=seconds, correction_se=correction_se)


def exact_log_likelihood(model: Model, *data: Shaped[Tensor, "points ..."] | Packed) -> Float64[Tensor, " points"]:
    r"""Compute the exact log-likelihood of every data point by enumerating all states of the latents, at most 2²⁰.

    $$\log \sum_z p(x, z)$$

    All states of one data point are in memory at once.

    >>> import concretely as c
    >>> exact_log_likelihood(c.density("2H-6V"), torch.zeros(10, 6)).shape
    torch.Size([10])
    """
    data = tensors_of(data)
    _require_data(model, data)
    with eval_mode(model), torch.no_grad():
        _require_scores(model, data, _suitable(model, data))
        states = len(_log_joint(model, tuple(tensor[:1] for tensor in data)))
        parts = _parts(data, max(1, _suitable(model, data) // states))
        return _numbers(torch.cat([_log_joint(model, part).logsumexp(0).cpu() for part in parts]))


def _estimated(
    model: Model, data: Data, samples: int, *, chunk: int, generator: Generator | Slice | None, advance: Advance
) -> Estimate:
    """Estimate every data point with the same number of samples."""

    def run(rows: slice, drawn: int, source: Source | None) -> Tensor:
        part = (tensor[rows] for tensor in data)
        log_w = log_weights(model, *part, mode=Discrete(), samples=drawn, generator=source).log_w.double()
        return torch.stack([log_w.logsumexp(0), (2 * log_w).logsumexp(0)])

    how: dict[str, Any] = {"samples": samples, "chunk": chunk, "generator": generator, "advance": advance}
    at_once, sums = points_at_once(samples, chunk), list[Tensor]()
    for summed in run_in_parts(run, torch.logaddexp, points=len(data[0]), at_once=at_once, **how):
        sums.append(summed)
        if len(sums) == 1:  # only once: each check waits for the device
            _numbers(summed.cpu())
    log_sum, log_sum_of_squares = _numbers(torch.cat(sums, -1).cpu())
    effective = torch.where(log_sum == -math.inf, 0, torch.exp(2 * log_sum - log_sum_of_squares))
    return log_sum - math.log(samples), effective


def _corrected(
    estimated: Callable[[Data, int], Estimate], data: Data, samples: int, chosen: Int64[Tensor, " full_points"]
) -> tuple[Float64[Tensor, " points"], Float64[Tensor, " full_points"], float]:
    """Score all data points with few samples and the chosen ones with all; correct the others by the mean difference.

    Return the log-likelihoods, the effective sample sizes of the chosen points, and the error of the correction.
    """
    log_likelihood, _ = estimated(data, FEW)
    right, effective = estimated(tuple(tensor[chosen.to(tensor.device)] for tensor in data), samples)
    missed = right - log_likelihood[chosen]
    if not (log_likelihood.isfinite().all() and missed.isfinite().all()):  # the mean difference does not exist
        return *estimated(data, samples), 0.0
    log_likelihood += missed.mean()
    log_likelihood[chosen] = right
    return log_likelihood, effective, standard_error(missed) * math.sqrt(1 - len(chosen) / len(log_likelihood))


def _log_joint(model: Model, part: Data) -> Float64[Tensor, "states points"]:
    """Return the joint log probability of the data and every state of the latents."""
    weights = log_weights(model, *part, mode=Enumerate())
    # without q, the latents are drawn from p
    terms = weights.log_p if weights.divides else {**weights.log_q, **weights.log_p}
    return total(terms.values()).double()


def _suitable(model: Model, data: Data, source: Source | None = None) -> int:
    """Return the number of pairs in one run that suits the device of the data; it is the same on all ranks."""
    device = data[0].device
    if device.type != "cuda":
        return PAIRS_ON_CPU
    free, _ = torch.cuda.mem_get_info(device)
    maps = (module.out_features for module in model.modules() if isinstance(module, nn.Linear))
    room = int(SHARE * free) // (BYTES * (sum(maps) + sum(tensor[0].numel() for tensor in data)))
    power = min(PAIRS_ON_GPU.bit_length(), max(room, 1).bit_length()) - 1  # powers of two: draws depend on the chunk
    if isinstance(source, Slice):
        votes = torch.zeros(PAIRS_ON_GPU.bit_length(), device=device)
        votes[power] = 1
        power = int(source.total(votes).nonzero()[0])
    return 1 << power


def _parts(data: Data, points: int) -> Iterator[Data]:
    """Yield consecutive parts of the data."""
    for first in range(0, len(data[0]), points):
        yield tuple(tensor[first : first + points] for tensor in data)


def _require_data(model: Model, data: Data) -> None:
    if not isinstance(model, Model):
        must = 'model must be a Model, such as density("200H~784V"), as only a Model has a likelihood'
        raise TypeError(f"{must}, got {type(model).__name__}")
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
    """Score all data once, at the most probable latents, so that bad input raises an error early."""
    accepted = False
    with suppress(Exception):
        for part in _parts(data, max(1, chunk // 4)):  # a trace keeps more tensors than a log weight does
            _score(model, part)
        accepted = True
    if not accepted:
        _score(model, data)  # again, so that the error names the index in the whole data
    _score(model, tuple(tensor[:1] for tensor in data))  # a model that drops the axis of data points fails here


def _score(model: Model, inputs: Data) -> None:
    with checking_on_gpu():
        p, _ = model.trace(*inputs, mode=_Likeliest())
        for name in p.observed:
            p[name].log_prob  # noqa: B018 (computed on access)


class _Likeliest(Mode):
    """A mode in which every discrete node takes its most probable state, without randomness."""

    def draw(self, request: Request) -> Drawn:
        distribution = request.distribution
        value = distribution.mode if isinstance(distribution, DiscreteVariable) else distribution.sample()
        return Drawn(value, lambda: self.score(request.name, distribution, value))

    def score(
        self, name: str, distribution: Distribution, value: Tensor, axes: int = 0, *, node: Tensor | None = None
    ) -> Tensor:
        return Discrete().score(name, distribution, value, axes)


def _numbers(values: Float64[Tensor, "*sums points"]) -> Float64[Tensor, "*sums points"]:
    """Return the values unchanged; raise if any is NaN."""
    wrong = values.isnan().view(-1, values.shape[-1]).any(0)
    if wrong.any():
        index = int(wrong.nonzero()[0])
        raise ValueError(f"the log-likelihood must be a number, got nan at data point {index}: is a parameter nan?")
    return values
