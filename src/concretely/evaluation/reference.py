"""The gradient that an estimator is judged by: that of the objective which it estimates, whatever was asked for."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from ..distribution.discrete import DiscreteVariable
from ..estimator import RLOO, VIMCO, Estimator, Exact, Reinforce
from ..mode import Discrete
from ..objective import Objective, average, bound, log_weights
from .progress import Advance
from .tally import Tally
from .trial import Problem, Trial

STATES = 2**16
"""The most states, of all samples and data points together, that are enumerated unasked."""

SAMPLES = 8
"""The samples of each estimate of an average, which does not depend on their number."""


class Aim(NamedTuple):
    """What an estimator estimates the gradient of."""

    objective: Objective
    samples: int
    """The number of samples that enter the objective; one if it is an average, whatever their number."""

    @property
    def title(self) -> str:
        """The name of the objective."""
        return getattr(self.objective, "__name__", type(self.objective).__name__)

    def __str__(self) -> str:
        return self.title if self.samples == 1 else f"{self.title} of {self.samples} samples"


@dataclass(frozen=True, eq=False)
class Reference:
    """The gradient that an estimator is judged by."""

    aim: Aim
    gradient: tuple[Tensor, ...] = field(repr=False)
    """One tensor for each parameter."""
    method: str
    """The estimator that it comes from."""
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
        source = "exact" if self.repeats == 1 else f"from {self.repeats} estimates by {self.method}"
        error = f" with an error of {self.error:.1g}" if self.error else ""
        return f"of the {self.aim}, {source}, of length {self.length:.3g}{error}"


def aim(trial: Trial) -> Aim:
    """What a trial estimates, whatever it was asked for."""
    estimator, objective, samples = trial
    averages = objective is average or getattr(estimator, "averages", False)
    return Aim(average, 1) if averages or (objective is bound and samples == 1) else Aim(objective, samples)


def refer(
    problem: Problem, aim: Aim, estimator: Estimator | None, *, repeats: int, groups: int, advance: Advance
) -> tuple[Reference, Tally]:
    """The mean of so many estimates or, if it is exact, of one, by an unbiased estimator; and their tally."""
    estimator = _unbiased(problem, aim) if estimator is None else estimator
    if isinstance(estimator, Exact):
        advance(repeats - 1)  # which need not be made
        repeats = 1
    trial = Trial(estimator, aim.objective, SAMPLES if aim.objective is average else aim.samples)
    ((tally, _),) = problem.tallies([trial], repeats=repeats, groups=min(groups, repeats), advance=advance)
    error = math.sqrt(tally.variance.value / repeats) if repeats > 1 else 0.0
    return Reference(aim, problem.split(tally.mean), type(estimator).__name__, repeats, error), tally


def _unbiased(problem: Problem, aim: Aim) -> Estimator:
    """An estimator without bias: enumeration where that is little work, or else the one of least variance."""
    if _bits(problem, aim.samples) <= math.log2(STATES):
        return Exact()
    if aim.objective is average:
        return RLOO()
    return VIMCO() if aim.objective is bound else Reinforce()


def _bits(problem: Problem, samples: int) -> float:
    """The logarithm of the number of joint states of all samples and data points; infinite if a node is continuous."""
    trace = log_weights(problem.target, *problem.inputs, mode=Discrete(), generator=problem.generator).q
    bits = 0.0
    for name in trace.latent:
        mass = trace[name].distribution
        if not isinstance(mass, DiscreteVariable):
            return math.inf
        units = mass.batch_shape[len(trace.batch_shape) :].numel()
        bits += units * math.log2(len(mass.enumerate_support(expand=False)))
    return samples * bits + math.log2(max(trace.batch_shape.numel(), 1))
