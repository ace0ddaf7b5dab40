"""The cost of a training step of this library against one size, with all other sizes fixed."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch

from concretely.training.engine import Engine

from .. import record
from ..timing import Spread
from . import step, turn, work
from .turn import Contender, Say

FIXED = {"batch": 64, "m": 1, "n": 2, "width": 240, "members": 8, "programs": 1}
SIZES = {
    "batch": (16, 32, 64, 128, 256, 512),
    "m": (1, 2, 5, 10, 20, 50),
    "n": (2, 4, 8, 16, 32, 64),
    "width": (60, 120, 240, 480, 960),
    "members": (1, 2, 4, 8, 16, 32),
    "programs": (1, 2, 4),
}
"""Each but the last over more than a decade; n is the number of categories of a node, of which a layer of 240 bits has
fewer. Programs share the device, a thread and a stream each."""
COSTS, PROGRAMS = tuple(SIZES)[:-1], tuple(SIZES)[-1:]
"""The values of a size that are timed in the same rounds."""

QUICK_FIXED = {"batch": 8, "m": 1, "n": 2, "width": 12, "members": 2, "programs": 1}
QUICK = {
    "batch": (4, 8, 40), "m": (1, 3, 10), "n": (2, 4, 16), "width": (12, 24, 120), "members": (1, 2, 10),
    "programs": (1, 2),
}  # fmt: skip
PIXELS, QUICK_PIXELS = 784, 40
TIMES = step.TIMES


def results(
    against: Sequence[str], *, device: torch.device, rounds: int, quick: bool, say: Say
) -> Iterator[dict[str, Any]]:
    """Yield the cost of a step against every size."""
    fixed, pixels = (QUICK_FIXED, QUICK_PIXELS) if quick else (FIXED, PIXELS)
    for name in against:
        values = (QUICK if quick else SIZES)[name]
        say(f"cost against {name}, the others at {', '.join(f'{k} {v}' for k, v in fixed.items() if k != name)}")
        points = [
            point
            for value in values
            for point in _points(
                {**fixed, name: value}, name, pixels, device=device, rounds=rounds, quick=quick, say=say
            )
        ]
        others = {key: value for key, value in fixed.items() if key != name}
        yield {"against": name, "fixed": {**others, "pixels": pixels}, "points": points}


def notation(sizes: dict[str, int], pixels: int) -> str:
    """Return the notation of a model with a given number of latent bits, in nodes of n categories.

    >>> notation({"width": 240, "n": 8}, 784), notation({"width": 240, "n": 2}, 784)
    ('240H:8~784V', '240H~784V')
    """
    arity = "" if sizes["n"] == 2 else f":{sizes['n']}"
    return f"{sizes['width']}H{arity}~{pixels}V"


def _points(
    sizes: dict[str, int], name: str, pixels: int, *, device: torch.device, rounds: int, quick: bool, say: Say
) -> Iterator[dict[str, Any]]:
    """Return the cost at one value of a size, or print why it cannot be timed and return None."""

    def make() -> Contender:
        temperatures = {"temperature": 2 / 3, "prior_temperature": 1 / 2}  # the paper has none of its own for every n
        recipe = work.recipe(notation(sizes, pixels), batch=sizes["batch"], samples=sizes["m"], **temperatures)
        data = work.bits(pixels)
        programs = [
            Engine(work.states(recipe, data, members=sizes["members"], device=device)) for _ in range(sizes["programs"])
        ]
        return together(f"{name} {sizes[name]}", programs, 4 if quick else TIMES)

    for timing in turn.timed(turn.made({f"{name} {sizes[name]}": make}, say), rounds=rounds, seed=work.SEED):
        spread = Spread.of(timing.rounds * 1e6)
        per_model = Spread.of(timing.rounds * 1e6 / (sizes["members"] * sizes["programs"]))
        say(f"  {timing.contender.name:<12} {spread.median:10.4g} µs per step, {per_model.median:10.4g} per model")
        yield {
            "value": sizes[name],
            "us": record.described_spread(spread),
            "us_per_model": record.described_spread(per_model),
        }


def together(name: str, programs: Sequence[Engine], times: int) -> Contender:
    """Return several programs that take steps at the same time, as one contender."""
    if len(programs) == 1:
        return step.engine(name, programs[0], times)
    device = programs[0].device
    streams = [torch.cuda.Stream(device) if device.type == "cuda" else None for _ in programs]
    pool = ThreadPoolExecutor(len(programs))

    def taken(program: Engine, stream: torch.cuda.Stream | None) -> None:
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            work.taken(program, times)

    return Contender(name, lambda seed: list(pool.map(taken, programs, streams)), times=times, ours=True)
