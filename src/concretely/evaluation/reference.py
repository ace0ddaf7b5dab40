"""Reference gradients: the gradient of the objective of an estimator, exact or averaged over many estimates."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from ..distribution.variable import DiscreteVariable
from ..estimator import RLOO, VIMCO, Estimator, Exact, Reinforce
from ..graph.mode import Discrete
from ..objective import Objective, average, bound, log_weights
from .progress import Advance
from .tally import Tally
from .trial import Problem, Trial

STATES = 2**16
"""The maximum number of joint states of all samples and data points that are enumerated by default."""

SAMPLES = 8
"""The number of samples in each reference estimate of the objective `average`, which does not depend on it."""


class Aim(NamedTuple):
    """The objective whose gradient an estimator estimates."""

    objective: Objective
    samples: int
    """The number of samples in the objective, or 1 for the objective `average`."""

    @property
    def title(self) -> str:
        """The name of the objective."""
        return getattr(self.objective, "__name__", type(self.objective).__name__)

    def __str__(self) -> str:
        return self.title if self.samples == 1 else f"{self.title} of {self.samples} samples"


@dataclass(frozen=True, eq=False)
class Reference:
    """A reference gradient and its error."""

    aim: Aim
    gradient: tuple[Tensor, ...] = field(repr=False)
    """One tensor for each parameter."""
    method: str
    """The class of the estimator that computed it."""
    repeats: int
    """The number of averaged estimates, or 1 if the gradient is exact."""
    error: float
    """The root mean square norm of the error of the gradient, or zero if it is exact."""

    @property
    def length(self) -> float:
        """The norm of the gradient, corrected for the noise in its estimate."""
        squared = sum(float(part.square().sum()) for part in self.gradient)
        return math.sqrt(max(squared - self.error**2, 0))

    def __str__(self) -> str:
        source = "exact" if self.repeats == 1 else f"from {self.repeats} estimates by {self.method}"
        error = f" with an error of {self.error:.1g}" if self.error else ""
        return f"of the {self.aim}, {source}, of length {self.length:.3g}{error}"


def aim(trial: Trial) -> Aim:
    """Return the objective that a trial estimates, which may differ from the requested one."""
    estimator, objective, samples = trial
    averages = objective is average or getattr(estimator, "averages", False)
    return Aim(average, 1) if averages or (objective is bound and samples == 1) else Aim(objective, samples)


def refer(
    problem: Problem, aim: Aim, estimator: Estimator | None, *, repeats: int, groups: int, advance: Advance
) -> tuple[Reference, Tally]:
    """Return the reference gradient and its tally: an average of unbiased estimates, or one exact gradient."""
    estimator = _unbiased(problem, aim) if estimator is None else estimator
    if isinstance(estimator, Exact):
        advance(repeats - 1)  # one is enough
        repeats = 1
    trial = Trial(estimator, aim.objective, SAMPLES if aim.objective is average else aim.samples)
    ((tally, _),) = problem.tallies([trial], repeats=repeats, groups=min(groups, repeats), advance=advance)
    error = math.sqrt(tally.variance.value / repeats) if repeats > 1 else 0.0
    return Reference(aim, problem.split(tally.mean), type(estimator).__name__, repeats, error), tally


def _unbiased(problem: Problem, aim: Aim) -> Estimator:
    """Return an unbiased estimator: enumeration if there are few states, else the one with the least variance."""
    if _bits(problem, aim.samples) <= math.log2(STATES):
        return Exact()
    if aim.objective is average:
        return RLOO()
    return VIMCO() if aim.objective is bound else Reinforce()


def _bits(problem: Problem, samples: int) -> float:
    """Return log2 of the number of joint states of all samples and data points, or infinity for continuous nodes."""
    trace = log_weights(problem.target, *problem.inputs, mode=Discrete(), generator=problem.generator).q
    bits = 0.0
    for name in trace.latent:
        mass = trace[name].distribution
        if not isinstance(mass, DiscreteVariable):
            return math.inf
        units = mass.batch_shape[len(trace.rows.batch_shape) :].numel()
        bits += units * math.log2(len(mass.enumerate_support(expand=False)))
    return samples * bits + math.log2(max(trace.rows.batch_shape.numel(), 1))
