"""Time training steps of many models at once: the forward and backward pass, and the update by Adam.

All contenders start from the same weights and see data of the same distribution. A contender whose bound differs in the
first steps does other work and is left out. Our step also checks that gradients are finite, and computes the bound of
the discrete graph in every tenth step.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from concretely.training.engine import Engine
from concretely.training.feed import LINES

from ..timing import Spread, Timing
from . import asked, turn, work
from .asked import Asked
from .peer.case import Case, Given
from .turn import Contender, Entrants, Say

CASES = (
    Case(1, 1, "concrete", asked=80.0),
    Case(32, 1, "concrete", asked=8.0),
    Case(32, 5, "concrete", asked=12.0),
    Case(8, 50, "concrete", asked=65.0),
    Case(32, 5, "vimco", within=1.3),
    Case(32, 1, "nvil", within=1.3),
)
SMALL = {"notation": "12H~40V", "batch": 64}
QUICK = (
    Case(1, 1, "concrete", **SMALL),
    Case(2, 2, "vimco", **SMALL),
    Case(2, 1, "nvil", **SMALL),
)
TIMES = LINES
"""The number of steps of a turn, as many as our step table has lines, so that every turn refills it once."""

SAME = 0.03
"""The largest relative difference of the bounds of two contenders."""

OURS = "concretely, ensemble"


def results(
    *, device: torch.device, precision: str, rounds: int, quick: bool, say: Say, cases: tuple[int, ...] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the timings of every case, or of those with the given indices."""
    known = QUICK if quick else CASES
    relaxed: dict[tuple[int, int], Timing[Contender]] = {}
    for case in known if cases is None else [known[place] for place in cases]:
        ready = turn.made(_entrants(case, device, precision, TIMES // 4 if quick else TIMES), say, suits=same_bound())
        timings = turn.timed(ready, rounds=rounds, seed=work.SEED)
        ours = next((timing for timing in timings if timing.contender.ours), None)
        if ours is not None and case.estimator == "concrete":
            relaxed[case.members, case.samples] = ours
        yield result(case, timings, say, relaxed=relaxed.get((case.members, case.samples)))


def same_bound() -> Callable[[Contender], None]:
    """Return a function that raises for a contender whose bound differs from that of the first contender.

    >>> refuse = same_bound()
    >>> refuse(Contender("ours", print, bound=lambda: -100.0)), refuse(Contender("theirs", print, bound=lambda: -101.0))
    (None, None)
    >>> refuse(Contender("other", print, bound=lambda: -90.0))
    Traceback (most recent call last):
    ValueError: the bound of its first steps must be within 3% of -100, which that of ours is, got -90
    """
    met: list[tuple[str, float]] = []

    def refuse(contender: Contender) -> None:
        assert contender.bound is not None
        own = contender.bound()
        name, expected = met[0] if met else (contender.name, own)
        met.append((name, expected))
        if not abs(own - expected) <= SAME * abs(expected):
            raise ValueError(
                f"the bound of its first steps must be within {SAME:.0%} of {expected:.4g}, which that of {name} is, "
                f"got {own:.4g}"
            )

    return refuse


def result(
    case: Case, timings: list[Timing[Contender]], say: Say, *, relaxed: Timing[Contender] | None = None
) -> dict[str, Any]:
    """Return a case as a record stores it, compared with our Concrete step of the same size."""
    say(turn.lines(case.title, timings, unit=1e-6 * case.members, name="µs per model and step"))
    beside = []
    for timing in timings:
        if timing.contender.ours and case.asked is not None:
            limit = Asked(case.title, "at most", case.asked, "µs per model")
            beside.append(limit.beside(Spread.of(timing.rounds * 1e6 / case.members)))
        if timing.contender.ours and case.within is not None and relaxed is not None:
            limit = Asked(f"{case.title}, over that of concrete", "at most", case.within, "times")
            beside.append(limit.beside(timing.over(relaxed)))
    for row in beside:
        say(asked.line(row))
    return {**case.described, "contenders": turn.described(timings, models=case.members), "asked": beside}


def _entrants(case: Case, device: torch.device, precision: str, times: int) -> Entrants:
    """Return the contenders: this library and its peers, with the same weights."""
    recipe = work.recipe(case.notation, batch=case.batch, samples=case.samples, estimator=case.estimator)
    data = work.bits(recipe.width)
    members = work.states(recipe, data, members=case.members, device=device)
    packed = data.train.packed.numpy()
    given = Given(work.start(members), packed, recipe.width, device=device, precision=precision, times=times)

    def ours() -> Contender:
        return engine(OURS, Engine(members), times)

    def torch_eager() -> Contender:
        from .peer import torch_step

        return torch_step.eager(case, given)

    def torch_compiled() -> Contender:
        from .peer import torch_step

        return torch_step.compiled(case, given)

    def jax_scan() -> Contender:
        from .peer import jax_step

        return jax_step.contender(case, given)

    return {
        OURS: ours,
        "torch by hand, vmap, compiled, captured": torch_compiled,
        "torch by hand, vmap, eager": torch_eager,
        "jax by hand, vmap, scan": jax_scan,
    }


def engine(name: str, own: Engine, times: int) -> Contender:
    """Return an engine of this library as a contender."""

    def step(seed: int) -> None:
        work.taken(own, times)

    def bound() -> float:
        return sum(run.bound() for run in own.runs) / len(own.runs)

    return Contender(name, step, times=times, ours=True, bound=bound)
