"""Time training steps on one and two ranks with gloo, on the cores of one machine.

Run it with `python -m benchmarks.scale` on a quiet machine. Every rank has one thread. Ranks on one machine share its
memory and caches and have no network between them, so this shows what the steps and gloo cost, not how a cluster
scales. Three things are timed: the overhead of a world of one rank over a plain process, weak scaling (the same batch
on every rank) and strong scaling (one batch split among ranks).
"""

import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import typer

from concretely.data import Bits, Dataset
from concretely.training.engine import Engine
from concretely.training.parallel import ALONE, World, join
from concretely.training.recipe import resolve
from concretely.training.train_state import TrainState

from . import race, record

SEED, WIDTH, BATCH = 0, 784, 64
NOTATION = "200H~784V"
SAMPLES = (1, 50)
"""Few and many samples: much and little communication for the work of a step."""
RANKS = (1, 2)
OUT = Path(__file__).parent / "records" / "scale.json"
PAGE = Path(__file__).parent.parent / "docs" / "parallel.md"


def state(world: World, *, batch: int, samples: int) -> TrainState:
    """Return a run on random bits."""
    points = torch.rand(2_000, WIDTH, generator=torch.Generator().manual_seed(SEED)) < 0.2
    data = Dataset("bits", *(Bits.pack(part) for part in points.split([1_000, 500, 500])), source="made up.")
    estimator = "vimco" if samples > 1 else "concrete"
    given = {"notation": NOTATION, "estimator": estimator, "samples": samples, "batch": batch, "seed": SEED}
    return TrainState.of(resolve(**given), data, world=world)


def timed(engine: Engine, steps: int, *, cpu: bool = False) -> float:
    """Return the seconds of a step."""
    clock = time.process_time if cpu else time.perf_counter
    start = clock()
    engine.advance(engine.step + steps)
    return (clock() - start) / steps


def overhead(rounds: int, steps: int) -> list[float]:
    """Return the CPU time of a step in a world of one rank over that of a plain process, in alternating rounds."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    engines = [Engine([state(world, batch=BATCH, samples=1)]) for world in (ALONE, join("cpu"))]
    for engine in engines:
        timed(engine, steps)
    found = []
    for turn in range(rounds):
        times = {place: timed(engines[place], steps, cpu=True) for place in ((0, 1) if turn % 2 else (1, 0))}
        found.append(times[1] / times[0])
    return found


def ranked(rank: int, ranks: int, port: int, folder: str, rounds: int, steps: int) -> None:
    """Time the steps of all cases on a rank; rank 0 writes them down."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    world, found = join("cpu"), []
    for samples in SAMPLES:
        for scaling, batch in (("weak", BATCH * ranks), ("strong", BATCH)):
            engine = Engine([state(world, batch=batch, samples=samples)])
            count = max(1, steps // samples)
            timed(engine, count)
            times = [timed(engine, count) for _ in range(rounds)]
            found.append({"samples": samples, "scaling": scaling, "ranks": ranks, "batch": batch, "times": times})
    gradient = torch.zeros(sum(each.numel() for each in engine.runs[0].loss.parameters()))
    times = []
    for _ in range(5 * rounds if ranks > 1 else 0):
        start = time.perf_counter()
        dist.all_reduce(gradient)
        times.append(time.perf_counter() - start)
    if rank == 0:
        content = {"results": found, "all_reduce": times, "bytes": gradient.nbytes}
        Path(folder, f"{ranks}.json").write_text(json.dumps(content))
    if dist.is_initialized():
        dist.destroy_process_group()


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def measured(rounds: int, steps: int) -> Iterator[dict[str, Any]]:
    """Yield what the ranks of every number of ranks found."""
    with TemporaryDirectory() as folder:
        for ranks in RANKS:
            mp.spawn(ranked, (ranks, free_port(), folder, rounds, steps), nprocs=ranks)
            yield json.loads(Path(folder, f"{ranks}.json").read_text())


def described(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results with the throughput and its ratio to one rank."""
    results = [case for each in found for case in each["results"]]
    alone = {(case["samples"], case["scaling"]): case for case in results if case["ranks"] == 1}
    described = []
    for case in results:
        seconds, reference = median(case.pop("times")), alone[case["samples"], case["scaling"]]
        points = float(f"{case['batch'] / seconds:.4g}")
        case |= {"ms": float(f"{1e3 * seconds:.4g}"), "points_per_second": points}
        described.append(case | {"speedup": float(f"{points / reference['points_per_second']:.3g}")})
    return described


def quoted(results: dict[str, Any]) -> tuple[list[str], str]:
    """Return the rows of the table of the page, and its sentences about one rank and the all-reduce."""
    rows = [
        f"| {case['scaling']} | {case['samples']} | {case['batch']} | {case['speedup']:.2f} |"
        for case in results["steps"]
        if case["ranks"] == RANKS[-1]
    ]
    one, reduce = results["overhead_of_one_rank"]["median"], results["all_reduce"]
    return rows, (
        f"A world of one rank takes {one:.2f} times the CPU time of a plain process. An all-reduce of the "
        f"{reduce['bytes']:,} bytes of gradients takes {reduce['ms']:.1f} ms."
    )


def update_page(results: dict[str, Any]) -> None:
    """Write the numbers of a record into the page."""
    rows, sentences = quoted(results)
    text = re.sub(r"(^\| (weak|strong) \|.*\n)+", "\n".join(rows) + "\n", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    PAGE.write_text(re.sub(r"^A world of one rank.*$", sentences, text, flags=re.MULTILINE), "utf-8")


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often everything is timed.")] = 15,
    steps: Annotated[int, typer.Option(min=1, help="The number of steps of a round with one sample.")] = 50,
    out: Annotated[Path, typer.Option(help="Where to write the record.")] = OUT,
) -> None:
    """Time training steps on one and two ranks."""
    console = race.opened()
    load = race.load(console)
    torch.set_num_threads(1)
    ratios = sorted(overhead(2 * rounds, steps))
    dist.destroy_process_group()
    found = list(measured(rounds, steps))
    spread = {"median": median(ratios), "quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]]}
    results = {
        "overhead_of_one_rank": {name: _rounded(value) for name, value in spread.items()},
        "steps": described(found),
        "all_reduce": {"bytes": found[-1]["bytes"], "ms": _rounded(1e3 * median(found[-1]["all_reduce"]))},
    }
    settings = {"notation": NOTATION, "threads": 1, "rounds": rounds, "steps": steps, "load": load}
    record.write(out, settings, seed=SEED, results=results)
    if out == OUT:
        update_page(results)
    for case in results["steps"]:
        console.print(case)
    console.print({name: results[name] for name in ("overhead_of_one_rank", "all_reduce")})
    print(f"wrote {out}", file=sys.stderr)


def _rounded(value: Any) -> Any:
    return [_rounded(each) for each in value] if isinstance(value, list) else float(f"{value:.4g}")


if __name__ == "__main__":
    typer.run(main)
