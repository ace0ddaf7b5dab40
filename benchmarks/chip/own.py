"""Training steps of a user's own models: `fit` against the same model by hand, and eight seeds at once against one.

All contenders start from the same weights and see data of the same law, and those that do not find the same bound in
their first steps are left out. Ours also guards against gradients that are not finite, and measures the discrete graph
and every node in each fiftieth step, as `fit` does in a run of 100,000 steps.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import concretely as c
from concretely.training.engine import Engine
from concretely.training.feed import LINES
from concretely.training.own import Options, own_task
from concretely.training.own_recipe import OwnRecipe
from concretely.training.source import as_source
from concretely.training.train_state import TrainState

from ..timing import Spread, Timing
from ..training import LEARNING_RATE, PRIOR_TEMPERATURE, TEMPERATURE
from . import asked, step, turn, work
from .asked import Asked
from .peer.own_model import OwnCase, build, images, seeded
from .turn import Contender, Entrants, Say

CASES = (
    OwnCase("convolution", 1),
    OwnCase("convolution", 5),
    OwnCase("mlp", 1, units=200),
    OwnCase("mlp", 5, units=200),
)
QUICK = (OwnCase("convolution", 2, side=8, units=3, channels=2, batch=8), OwnCase("mlp", 2, side=4, units=5, batch=8))
SEEDS = 8
TIMES = LINES
GAP_INTERVAL = 50
OURS, COMPILED, SEVERAL = "concretely fit", "concretely fit, compiled", f"concretely fit, {SEEDS} seeds"
EAGER, REDUCED, JAX = "torch by hand, eager", "torch by hand, reduce-overhead", "jax by hand, jit, scan"


def results(*, device: torch.device, precision: str, rounds: int, quick: bool, say: Say) -> Iterator[dict[str, Any]]:
    """The timings of each case."""
    times = 8 if quick else TIMES
    for case in QUICK if quick else CASES:
        torch.compiler.reset()
        data = images(case, 100 if quick else work.POINTS, work.SEED)
        ready = turn.made(_entrants(case, data, device, precision, times), say, suits=step.same_bound())
        timings = turn.timed(ready, rounds=rounds, seed=work.SEED)
        yield _result(case, timings, say, limits=device.type == "cuda" and not quick)


def fitted(case: OwnCase, data: Tensor, device: torch.device, *, seeds: int, compiles: bool = False) -> Engine:
    """The engine that `fit` steps, with so many seeds."""
    source = as_source(data, device=device, note=lambda sentence: None)
    estimator = c.Pathwise(temperature=TEMPERATURE, prior_temperature=PRIOR_TEMPERATURE)
    options = Options(estimator=estimator, compiles=compiles)
    states = []
    for seed in range(seeds):
        given: dict[str, Any] = {"samples": case.samples, "batch": case.batch, "lr": LEARNING_RATE, "seed": seed}
        recipe = OwnRecipe(model="", steps=work.STEPS, **given)
        states.append(TrainState(own_task(recipe, build(case, seed), source, options, key=0)))
    return Engine(states, gap_interval=GAP_INTERVAL)


def _entrants(case: OwnCase, data: Tensor, device: torch.device, precision: str, times: int) -> Entrants:
    def by_hand(name: str, *, compiled: bool) -> Contender:
        from .peer import torch_own

        return torch_own.contender(name, case, data, device, times=times, compiled=compiled)

    def jax_scan() -> Contender:
        from .peer import jax_own

        return jax_own.contender(case, seeded(case, 0), data.numpy(), precision=precision, times=times)

    return {
        OURS: lambda: _ours(OURS, fitted(case, data, device, seeds=1), times),
        COMPILED: lambda: _ours(COMPILED, fitted(case, data, device, seeds=1, compiles=True), times),
        SEVERAL: lambda: _ours(SEVERAL, fitted(case, data, device, seeds=SEEDS), times),
        EAGER: lambda: by_hand(EAGER, compiled=False),
        REDUCED: lambda: by_hand(REDUCED, compiled=True),
        JAX: jax_scan,
    }


def _ours(name: str, own: Engine, times: int) -> Contender:
    """An engine of this library. Its bound is that of the first seed, from which the others start as well."""
    return replace(step.engine(name, own, times), bound=own.runs[0].bound)


def _result(case: OwnCase, timings: list[Timing[Contender]], say: Say, *, limits: bool) -> dict[str, Any]:
    """What a record says of a case. The steps of several seeds are also given for each of them."""
    say(turn.lines(case.title, timings, unit=1e-6, name="µs per step"))
    by_name = {timing.contender.name: timing for timing in timings}
    beside = [limit.beside(spread) for limit, spread in _limits(case, by_name)] if limits else []
    for row in beside:
        say(asked.line(row))
    return {**case.described, "seeds": SEEDS, "contenders": turn.described(timings), "asked": beside}


def _limits(case: OwnCase, by_name: dict[str, Timing[Contender]]) -> Iterator[tuple[Asked, Spread]]:
    """What is asked of `fit`, where both sides of it were timed. The faster of ours, compiled or not, counts."""
    own = [by_name[name] for name in (OURS, COMPILED) if name in by_name]
    if not own:
        return
    ours = min(own, key=lambda timing: Spread.of(timing.rounds).median)
    pairs = ((EAGER, "eager PyTorch", 5.0), (REDUCED, "torch.compile with reduce-overhead", 1.0), (JAX, "JAX", 1.0))
    for name, title, least in pairs:
        if name in by_name:
            yield Asked(f"{case.title}, faster than {title}", "at least", least, "times"), by_name[name].over(ours)
    if SEVERAL in by_name and OURS in by_name:
        per_model = Timing(by_name[SEVERAL].contender, 0.0, by_name[SEVERAL].rounds / SEEDS)
        limit = Asked(f"{case.title}, {SEEDS} seeds cheaper than one per model", "at least", 3.0, "times")
        yield limit, by_name[OURS].over(per_model)
