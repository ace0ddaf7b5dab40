"""Time stochastic nodes: sample, log density and gradient, in units of one read and one write of the logits.

No contender checks its arguments, since that takes further passes. Captured work is recorded once and replayed, so that
the device never waits for Python; it is compared with captured work only.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from .. import record
from ..contender import autograd, ours, torch_distributions
from ..contender.base import Family
from ..task import Kind, Task
from ..timing import Spread, Timing
from . import asked, turn
from .asked import Asked
from .turn import Contender, Entrants, Say
from .work import SEED

SHAPES: dict[Kind, tuple[int, ...]] = {"n-ary": (2**22, 8), "binary": (2**26,)}
QUICK: dict[Kind, tuple[int, ...]] = {"n-ary": (2**10, 8), "binary": (2**13,)}
TEMPERATURE = 2 / 3
TIMES = 20
COPY, OURS, EAGER = "copy of the logits", "concretely", "torch.distributions"
COMPILED, CAPTURED = f"{EAGER}, compiled", ", captured"
PASSES, OVER_EAGER, OVER_COMPILED = 3.5, 15.0, 1.7


def results(*, device: torch.device, rounds: int, quick: bool, say: Say) -> Iterator[dict[str, Any]]:
    """Yield the timings of every kind of node."""
    checked = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        for kind, shape in (QUICK if quick else SHAPES).items():
            task = Task("node", kind=kind, shape=shape, temperatures=(TEMPERATURE,), seed=SEED)
            torch.compiler.reset()
            ready = turn.made(entrants(task, device), say)
            timings = turn.timed(ready, rounds=rounds, seed=SEED)
            yield result(task, timings, say)
    finally:
        Distribution.set_default_validate_args(checked)


def entrants(task: Task, device: torch.device) -> Entrants:
    """Return the contenders: this library and its peers, on the same numbers."""
    arrays = task.logits, task.cotangents
    logits = [torch.from_numpy(array).to(device).requires_grad_() for array in arrays[0]]
    cotangents = [torch.from_numpy(array).to(device) for array in arrays[1]]
    number, tensor = (TEMPERATURE,), (torch.tensor(TEMPERATURE, device=device),)

    def node(build: Any, draw: Any, temperatures: Any, compiled: bool = False) -> Callable[[], Any]:
        arguments = {"logits": logits, "cotangents": cotangents, "temperatures": temperatures}
        return autograd.work(build, draw, **arguments, compiled=compiled)

    def plain(name: str, work: Callable[[], Any], is_ours: bool = False) -> Contender:
        return Contender(name, turn.repeated(work, TIMES, device), times=TIMES, ours=is_ours)

    def captured(name: str, work: Callable[[], Any], is_ours: bool = False) -> Contender:
        return plain(name + CAPTURED, turn.captured(work, device), is_ours)

    def own(*, compiled: bool = False) -> Callable[[], Any]:
        build = partial(family(ours.FAMILIES, task).build, validate_args=False)
        return node(build, lambda variable: variable.rsample_and_log_prob(), number, compiled)

    @cache  # compiled once, called plainly and captured
    def theirs(*, compiled: bool) -> Callable[[], Any]:
        build = family(torch_distributions.FAMILIES, task).build
        return node(build, autograd.draw_then_score, tensor, compiled)

    made: dict[str, Callable[[], Contender]] = {
        COPY: lambda: captured(COPY, _copy(logits[0].detach())),
        OURS: lambda: plain(OURS, own(), is_ours=True),
        OURS + CAPTURED: lambda: captured(OURS, own(), is_ours=True),
        f"{OURS}, compiled": lambda: plain(f"{OURS}, compiled", own(compiled=True), is_ours=True),
        EAGER: lambda: plain(EAGER, theirs(compiled=False)),
        EAGER + CAPTURED: lambda: captured(EAGER, theirs(compiled=False)),
        COMPILED: lambda: plain(COMPILED, theirs(compiled=True)),
        COMPILED + CAPTURED: lambda: captured(COMPILED, theirs(compiled=True)),
        "jax by hand, jit": lambda: _jax(task, *arrays),
    }
    return made


def family(families: tuple[Family, ...], task: Task) -> Family:
    """Return the class of a library for the node of a task, before squashing."""
    (own,) = (entry for entry in families if (entry.kind, entry.space) == (task.kind, "node"))
    return own


def result(task: Task, timings: list[Timing[Contender]], say: Say) -> dict[str, Any]:
    """Return the timings of a node as a record stores them."""
    by_name = {timing.contender.name: timing for timing in timings}
    copy = by_name.get(COPY + CAPTURED)
    say(turn.lines(task.title, timings, unit=1e-6, name="µs"))
    contenders = turn.described(timings)
    for row, timing in zip(contenders, timings, strict=True):
        if copy is not None:
            row["passes"] = record.described_spread(timing.over(copy))
    beside = [limit.beside(spread) for limit, spread in _limits(task, by_name)]
    for row in beside:
        say(asked.line(row))
    return {**task.described, "contenders": contenders, "asked": beside}


def _limits(task: Task, by_name: dict[str, Timing[Contender]]) -> Iterator[tuple[Asked, Spread]]:
    """Yield the limits for a node of full size for which both sides were timed."""
    if task.shape not in SHAPES.values():
        return
    where = f"{task.kind} node {' × '.join(f'{size:,}' for size in task.shape)}"
    pairs = (
        (Asked(f"{where}, passes", "at most", PASSES, "passes"), OURS, COPY),
        (Asked(f"{where}, faster than torch.distributions", "at least", OVER_EAGER, "times"), EAGER, OURS),
        (Asked(f"{where}, faster than its compiled form", "at least", OVER_COMPILED, "times"), COMPILED, OURS),
    )
    for limit, *both in pairs:
        upper, lower = (name + CAPTURED for name in both)
        if upper in by_name and lower in by_name:
            yield limit, by_name[upper].over(by_name[lower])


def _copy(logits: Tensor) -> Callable[[], Any]:
    target = torch.empty_like(logits)
    return lambda: target.copy_(logits)


def _jax(task: Task, logits: Any, cotangents: Any) -> Contender:
    """Return the node written by hand in JAX, jitted."""
    import jax

    from ..contender import jax_by_hand, xla

    run = xla.work(
        family(jax_by_hand.FAMILIES, task).build,
        lambda variable, key: variable.sample_and_log_prob(key),
        logits=logits,
        cotangents=cotangents,
        temperatures=task.temperatures,
    )

    def step(seed: int) -> None:
        outcome: Any = None
        for number in range(TIMES):
            outcome = run(seed * TIMES + number)
        jax.block_until_ready(outcome)

    return Contender("jax by hand, jit", step, times=TIMES)
