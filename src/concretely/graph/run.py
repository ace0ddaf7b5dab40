"""Run stochastic graphs."""

import re
from collections.abc import Callable
from functools import partial
from traceback import walk_tb
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Distribution
from torch.utils._pytree import tree_leaves

from ..distribution.variable import DiscreteVariable
from ..functional.draw import Drawn
from ..functional.noise import Source, require_source
from ..functional.slice import Slice
from ..spelling import did_you_mean
from .descent import Descent, parents
from .mode import Mode, Request, Shape, Structure, described
from .program import Program, eval_mode, signature
from .trace import Outcome, Rows, Trace

SHAPES = re.compile("size|shape|batch", re.IGNORECASE)
"""Matches errors about shapes."""


def run(
    program: Program,
    *inputs: Any,
    mode: Mode,
    samples: int | None = None,
    generator: Source | None = None,
    batch_dims: int = 1,
) -> Trace:
    """Run a program once and return its trace. The mode decides how nodes are drawn.

    The first `batch_dims` axes of the first input are the batch. With m `samples`, a draw turns the first batch axis of
    B rows into m·B rows, all data points of the first sample first. Code before the first draw runs once for all
    samples. Use `tile` where a tensor of B rows meets a drawn value. Without inputs, a draw adds a first axis of m
    rows. Further axes of a node's batch shape are independent units. A node whose batch shape does not begin with the
    batch is shared by all data points; this is allowed with one sample only.

    >>> from concretely import Bernoulli, mode, tile
    >>> def program(draw, x):
    ...     gate = draw("gate", Bernoulli(logits=x))
    ...     return (gate * tile(x, gate)).sum(-1)
    >>> trace = run(program, torch.zeros(4, 3), mode=mode.Discrete(), samples=5)
    >>> trace["gate"].value.shape, trace["gate"].log_prob.shape, trace.output.shape
    (torch.Size([5, 4, 3]), torch.Size([5, 4]), torch.Size([20]))
    """
    if not isinstance(mode, Mode):
        got = f"the class {mode.__name__}: call it" if isinstance(mode, type) else type(mode).__name__
        raise TypeError(f"mode must be a mode, such as concretely.mode.Discrete(), got {got}")
    if not callable(program):
        raise TypeError(f"a program must be a function of draw and inputs, or a module, got {type(program).__name__}")
    require_source(generator)
    batch_shape = _batch_shape(inputs, batch_dims)
    mode = mode.prepare(lambda: _structure(program, inputs, batch_shape))
    rows = Rows(_sample_count(samples, mode.samples), batch_shape)
    outcomes: dict[str, Outcome] = {}
    descent = Descent(rows=True) if _needs_descent(rows, mode) else None

    def draw(name: str, distribution: Distribution | None = None, *, observed: Tensor | None = None) -> Tensor:
        if not isinstance(name, str) or not isinstance(distribution, Distribution):
            got = f"{type(name).__name__} and {type(distribution).__name__}"
            raise TypeError(f"draw must be given a name and a distribution, got {got}")
        _require_new(name, outcomes)
        if observed is not None:
            outcomes[name] = _observed(name, distribution, observed, rows, descent)
            return observed
        if isinstance(distribution, DiscreteVariable):
            distribution.require_checked()
        sample_shape: tuple[int, ...] = ()
        if mode.repeats:
            is_later = len(outcomes) > 0 if descent is None else len(descent.of(distribution)) > 0
            sample_shape = _sample_shape(name, distribution, rows, is_later=is_later)
        lead = len(rows.batch_shape or rows.folded[len(sample_shape) :])
        axes = len(distribution.batch_shape) - (lead if rows.have_any(distribution.batch_shape) else 0)
        source = generator
        if isinstance(source, Slice) and rows.batch_shape and rows.have_any(distribution.batch_shape):
            samples_here = bool(sample_shape) or not rows.have_data(distribution.batch_shape)
            source = source.of_rows((rows.samples or 1) if samples_here else 1, rows.batch_shape[0])
        drawn = mode.draw(Request(name, distribution, sample_shape, source, axes, rows))
        if sample_shape:
            node = None if drawn.node is None else rows.fold(drawn.node)
            drawn = Drawn(rows.fold(drawn.value), drawn.score, drawn.summed, node)
        outcomes[name] = _drawn(drawn, distribution, rows)
        if descent is not None:
            descent.add(name, drawn.value)
        return drawn.value

    try:
        if descent is None:
            output = program(draw, *inputs)
        else:
            with descent:
                output = program(draw, *inputs)
    except TypeError:
        _require_call(program, inputs)
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        _explain_rows(error, rows)
        raise
    trace = Trace(
        outcomes,
        output,
        rows=rows,
        find_parents=lambda: parents(program, inputs, {name: outcome.seen for name, outcome in outcomes.items()}),
    )
    named = mode.names
    for name in sorted(named.difference(trace.latent)) if named else ():
        known = did_you_mean(name, trace.latent)
        raise ValueError(f"temperature must name nodes that the graph draws, got {name!r}{known}")
    return trace


def _drawn(drawn: Drawn, distribution: Distribution, rows: Rows) -> Outcome:
    """Return the outcome of a latent node."""
    value = drawn.value
    is_sampled = rows.have_samples(value.shape)
    axes = value.dim() - len(distribution.event_shape) - (len(rows.folded) if is_sampled else 0)
    return Outcome(drawn, distribution, rows, observed=False, is_sampled=is_sampled, axes=axes)


def _observed(name: str, distribution: Distribution, observed: Tensor, rows: Rows, descent: Descent | None) -> Outcome:
    """Return the outcome of an observed node."""
    if not isinstance(observed, Tensor):
        raise TypeError(f"the observed value of node {name!r} must be a tensor, got {type(observed).__name__}")
    is_sampled = not rows.have_data(observed.shape)
    if is_sampled and not rows.have_samples(observed.shape):
        raise ValueError(
            f"the shape of the observed value of node {name!r} must begin with the batch shape "
            f"{tuple(rows.batch_shape)} of the first input, got {tuple(observed.shape)}"
        )
    _require_fit(name, distribution, observed, rows)
    value, aligned = rows.align(observed, distribution)
    score, summed = partial(_score_at, name, aligned.log_prob, value), None
    if isinstance(aligned, DiscreteVariable):
        summed = partial(_score_at, name, aligned.summed_log_prob, value)
    drawn = Drawn(observed, score, summed)
    axes = observed.dim() - len(distribution.event_shape) - len(rows.batch_shape)
    if descent is not None and len(distribution.batch_shape) == axes and rows.have_samples(observed.shape):
        axes -= len(descent.of(distribution)) > 0  # without inputs, the first axis may be that of the samples
    return Outcome(drawn, distribution, rows, observed=True, is_sampled=is_sampled, axes=axes)


def _score_at(name: str, score: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Score the observed value of a node, which an error then names first, as those of torch have several lines."""
    try:
        return score(*arguments)
    except ValueError as error:
        raise ValueError(f"observed node {name!r}: {error}") from error


def _structure(program: Program, inputs: tuple[Any, ...], batch_shape: Size) -> Structure:
    """Find the units and categories of the drawn nodes, by a run that sets every node to its most probable state."""
    shapes: dict[str, Shape] = {}

    def draw(name: str, distribution: Distribution, *, observed: Tensor | None = None) -> Tensor:
        if observed is not None:
            return observed
        _require_new(name, shapes)
        if not isinstance(distribution, DiscreteVariable):
            got = described(distribution, otherwise="use an estimator that draws samples, such as RLOO()")
            raise ValueError(f"node {name!r} must be a discrete variable of concretely to be enumerated, got {got}")
        shape = distribution.batch_shape
        if shape[: len(batch_shape)] != batch_shape:
            raise ValueError(_no_rows(name, shape, batch_shape))
        shapes[name] = Shape(shape[len(batch_shape) :], distribution.states)
        return distribution.mode

    with eval_mode(program), torch.no_grad():
        program(draw, *inputs)
    return shapes


def _needs_descent(rows: Rows, mode: Mode) -> bool:
    """Return whether shapes alone cannot tell which nodes already have a sample axis.

    Without inputs, a first axis of length m may hold the m samples of an earlier draw, or m units.
    """
    is_open = rows.samples is not None and not rows.batch_shape and mode.repeats
    return is_open and not torch.compiler.is_compiling()


def _batch_shape(inputs: Any, batch_dims: int) -> Size:
    """Return the first axes of the first tensor among the inputs."""
    if isinstance(batch_dims, bool) or not isinstance(batch_dims, int) or batch_dims < 0:
        raise ValueError(f"batch_dims must be a whole number of at least 0, got {batch_dims!r}")
    first = inputs[0] if inputs else None
    if not isinstance(first, Tensor):
        first = next((leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)), None)
    if first is not None and first.dim() < batch_dims:
        raise ValueError(f"batch_dims must be at most {first.dim()}, the axes of the first input, got {batch_dims}")
    return Size() if first is None else first.shape[:batch_dims]


def _sample_count(samples: int | None, mode_samples: int | None) -> int | None:
    if samples is None:
        return mode_samples
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples must be a positive whole number, got {samples!r}")
    if mode_samples not in (None, samples):
        raise ValueError(f"samples must be omitted in a mode that sets it to {mode_samples}, got {samples}")
    return samples


def _sample_shape(name: str, distribution: Distribution, rows: Rows, *, is_later: bool) -> tuple[int, ...]:
    """Return the axes that a draw must add: the samples, unless the node has them from an earlier draw."""
    shape, samples = distribution.batch_shape, rows.samples
    if samples is None:
        return ()
    if not rows.batch_shape:
        return () if is_later and rows.have_samples(shape) else (samples,)
    if samples == 1 or (is_later and rows.have_samples(shape)):
        return ()
    if not rows.have_data(shape):
        raise ValueError(
            f"{_no_rows(name, shape, rows.batch_shape)}, or share one sample among all data points, and use torch.vmap "
            'with randomness="different" for several'
        )
    return (samples,)


def _no_rows(name: str, shape: Size, batch_shape: Size) -> str:
    return (
        f"the batch shape of node {name!r} must begin with {tuple(batch_shape)}, that of the first input, "
        f"got {tuple(shape)}: expand its logits, one set for each data point"
    )


def _require_fit(name: str, distribution: Distribution, observed: Tensor, rows: Rows) -> None:
    """Raise if broadcasting would score an observed value twice, or against the wrong data points."""
    units = observed.shape[len(rows.batch_shape) : observed.dim() - len(distribution.event_shape)]
    shape = distribution.batch_shape
    split = max(len(shape) - len(units), 0)
    lead, own = shape[:split], shape[split:]
    fits = own == units or all(one in (1, other) for one, other in zip(own[::-1], units[::-1], strict=False))
    if not fits or lead not in (rows.folded, rows.batch_shape, Size()):
        got = f"{tuple(shape)} and {tuple(observed.shape)}"
        raise ValueError(f"the batch shape of node {name!r} must match the shape of its observed value, got {got}")


def _require_new(name: str, names: Any) -> None:
    if name in names:
        raise ValueError(f"node names must be unique, got {name!r} twice")


def _require_call(program: Program, inputs: tuple[Any, ...]) -> None:
    """Raise if a program cannot be called with `draw` and these inputs."""
    try:
        signature(program).bind(None, *inputs)
    except TypeError as error:
        given = "draw and 1 input" if len(inputs) == 1 else f"draw and {len(inputs)} inputs"
        name = getattr(program, "__name__", type(program).__name__)
        raise TypeError(f"a program must be callable with {given}, got {name!r}: {error}") from None


def _explain_rows(error: Exception, rows: Rows) -> None:
    """Raise a clearer error if a program failed because a tensor of inputs met a drawn value without `tile`."""
    if not rows.batch_shape or rows.folded == rows.batch_shape or not re.search(SHAPES, str(error)):
        return
    own = __name__.partition(".")[0]
    where = [frame for frame, _ in walk_tb(error.__traceback__)][-1].f_globals.get("__name__", "").split(".")
    if where[0] == own and where[1] not in ("distribution", "functional"):
        return
    before, after = rows.batch_shape[0], rows.folded[0]
    advice = (
        f"a tensor with {before} rows, one for each data point, met one with {after} rows, for {rows.samples} "
        "samples or states of each: repeat the rows of the former with concretely.tile(x, z), where z is a drawn value"
    )
    if {str(before), str(after)} <= set(re.findall(r"\d+", str(error))):
        raise ValueError(advice) from error
    error.add_note(f"Perhaps {advice}.")
