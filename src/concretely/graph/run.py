"""Run stochastic graphs."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Distribution

from ..distribution.variable import DiscreteVariable
from ..noise import Source
from ..spelling import did_you_mean
from .mode import Mode, Shape, Structure
from .parents import parents
from .program import Program, eval_mode
from .trace import Outcome, Trace

__all__ = ["run"]


def run(
    program: Program,
    mode: Mode,
    *inputs: Any,
    samples: int | None = None,
    generator: Source | None = None,
    batch_dims: int = 1,
) -> Trace:
    """Run a program once; the mode decides how nodes are drawn.

    With `samples`, the first draw adds a leading sample axis; code before it runs once for all samples. The first
    `batch_dims` axes of the first input are the batch. The batch shape of every drawn node must begin with them; its
    other axes are independent units.

    >>> from concretely import Bernoulli, mode
    >>> def program(draw, x):
    ...     gate = draw("gate", Bernoulli(x))
    ...     return (gate * x).sum(-1)
    >>> trace = run(program, mode.Discrete(), torch.zeros(4, 3), samples=5)
    >>> trace.values["gate"].shape, trace.log_prob("gate").shape, trace.output.shape
    (torch.Size([5, 4, 3]), torch.Size([5, 4]), torch.Size([5, 4]))
    """
    if not isinstance(mode, Mode):
        found = f"the class {mode.__name__}" if isinstance(mode, type) else type(mode).__name__
        raise TypeError(f"mode must be a mode, such as concretely.mode.Discrete(), got {found}")
    batch_shape = _batch_shape(inputs, batch_dims)
    structure = _Structure(program, inputs, batch_shape)
    mode = mode.prepare(structure)
    samples = _sample_count(samples, mode.samples)
    outcomes: dict[str, Outcome] = {}
    sample_axis = False

    def draw(name: str, distribution: Distribution, *, observed: Tensor | None = None) -> Tensor:
        nonlocal sample_axis
        _require_new(name, outcomes)
        if not isinstance(distribution, Distribution):
            raise TypeError(f"node {name!r} must be given a distribution, got {type(distribution).__name__}")
        if observed is not None:
            _require_data(name, observed, batch_shape)
            _require_fit(name, distribution, observed, batch_shape, samples)
            summed = (
                partial(distribution.summed_log_prob, observed) if isinstance(distribution, DiscreteVariable) else None
            )
            score = partial(distribution.log_prob, observed)
            outcome = Outcome(observed, distribution, observed=True, score=score, summed=summed)
        else:
            sample_shape: tuple[int, ...] = ()
            if samples is not None and mode.repeats:
                earlier = structure if sample_axis else None
                sample_shape = _sample_shape(name, distribution, samples, batch_shape, earlier)
            shape = (*sample_shape, *distribution.batch_shape)
            axes = max(len(shape) - len(batch_shape) - (samples is not None), 0)
            drawn = mode.draw(name, distribution, sample_shape, generator, axes)
            outcome = Outcome(
                drawn.value,
                distribution,
                observed=False,
                score=drawn.score,
                summed=drawn.summed,
                node=drawn.node,
            )
            sample_axis = samples is not None
        outcomes[name] = outcome
        return outcome.value

    output = program(draw, *inputs)
    drawn = [name for name, outcome in outcomes.items() if not outcome.observed]
    for name in sorted(mode.names.difference(drawn)):
        raise ValueError(f"temperature must name nodes that the graph draws, got {name!r}{did_you_mean(name, drawn)}")
    return Trace(
        outcomes,
        output,
        samples=samples,
        batch_shape=batch_shape,
        find_parents=lambda: parents(program, inputs, outcomes),
    )


class _Structure:
    """Find the shapes of the drawn nodes without a sample axis, by a run that sets every node to its mode or mean."""

    def __init__(self, program: Program, inputs: tuple[Any, ...], batch_shape: Size) -> None:
        self.program, self.inputs, self.batch_shape = program, inputs, batch_shape
        self.found: Structure | None = None

    def __call__(self) -> Structure:
        if self.found is None:
            self.found = self._find()
        return self.found

    def _find(self) -> Structure:
        shapes: dict[str, Shape] = {}

        def draw(name: str, distribution: Distribution, *, observed: Tensor | None = None) -> Tensor:
            if observed is not None:
                return observed
            _require_new(name, shapes)
            _require_batch(name, distribution, self.batch_shape)
            shape = distribution.batch_shape
            categories = (
                len(distribution.enumerate_support(expand=False))
                if isinstance(distribution, DiscreteVariable)
                else None
            )
            shapes[name] = Shape(shape, shape[len(self.batch_shape) :], categories)
            return distribution.mode if isinstance(distribution, DiscreteVariable) else distribution.mean

        # torch.compile cannot trace eval_mode
        context = nullcontext() if torch.compiler.is_compiling() else eval_mode(self.program)
        with context, torch.no_grad():
            self.program(draw, *self.inputs)
        return shapes


def _batch_shape(inputs: tuple[Any, ...], batch_dims: int) -> Size:
    first = inputs[0] if inputs else None
    return first.shape[:batch_dims] if isinstance(first, Tensor) else Size()


def _sample_count(samples: int | None, mode_samples: int | None) -> int | None:
    if samples is None:
        return mode_samples
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples must be a positive whole number, got {samples!r}")
    if mode_samples not in (None, samples):
        raise ValueError(f"samples must be omitted in a mode that sets it to {mode_samples}, got {samples}")
    return samples


def _sample_shape(
    name: str,
    distribution: Distribution,
    samples: int,
    batch_shape: Size,
    structure: Callable[[], Structure] | None,
) -> tuple[int, ...]:
    """Return the axes that a draw must add: the sample axis, unless the node has it from an earlier draw."""
    shape = distribution.batch_shape
    if structure is None or shape[: len(batch_shape) + 1] != (samples, *batch_shape):
        _require_batch(name, distribution, batch_shape)
        return (samples,)
    # the first axis may also be a batch or unit axis of the same length
    may_lack = shape[: len(batch_shape)] == batch_shape
    return (samples,) if may_lack and shape == structure()[name].batch_shape else ()


def _require_batch(name: str, distribution: Distribution, batch_shape: Size) -> None:
    shape = distribution.batch_shape
    if shape[: len(batch_shape)] != batch_shape:
        raise ValueError(
            f"the batch shape of node {name!r} must begin with {tuple(batch_shape)}, that of the first input, "
            f"got {tuple(shape)}: expand its logits, one set for each data point"
        )


def _require_data(name: str, observed: Tensor, batch_shape: Size) -> None:
    if not isinstance(observed, Tensor):
        raise TypeError(f"the observed value of node {name!r} must be a tensor, got {type(observed).__name__}")
    if observed.shape[: len(batch_shape)] != batch_shape:
        raise ValueError(
            f"the shape of the observed value of node {name!r} must begin with the batch shape {tuple(batch_shape)} "
            f"of the first input, got {tuple(observed.shape)}"
        )


def _require_fit(
    name: str, distribution: Distribution, observed: Tensor, batch_shape: Size, samples: int | None
) -> None:
    """Raise if a distribution would score an observed value twice, or against the wrong data points."""
    units = observed.shape[len(batch_shape) : observed.dim() - len(distribution.event_shape)]
    shape = distribution.batch_shape
    lead, own = shape[: max(len(shape) - len(units), 0)], shape[max(len(shape) - len(units), 0) :]
    leads = [(), tuple(batch_shape), (samples, *batch_shape)]
    if tuple(lead) not in leads or any(
        one not in (1, other) for one, other in zip(own[::-1], units[::-1], strict=False)
    ):
        found = f"{tuple(shape)} and {tuple(observed.shape)}"
        raise ValueError(f"the batch shape of node {name!r} must match the shape of its observed value, got {found}")


def _require_new(name: str, names: Any) -> None:
    if name in names:
        raise ValueError(f"node names must be unique, got {name!r} twice")
