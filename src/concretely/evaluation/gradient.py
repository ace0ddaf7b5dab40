"""Compare gradient estimators on a problem: the bias, the variance and the time of each."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_leaves

from ..estimator import Estimator
from ..graph.program import Program, eval_mode
from ..model.model import Model
from ..objective import Objective, average, bound
from .finding import Finding, GradientStudy
from .progress import counting
from .reference import Aim, aim, refer
from .tally import p_value, squared_expectation
from .trial import Problem, Trial

GROUPS = 16
"""The maximum number of groups in which gradients are averaged. With n groups, the sign-flip test takes 2ⁿ⁻¹ flips."""


def gradient_study(
    target: Model | Program,
    *inputs: Any,
    estimators: Mapping[str, Estimator | tuple[Estimator, int]],
    samples: int = 1,
    repeats: int = 1000,
    objective: Objective | None = None,
    parameters: Iterable[Tensor] | None = None,
    reference: Estimator | None = None,
    reference_repeats: int | None = None,
    generator: Generator | None = None,
    progress: bool = False,
) -> GradientStudy:
    """Measure the bias, the variance and the time of gradient estimators from `repeats` estimates of each.

    An estimator may have its own number of samples, as in `(VIMCO(), 5)`. Gradients are taken with respect to
    `parameters`, by default all parameters of the target; a program that is not a module has none. Modules of the
    target run in evaluation mode, so that running averages do not change. Buffers of the estimators are restored, and
    no `.grad` is written.

    The reference is the exact gradient of the estimated objective if that takes at most 2¹⁶ joint states of all samples
    and data points. Otherwise it is the mean of `reference_repeats` unbiased estimates, by default ten times `repeats`,
    and its error is taken into account. `reference` is an unbiased estimator to use instead. With `progress`, progress
    bars are shown on stderr.

    >>> import concretely as c
    >>> logits = torch.ones(3, requires_grad=True)
    >>> def program(draw):
    ...     return (draw("b", c.Bernoulli(logits=logits)) - 0.45).square().sum(-1)
    >>> estimators = {"rloo": c.RLOO(), "straight-through": (c.StraightThrough(), 1)}
    >>> study = gradient_study(program, estimators=estimators, samples=4, repeats=100, parameters=[logits])
    >>> study["rloo"].is_biased, study["straight-through"].is_biased
    (False, True)
    """
    if not isinstance(estimators, Mapping) or not estimators:
        raise ValueError(f"estimators must be a map from names to estimators, got {estimators!r}")
    if any(isinstance(leaf, Tensor) and leaf.dim() and not len(leaf) for leaf in tree_leaves(inputs)[:1]):
        raise ValueError("inputs must have at least one data point, got none")
    reference_repeats = 10 * repeats if reference_repeats is None else reference_repeats
    for name, number in (("repeats", repeats), ("reference_repeats", reference_repeats)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 2:
            raise ValueError(f"{name} must be a whole number of at least 2, got {number!r}")
    groups = min(GROUPS, repeats, reference_repeats)
    if objective is None:
        objective = bound if isinstance(target, Model) else average
    problem = Problem(target, inputs, _counted(target, parameters), generator)
    trials = {name: _trial(entry, objective, samples) for name, entry in estimators.items()}
    aims = {name: aim(trial) for name, trial in trials.items()}
    if reference is not None:
        _require_aims(reference, aims)
    with _undisturbed(target, *(trial.estimator for trial in trials.values()), reference), torch.enable_grad():
        _require_gradient(problem, trials.values())
        distinct = list(dict.fromkeys(aims.values()))
        with counting("references", reference_repeats * len(distinct), shown=progress) as advance:
            references = {
                aimed: refer(problem, aimed, reference, repeats=reference_repeats, groups=groups, advance=advance)
                for aimed in distinct
            }
        with counting("estimators", repeats * len(trials), shown=progress) as advance:
            tallies = problem.tallies(list(trials.values()), repeats=repeats, groups=groups, advance=advance)
    # the relative difference between two gradients that rounding alone can explain
    rounding = 32 * max(torch.finfo(parameter.dtype).eps for parameter in problem.parameters)
    findings = {}
    for (name, trial), (tally, seconds) in zip(trials.items(), tallies, strict=True):
        judged_by, truth = references[aims[name]]
        gaps = tally.groups - truth.groups
        findings[name] = Finding(
            samples=trial.samples,
            reference=judged_by,
            mean=problem.split(tally.mean),
            squared_bias=squared_expectation(gaps),
            p_value=p_value(gaps, rounding=rounding * judged_by.length),
            variance=tally.variance,
            seconds=seconds,
        )
    return GradientStudy(findings)


def _trial(entry: Estimator | tuple[Estimator, int], objective: Objective, samples: int) -> Trial:
    """Return the trial of an estimator, with its own number of samples if it has one."""
    estimator, m = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, samples)
    return Trial(estimator, average if getattr(estimator, "averages", False) else objective, m)


@contextmanager
def _undisturbed(target: Any, *estimators: Any) -> Iterator[None]:
    """Put the target into evaluation mode, and restore the buffers of the estimators afterwards."""
    modules = [estimator for estimator in estimators if isinstance(estimator, nn.Module)]
    kept = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers()]
    try:
        with eval_mode(target):
            yield
    finally:
        for buffer, before in kept:
            buffer.copy_(before)


def _counted(target: Any, parameters: Iterable[Tensor] | None) -> list[Tensor]:
    """Return the tensors with respect to which gradients are taken."""
    if parameters is None:
        own = target.parameters() if isinstance(target, nn.Module) else ()
        parameters = [parameter for parameter in own if parameter.requires_grad]
    counted = list(parameters)
    if not counted:
        raise ValueError(
            "parameters must hold at least one tensor, got none: pass those of a program that is not a module"
        )
    for place, parameter in enumerate(counted):
        if not isinstance(parameter, Tensor) or not parameter.requires_grad:
            raise ValueError(f"parameters must be tensors that require a gradient, got another at index {place}")
    return counted


def _require_aims(reference: Estimator, aims: Mapping[str, Aim]) -> None:
    for name, aimed in aims.items():
        if aim(Trial(reference, *aimed)) != aimed:
            got = type(reference).__name__
            raise ValueError(f"reference must estimate the {aimed.title}, as {name!r} does, got {got}")


def _require_gradient(problem: Problem, trials: Iterable[Trial]) -> None:
    """Run every trial once, so that bad input raises an error early, and the slow first call is not timed."""
    entering = [any(part is not None for part in problem.gradient(trial)) for trial in trials]
    if not any(entering):
        raise ValueError("parameters must be used by the target, got none that is")
