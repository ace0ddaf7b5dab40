"""Which gradient estimator to use: the bias, the variance and the time of each on the problem at hand.

Every estimator is judged against the gradient of the objective that it estimates. Gradients are averaged in a few
groups as they come, so that memory does not grow with their number, and errors are told from the spread of the groups.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ..distribution.base import Mass
from ..estimator import NVIL, RLOO, VIMCO, Estimator, Exact, Score, estimate
from ..graph import run
from ..mode import Discrete
from ..model.base import Model
from ..objective import Objective, average, bound
from ..program import Program

__all__ = ["gradient_study"]

GROUPS = 16
"""The most groups in which gradients are averaged."""

STATES = 2**16
"""The most states, of all samples and data points together, that are enumerated for a reference unasked."""

REFERENCE_SAMPLES = 8
"""The samples of each gradient of a reference that does not depend on their number."""

SURE = 1e-3
"""The p-value below which a bias is found."""

Gradient = tuple[Tensor | None, ...]
"""One tensor for each parameter, none where it does not enter."""


class Measure(NamedTuple):
    """An unbiased estimate, and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ± {self.error:.2g}"


@dataclass(frozen=True, eq=False)
class Reference:
    """The gradient that an estimator is judged by."""

    gradient: tuple[Tensor, ...] = field(repr=False)
    """One tensor for each parameter."""
    method: str
    """The estimator that it comes from."""
    objective: str
    samples: int
    repeats: int
    """How many gradients it is the mean of; one if it is exact."""
    error: float
    """The length of its error, root mean square; zero if it is exact."""

    @property
    def length(self) -> float:
        """The length of the gradient, without what noise adds to it."""
        squared = sum(float(part.square().sum()) for part in self.gradient)
        return math.sqrt(max(squared - self.error**2, 0))

    def __str__(self) -> str:
        objective = self.objective if self.samples == 1 else f"{self.objective} of {self.samples}"
        if self.repeats == 1:
            return f"the {objective}, exact, of length {self.length:.3g}"
        count = f"{self.repeats} gradients by {self.method}"
        return f"the {objective}, from {count}, of length {self.length:.3g} with an error of {self.error:.1g}"


@dataclass(frozen=True, eq=False)
class Finding:
    """What a study found about one estimator."""

    name: str
    samples: int
    objective: str
    """What it estimates: the multi-sample bound or the average over samples, whatever was asked for."""
    repeats: int
    mean: tuple[Tensor, ...] = field(repr=False)
    """The mean gradient, one tensor for each parameter."""
    squared_bias: Measure
    """The squared length of the mean gradient less the reference; without what noise adds, it may be negative."""
    p_value: float
    """How often an estimator without bias would look as biased as this; 2⁻¹⁵ if never, as far as one can tell."""
    variance: Measure
    """The trace of the covariance of one gradient."""
    seconds: float
    """The median time of one gradient."""
    reference: Reference

    @property
    def is_biased(self) -> bool:
        """Whether a bias was found; fewer than 11 repeats find none."""
        return self.p_value < SURE

    @property
    def bias(self) -> float:
        """The length of the mean gradient less the reference, or zero where noise would explain more than all of it."""
        return math.sqrt(max(self.squared_bias.value, 0))

    @property
    def relative_bias(self) -> float:
        """The bias in lengths of the reference."""
        return _ratio(self.bias, self.reference.length)

    @property
    def relative_bias_limit(self) -> float:
        """The relative bias that would be two standard errors above the one found: as large as it may well be."""
        squared = max(self.squared_bias.value, 0) + 2 * self.squared_bias.error
        return _ratio(math.sqrt(squared), self.reference.length)

    @property
    def mean_squared_error(self) -> float:
        """The mean squared distance of one gradient from the reference, which is variance and squared bias."""
        return self.variance.value + self.squared_bias.value

    @property
    def signal_to_noise(self) -> float:
        """The length of the reference over the standard deviation of one gradient."""
        return _ratio(self.reference.length, math.sqrt(self.variance.value))

    @property
    def seconds_to_signal(self) -> float:
        """The time of as many gradients as have a signal-to-noise ratio of 1 if averaged: variance times time."""
        return self.seconds / self.signal_to_noise**2 if self.signal_to_noise else math.inf


@dataclass(frozen=True, eq=False)
class GradientStudy:
    """What a study found, by the names of the estimators."""

    findings: Mapping[str, Finding]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings.values())

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, name: str) -> Finding:
        return self.findings[name]

    @property
    def references(self) -> list[Reference]:
        """The gradients that the estimators were judged by, one for each objective."""
        return list(dict.fromkeys(finding.reference for finding in self))

    @property
    def notes(self) -> list[str]:
        """How to read the table."""
        return [
            *(f"reference: {reference}" for reference in self.references),
            "bias: in lengths of the reference; < where none was found, and none above this is likely",
            "SNR: the length of the reference over the standard deviation of one gradient",
            "ms: the time of one gradient, and of as many as have an SNR of 1 if averaged",
        ]

    def table(self) -> list[list[str]]:
        """What was found as text, after a row of titles."""
        titles = ["estimator", "m", "objective", "bias", "variance", "SNR", "ms", "ms to 1"]
        rows = [
            [
                finding.name,
                str(finding.samples),
                finding.objective,
                _share(finding.relative_bias) if finding.is_biased else "< " + _share(finding.relative_bias_limit),
                str(finding.variance),
                f"{finding.signal_to_noise:.3g}",
                f"{1e3 * finding.seconds:.3g}",
                f"{1e3 * finding.seconds_to_signal:.3g}",
            ]
            for finding in self
        ]
        return [titles, *rows]

    def __str__(self) -> str:
        table = self.table()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = []
        for name, *cells in table:
            aligned = [name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]
            lines.append("  ".join(aligned))
        return "\n".join([*lines, "", *self.notes])


def gradient_study(
    target: Model | Program,
    *inputs: Any,
    estimators: Mapping[str, Estimator | tuple[Estimator, int]],
    samples: int = 1,
    repeats: int = 1000,
    objective: Objective | None = None,
    parameters: Sequence[Tensor] | None = None,
    reference: Estimator | None = None,
    reference_repeats: int | None = None,
    generator: Generator | None = None,
    progress: bool = False,
) -> GradientStudy:
    """Find the bias, the variance and the time of gradient estimators by so many gradients of each.

    An estimator may come with a number of samples of its own, as `(VIMCO(), 5)`. Counted are the gradients in
    `parameters`, by default all of the target's; a program that is no module has none that could be found. Modules
    of the target are in evaluation meanwhile, so that their running averages stand still, and estimators are left in
    the state in which they were found, as are all gradients.

    Estimators are judged by the exact gradient of what they estimate or, unless that takes at most 2¹⁶ states of all
    samples and data points, by the mean of `reference_repeats` unbiased gradients, ten times as many as `repeats`,
    whose error is taken into account. `reference` is an unbiased estimator to take instead.

    >>> import concretely as c
    >>> logits = torch.ones(3, requires_grad=True)
    >>> def program(draw):
    ...     return (draw("b", c.Bernoulli(logits)) - 0.45).square().sum(-1)
    >>> estimators = {"rloo": c.RLOO(), "straight-through": (c.StraightThrough(), 1)}
    >>> study = gradient_study(program, estimators=estimators, samples=4, repeats=100, parameters=[logits])
    >>> study["rloo"].is_biased, study["straight-through"].is_biased
    (False, True)
    """
    repeats = _at_least_two(repeats, "repeats")
    longer = 10 * repeats if reference_repeats is None else _at_least_two(reference_repeats, "reference_repeats")
    if not callable(target):
        raise TypeError(f"target must be a model or a program, got {type(target).__name__}")
    if objective is None:
        objective = bound if isinstance(target, Model) else average
    if not callable(objective):
        raise TypeError(f"objective must be a function of log-weights such as `bound`, got {type(objective).__name__}")
    contenders = _contenders(estimators, samples)
    aims = {name: _aim(estimator, objective, m) for name, (estimator, m) in contenders.items()}
    if reference is not None:
        _require_aims(reference, aims)
    counted = _parameters(target, parameters)
    groups = min(GROUPS, repeats, longer)

    def gradient(estimator: Estimator, samples: int, objective: Objective) -> Gradient:
        found = estimate(
            target, *inputs, estimator=estimator, samples=samples, objective=objective, generator=generator
        )
        if not found.loss.requires_grad:
            return (None,) * len(counted)
        return torch.autograd.grad(found.loss, counted, allow_unused=True)

    def say(what: str) -> Callable[[str], None]:
        return lambda line: print(f"{what}: {line}", file=sys.stderr, flush=True) if progress else None

    def judge(aim: _Aim) -> tuple[Reference, Tensor]:
        method, m = _method(target, inputs, aim, reference, generator)
        count = 1 if isinstance(method, Exact) else longer
        (tally,) = _tally([partial(gradient, method, m, aim.objective)], counted, count, groups, say("reference"))
        found = Reference(
            gradient=_split(tally.mean, counted),
            method=type(method).__name__,
            objective=_title(aim.objective),
            samples=aim.samples,
            repeats=count,
            error=math.sqrt(tally.variance.value / count) if count > 1 else 0.0,
        )
        return found, tally.groups

    with _undisturbed(target, *(estimator for estimator, _ in contenders.values()), reference), torch.enable_grad():
        tried = [partial(gradient, estimator, m, objective) for estimator, m in contenders.values()]
        # each once beforehand: what an estimator refuses, it refuses before any work, and no clock times a first call
        firsts = [once() for once in tried]
        if all(part is None for first in firsts for part in first):
            raise ValueError("parameters must enter the target, got none that does")
        references = {aim: judge(aim) for aim in dict.fromkeys(aims.values())}
        tallies = _tally(tried, counted, repeats, groups, say("estimators"))
    findings = {}
    for (name, aim), tally in zip(aims.items(), tallies, strict=True):
        judged_by, truth = references[aim]
        squared_bias, p_value = bias(tally.groups - truth, _rounding(judged_by, counted))
        findings[name] = Finding(
            name=name,
            samples=contenders[name][1],
            objective=_title(aim.objective),
            repeats=repeats,
            mean=_split(tally.mean, counted),
            squared_bias=squared_bias,
            p_value=p_value,
            variance=tally.variance,
            seconds=median(tally.seconds),
            reference=judged_by,
        )
    return GradientStudy(findings)


def bias(gaps: Float[Tensor, "groups size"], rounding: float = 0.0) -> tuple[Measure, float]:
    """The squared length of the expectation of independent vectors, and the p-value of its being zero.

    The first is the mean of the products of two different vectors, with the error of the jackknife. The second is the
    share of all ways to flip vectors that give a mean as long: were the expectation zero, all would be as likely,
    whatever the covariance. A mean within rounding is as good as none.
    """
    groups = len(gaps)
    gram = gaps @ gaps.T
    others = (gram.sum(1) - gram.diag()) / (groups - 1)
    squared = others.mean()
    error = math.inf  # two vectors do not tell
    if groups > 2:
        error = 2 * math.sqrt((groups - 1) / groups) / (groups - 2) * float((others - squared).norm())
    # all ways but for a flip of all, which changes nothing
    ways = torch.arange(2 ** (groups - 1)).unsqueeze(-1)
    flips = 1 - 2 * (ways >> torch.arange(groups) & 1).to(gram)
    lengths = ((flips @ gram) * flips).sum(1)
    as_long = lengths >= lengths[0] * (1 - 1e-9)  # what is equal on paper counts
    p_value = float(as_long.double().mean()) if float(gaps.mean(0).norm()) > rounding else 1.0
    return Measure(float(squared), error), p_value


class _Aim(NamedTuple):
    """What an estimator estimates the gradient of."""

    objective: Objective
    samples: int


class _Tally:
    """What is kept of many gradients: means in float64, on the host whatever the device, and a few numbers."""

    def __init__(self, parameters: Sequence[Tensor], groups: int) -> None:
        self.parameters, self.device = parameters, parameters[0].device
        size = sum(parameter.numel() for parameter in parameters)
        self.mean = torch.zeros(size, dtype=torch.float64)
        self.groups = self.mean.new_zeros(groups, size)
        self.counts = [0] * groups
        self.spreads: list[float] = []
        self.seconds: list[float] = []

    @property
    def variance(self) -> Measure:
        """The trace of the covariance; the error of a single spread is anyone's guess."""
        spreads = torch.tensor(self.spreads, dtype=torch.float64)
        error = float(spreads.std()) / math.sqrt(len(spreads)) if len(spreads) > 1 else math.inf
        return Measure(float(spreads.mean()), error)

    def add(self, gradient: Callable[[], Gradient], group: int) -> None:
        """Take a gradient and its time."""
        start = _now(self.device)
        parts = gradient()
        self.seconds.append(_now(self.device) - start)
        vector = _flat(parts, self.parameters)
        before = sum(self.counts)
        step = vector - self.mean
        self.mean += step / (before + 1)
        if before:
            # recursive residuals: each has the variance as its mean, and hardly depends on the others
            self.spreads.append(float(step @ step) * before / (before + 1))
        self.counts[group] += 1
        self.groups[group] += (vector - self.groups[group]) / self.counts[group]


def _tally(
    gradients: Sequence[Callable[[], Gradient]],
    parameters: Sequence[Tensor],
    repeats: int,
    groups: int,
    say: Callable[[str], None],
) -> list[_Tally]:
    """Take so many of each kind of gradient, group by group in turn, so that all share the moods of the machine."""
    groups = min(groups, repeats)
    tallies = [_Tally(parameters, groups) for _ in gradients]
    for group in range(groups):
        for tally, gradient in zip(tallies, gradients, strict=True):
            for _ in range(group * repeats // groups, (group + 1) * repeats // groups):
                tally.add(gradient, group)
        say(f"{(group + 1) * repeats // groups} of {repeats} gradients")
    return tallies


def _aim(estimator: Estimator, objective: Objective, samples: int) -> _Aim:
    """What is estimated, which the number of samples enters or not."""
    averages = objective is average or isinstance(estimator, RLOO | NVIL) or (objective is bound and samples == 1)
    return _Aim(average, 1) if averages else _Aim(objective, samples)


def _method(
    target: Model | Program,
    inputs: tuple[Any, ...],
    aim: _Aim,
    reference: Estimator | None,
    generator: Generator | None,
) -> tuple[Estimator, int]:
    """How to get at the gradient that an estimator aims at: an estimator, and its number of samples."""
    samples = REFERENCE_SAMPLES if aim.objective is average else aim.samples
    if reference is not None:
        return reference, samples
    if _bits(target, inputs, generator, samples=aim.samples) <= math.log2(STATES):
        return Exact(), aim.samples
    if aim.objective is average:
        return RLOO(), samples
    return VIMCO() if aim.objective is bound else Score(), samples


def _bits(target: Model | Program, inputs: tuple[Any, ...], generator: Generator | None, *, samples: int) -> float:
    """The logarithm of the number of joint states of all samples and data points; infinite if a node is continuous."""
    if isinstance(target, Model):
        _, trace = target.trace(*inputs, mode=Discrete(), generator=generator)
    else:
        trace = run(target, Discrete(), *inputs, generator=generator)
    bits = 0.0
    for name in trace.latent:
        mass = trace[name].distribution
        if not isinstance(mass, Mass):
            return math.inf
        units = mass.batch_shape[len(trace.batch_shape) :].numel()
        bits += units * math.log2(len(mass.enumerate_support(expand=False)))
    return samples * bits + math.log2(max(trace.batch_shape.numel(), 1))


@contextmanager
def _undisturbed(target: Any, *estimators: Any) -> Iterator[None]:
    """Hold the running averages of a target, and restore those of estimators."""
    training = {module: module.training for module in target.modules()} if isinstance(target, nn.Module) else {}
    modules = [estimator for estimator in estimators if isinstance(estimator, nn.Module)]
    kept = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers()]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
        for buffer, before in kept:
            buffer.copy_(before)


def _contenders(estimators: Mapping[str, Any], samples: int) -> dict[str, tuple[Estimator, int]]:
    """Every estimator with its number of samples."""
    if not isinstance(estimators, Mapping):
        raise TypeError(f"estimators must be a map from names to estimators, got {type(estimators).__name__}")
    if not estimators:
        raise ValueError("estimators must hold at least one, got none")
    contenders = {}
    for name, entry in estimators.items():
        estimator, m = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, samples)
        _require_estimator(estimator, f"estimator {name!r} must be one such as RLOO(), or a pair as (RLOO(), 4)")
        if isinstance(m, bool) or not isinstance(m, int) or m < 1:
            raise ValueError(f"samples must be a positive whole number, got {m!r} for estimator {name!r}")
        contenders[name] = estimator, m
    return contenders


def _parameters(target: Any, parameters: Sequence[Tensor] | None) -> Sequence[Tensor]:
    """What to take the gradient in."""
    if parameters is None:
        own = target.parameters() if isinstance(target, nn.Module) else ()
        parameters = [parameter for parameter in own if parameter.requires_grad]
        if not parameters:
            raise ValueError("parameters must be given for a target that has none of its own, got none")
    if not parameters:
        raise ValueError("parameters must hold at least one tensor, got none")
    for place, parameter in enumerate(parameters):
        if not isinstance(parameter, Tensor):
            raise TypeError(f"parameters must be tensors, got {type(parameter).__name__} at place {place}")
        if not parameter.requires_grad:
            raise ValueError(f"parameters must require a gradient, got one that does not at place {place}")
    return parameters


def _require_estimator(estimator: Any, expected: str) -> None:
    if isinstance(estimator, type) or not isinstance(estimator, Estimator):
        found = estimator.__name__ if isinstance(estimator, type) else type(estimator).__name__
        raise TypeError(f"{expected}, got {found}")


def _require_aims(reference: Estimator, aims: Mapping[str, _Aim]) -> None:
    _require_estimator(reference, "reference must be an estimator such as Exact()")
    for name, aim in aims.items():
        if _aim(reference, *aim) != aim or (isinstance(reference, VIMCO) and aim.objective is not bound):
            found = type(reference).__name__
            raise ValueError(f"reference must estimate the {_title(aim.objective)}, as {name!r} does, got {found}")


def _at_least_two(repeats: Any, name: str) -> int:
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 2:
        raise ValueError(f"{name} must be a whole number of at least 2, got {repeats!r}")
    return repeats


def _flat(parts: Gradient, parameters: Sequence[Tensor]) -> Float[Tensor, "size"]:
    """The gradient as one vector, zero where a parameter does not enter."""
    pairs = zip(parts, parameters, strict=True)
    filled = [torch.zeros_like(parameter) if part is None else part for part, parameter in pairs]
    return torch.cat([part.detach().cpu().double().flatten() for part in filled])


def _split(vector: Float[Tensor, "size"], parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A vector as one tensor for each parameter."""
    parts = vector.split([parameter.numel() for parameter in parameters])
    return tuple(part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True))


def _rounding(reference: Reference, parameters: Sequence[Tensor]) -> float:
    """The gap between two gradients that may be rounding alone."""
    return 32 * max(torch.finfo(parameter.dtype).eps for parameter in parameters) * reference.length


def _now(device: torch.device) -> float:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def _title(objective: Objective) -> str:
    return getattr(objective, "__name__", type(objective).__name__)


def _ratio(part: float, whole: float) -> float:
    """A ratio, infinite over zero."""
    if whole:
        return part / whole
    return math.inf if part else math.nan


def _share(number: float) -> str:
    return f"{100 * number:.2g} %" if number < 1 else f"{100 * number:.0f} %"
