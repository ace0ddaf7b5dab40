"""Time pairs of work, ours and that of a peer, in turns, and record their ratios."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from . import race, record
from .chip import turn
from .chip.turn import Contender
from .timing import Spread, Timing

SEED = 0
FOLDER = Path(__file__).parent / "records"
TIMES = 50
"""How often a turn on a GPU does the work."""
OURS, FLOOR = "concretely", "torch x * 2"

Rounds = Annotated[int, typer.Option(min=1, help="How often every contender is timed.")]
On = Annotated[str, typer.Option(help="Where to run, by default on a GPU where there is one.")]
Only = Annotated[str, typer.Option(help="Time only what has this word in its title.")]
Quick = Annotated[bool, typer.Option("--quick", help="Three rounds without large sizes.")]
Out = Annotated[Path | None, typer.Option(help="Where to write the record.", show_default=False)]


@dataclass(frozen=True)
class Pair:
    """Work of ours, the same by a peer, and how large the ratio of our time to the peer's may be."""

    title: str
    ours: Callable[[], Any]
    peer: Callable[[], Any]
    peer_name: str
    at_most: float = 1.0
    times: int = TIMES
    """How often a turn on a GPU does the work, fewer for long work."""
    floor: Callable[[], Any] | None = None
    """Work that no eager call with a gradient can do without, if it is timed too."""


def race_pairs(
    pairs: Callable[..., Iterator[Pair]],
    recipe: dict[str, Any],
    *,
    name: str,
    rounds: int,
    device: str,
    only: str,
    quick: bool,
    out: Path | None,
) -> None:
    """Time pairs on a device, and write the record after each title.

    Pairs with one title in a row are copies of one pair, in other memory. Their rounds are pooled, since the time of
    work that fills the caches depends on where its memory lies.
    """
    rounds, console = 3 if quick else rounds, race.opened()
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    load = race.load(console)
    if where.type == "cpu":
        race.share_cores()
    torch.manual_seed(SEED)
    results = []
    path = out or FOLDER / f"{name}{'' if where.type == 'cpu' else '-cuda'}.json"
    threads = race.THREADS if where.type == "cpu" else None
    recipe = {**recipe, "dtype": "float32", "rounds": rounds, "threads": threads, "load_before": load}
    wished = (own for own in pairs(where, quick=quick) if only in own.title)
    for title, copies in groupby(wished, key=lambda pair: pair.title):
        timings: dict[str, Timing[Contender]] = {}
        for pair in copies:
            ready = turn.made(entrants(pair, where), console.print)
            if {OURS, pair.peer_name} <= {timing.contender.name for timing in ready}:
                for own in turn.timed(ready, rounds=rounds, seed=SEED):
                    before = timings.get(own.contender.name)
                    timings[own.contender.name] = own if before is None else pooled(before, own)
        if timings:
            results.append({**result(pair, timings), **peaks(pair, where)})
            ratio = timings[OURS].over(timings[pair.peer_name])
            verdict = "" if ratio.median <= pair.at_most else "  more than asked"
            console.print(turn.lines(title, list(timings.values()), unit=1e-6, name="µs"), highlight=False)
            console.print(f"  ours over theirs {ratio.median:.3f}, asked at most {pair.at_most}{verdict}")
            record.write(path, recipe, seed=SEED, results=results, on=str(where))


def pooled(one: Timing[Contender], other: Timing[Contender]) -> Timing[Contender]:
    """The timing of two copies of a contender together."""
    return Timing(one.contender, one.first, np.concatenate([one.rounds, other.rounds]))


def entrants(pair: Pair, device: torch.device) -> turn.Entrants:
    """Both sides of a pair. A turn has many calls, so that a GPU is waited for once."""
    times = 1 if device.type == "cpu" else pair.times

    def contender(name: str, work: Callable[[], Any]) -> Callable[[], Contender]:
        return lambda: Contender(name, turn.repeated(work, times, device), times=times, ours=work is pair.ours)

    sides = (OURS, pair.ours), (pair.peer_name, pair.peer), (FLOOR, pair.floor)
    return {name: contender(name, work) for name, work in sides if work is not None}


def result(pair: Pair, timings: dict[str, Timing[Contender]]) -> dict[str, Any]:
    """What a record says of a pair."""
    ours, theirs, floor = timings[OURS], timings[pair.peer_name], timings.get(FLOOR)
    return {
        "title": pair.title,
        "peer": pair.peer_name,
        "us": record.described_spread(Spread.of(ours.rounds * 1e6)),
        "peer_us": record.described_spread(Spread.of(theirs.rounds * 1e6)),
        "ratio": record.described_spread(ours.over(theirs)),
        "at_most": pair.at_most,
        **({} if floor is None else {"floor_ratio": record.described_spread(floor.over(theirs))}),
    }


def peaks(pair: Pair, device: torch.device) -> dict[str, Any]:
    """The memory that both sides allocate at once on a GPU, in MiB, beside what they keep."""
    if device.type == "cpu":
        return {}
    memory = {}
    for name, work in (("peak_mib", pair.ours), ("peer_peak_mib", pair.peer)):
        torch.cuda.synchronize(device)
        kept = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        memory[name] = round((torch.cuda.max_memory_allocated(device) - kept) / 2**20, 2)
    return memory
