"""Time training steps on one and two ranks with gloo, on the cores of one machine.

Run it with `python -m benchmarks.scale` on a quiet machine. Every rank has one thread. Ranks on one machine share its
memory and caches and have no network between them, so this shows what the steps and gloo cost, not how a cluster
scales. Three things are timed: the overhead of a world of one rank over a plain process, weak scaling (the same batch
on every rank) and strong scaling (one batch split among ranks).

With `--device cuda`, on a machine with one GPU, two things are timed: the overhead of a world of one rank with NCCL,
and how long a list of models takes on the GPU if they train as one program, or are spread over processes by `--share`.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import typer

from concretely.data import Bits, Dataset
from concretely.training.engine import Engine
from concretely.training.group import NAMES, leave
from concretely.training.parallel import ALONE, World, join
from concretely.training.recipe import resolve
from concretely.training.train_state import TrainState

from . import race, record

SEED, WIDTH, BATCH = 0, 784, 64
NOTATION = "200H~784V"
SAMPLES = (1, 50)
"""Few and many samples: much and little communication for the work of a step."""
RANKS = (1, 2)
WARM_UP = 50
"""The least number of steps before the first timed one, after which steps on a GPU are captured."""
OUT = Path(__file__).parent / "records" / "scale.json"
OUT_CUDA = OUT.with_name("scale-cuda.json")
PAGE = Path(__file__).parent.parent / "docs" / "parallel.md"


def state(world: World, *, batch: int, samples: int) -> TrainState:
    """Return a run on random bits."""
    points = torch.rand(2_000, WIDTH, generator=torch.Generator().manual_seed(SEED)) < 0.2
    data = Dataset("bits", *(Bits.pack(part) for part in points.split([1_000, 500, 500])), source="made up.")
    estimator = "vimco" if samples > 1 else "concrete"
    given = {"notation": NOTATION, "estimator": estimator, "samples": samples, "batch": batch, "seed": SEED}
    return TrainState.of(resolve(**given), data.to(world.device), device=world.device, world=world)


MEMBERS, LIST_STEPS = 8, 100_000
"""The number of models of the list on a GPU, and of their steps."""
PROCESSES = (1, 2, 4)


def timed(engine: Engine, steps: int, *, cpu: bool = False) -> float:
    """Return the seconds of a step."""
    clock = time.process_time if cpu else time.perf_counter
    start = clock()
    engine.advance(engine.step + steps)
    return (clock() - start) / steps


def overhead(rounds: int, steps: int, device: str = "cpu") -> list[float]:
    """Return the time of a step in a world of one rank over that of a plain process, in alternating rounds.

    On a CPU it is the time that the process computes, on a GPU the time that passes.
    """
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    worlds = [replace(ALONE, device=torch.device(device)), join(device)]
    engines = [Engine([state(world, batch=BATCH, samples=1)]) for world in worlds]
    for engine in engines:
        timed(engine, max(steps, WARM_UP))
    ratios = []
    for turn in range(rounds):
        times = {place: timed(engines[place], steps, cpu=device == "cpu") for place in ((0, 1) if turn % 2 else (1, 0))}
        ratios.append(times[1] / times[0])
    return ratios


def ranked(rank: int, ranks: int, port: int, folder: str, rounds: int, steps: int) -> None:
    """Time the steps of all cases on a rank; rank 0 writes them down."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    world = join("cpu")
    cases = [(samples, batch) for samples in SAMPLES for batch in sorted({BATCH * ranks, BATCH})]
    engines = {case: Engine([state(world, samples=case[0], batch=case[1])]) for case in cases}
    times = dict[tuple[int, int], list[float]]()
    for turn in range(rounds + 1):
        for samples, batch in cases:  # in turns, so that all have the same share of what else the machine does
            seconds = timed(engine := engines[samples, batch], max(1, steps // samples))
            times.setdefault((samples, batch), []).extend([seconds] if turn else [])
    results = [
        {"samples": samples, "scaling": scaling, "ranks": ranks, "batch": batch, "times": times[samples, batch]}
        for samples in SAMPLES
        for scaling, batch in (("weak", BATCH * ranks), ("strong", BATCH))
    ]
    gradient = torch.zeros(sum(parameter.numel() for parameter in engine.runs[0].loss.parameters()))
    reduced = []
    for _ in range(5 * rounds if ranks > 1 else 0):
        start = time.perf_counter()
        dist.all_reduce(gradient)
        reduced.append(time.perf_counter() - start)
    if rank == 0:
        content = {"results": results, "all_reduce": reduced, "bytes": gradient.nbytes}
        Path(folder, f"{ranks}.json").write_text(json.dumps(content))
    leave()


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def measured(rounds: int, steps: int) -> list[dict[str, Any]]:
    """Return what the ranks of every number of ranks found, each in two turns."""
    by_ranks = dict[int, dict[str, Any]]()
    with TemporaryDirectory() as folder:
        for ranks in (*RANKS, *reversed(RANKS)):
            mp.spawn(ranked, (ranks, free_port(), folder, -(-rounds // 2), steps), nprocs=ranks)
            again = json.loads(Path(folder, f"{ranks}.json").read_text())
            for case, other in zip(by_ranks.setdefault(ranks, again)["results"], again["results"], strict=True):
                case["times"] += other["times"] if case is not other else []
            by_ranks[ranks]["all_reduce"] += again["all_reduce"] if by_ranks[ranks] is not again else []
    return [by_ranks[ranks] for ranks in RANKS]


def shared(data: str, members: int, steps: int, processes: int) -> dict[str, Any]:
    """Train a list of models on one GPU by processes, of which one alone trains them as one program; return the times.

    `seconds` are those of the commands, with their start, the scores and the reports, `training` those of the steps.
    """
    with TemporaryDirectory() as folder:
        given = ["train", NOTATION, "--data", data, "--seed", f"0..{members - 1}", "--steps", str(steps)]
        given += ["--batch", str(BATCH), "--score-samples", "1", "--device", "cuda", "--out", str(Path(folder, "list"))]
        share = ["--share", "--members-per-program", str(members // processes)] if processes > 1 else []
        start = time.perf_counter()
        command = [sys.executable, "-m", "concretely", *given, *share]
        running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(processes)]
        codes = [process.wait() for process in running]
        if any(codes):
            raise RuntimeError("the list could not be trained")
        seconds = time.perf_counter() - start
        # the steps of a program count for all its members in equal parts
        spent = [json.loads(path.read_text())["seconds"] for path in Path(folder, "list").glob("*/record.json")]
    training = sum(spent) / processes
    times = {"seconds": seconds, "training": training, "steps_per_second": members * steps / training}
    return {"processes": processes, **{name: _rounded(value) for name, value in times.items()}}


def made_up(folder: str) -> str:
    """Write random bits to a file, and return its path."""
    bits = np.random.default_rng(SEED).random((3_000, WIDTH)) < 0.2
    path = Path(folder, "bits.npz")
    np.savez(path, train=bits[:2_000], valid=bits[2_000:2_500], test=bits[2_500:])
    return str(path)


def on_gpu(rounds: int, steps: int, data: str | None, members: int, list_steps: int) -> dict[str, Any]:
    """Return the overhead of one rank with NCCL, and the times of a list of models in one and several processes."""
    ratios = overhead(rounds, steps, "cuda")
    leave()
    for name in NAMES:
        del os.environ[name]
    with TemporaryDirectory() as folder:
        data = made_up(folder) if data is None else data
        rows = [shared(data, members, list_steps, number) for number in PROCESSES]
    return {"overhead_of_one_rank": spread(ratios), "list": rows}


def spread(ratios: Sequence[float]) -> dict[str, Any]:
    """Return the median and the quartiles of ratios."""
    ordered = sorted(ratios)
    return {
        "median": _rounded(median(ordered)),
        "quartiles": _rounded([ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]]),
    }


def described(contents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results with the throughput and its ratio to one rank."""
    results = [case for content in contents for case in content["results"]]
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
    out: Annotated[Path | None, typer.Option(help="Where to write the record.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda for one GPU.")] = "cpu",
    data: Annotated[str | None, typer.Option(help="With cuda: data of the list, by default random bits.")] = None,
    members: Annotated[int, typer.Option(min=4, help="With cuda: the number of models of the list.")] = MEMBERS,
    list_steps: Annotated[int, typer.Option(min=1, help="With cuda: their number of steps.")] = LIST_STEPS,
) -> None:
    """Time training steps on one and two ranks, or a list of models on a GPU."""
    console = race.opened()
    load = race.load(console)
    torch.set_num_threads(1)
    settings = {"notation": NOTATION, "threads": 1, "rounds": rounds, "steps": steps, "load": load}
    if device != "cpu":
        results = on_gpu(rounds, max(steps, 1_000), data, members, list_steps)
        settings |= {"data": "random bits" if data is None else Path(data).name, "members": members}
        out = OUT_CUDA if out is None else out
        record.write(out, settings | {"list_steps": list_steps}, seed=SEED, results=results, on=device)
        console.print(results)
        print(f"wrote {out}", file=sys.stderr)
        return
    out, ratios = OUT if out is None else out, overhead(2 * rounds, steps)
    leave()
    contents = measured(rounds, steps)
    results = {
        "overhead_of_one_rank": spread(ratios),
        "steps": described(contents),
        "all_reduce": {"bytes": contents[-1]["bytes"], "ms": _rounded(1e3 * median(contents[-1]["all_reduce"]))},
    }
    record.write(out, settings, seed=SEED, results=results)
    if out == OUT:
        update_page(results)
    for case in results["steps"]:
        console.print(case)
    console.print({name: results[name] for name in ("overhead_of_one_rank", "all_reduce")})
    print(f"wrote {out}", file=sys.stderr)


def _rounded(value: Any) -> Any:
    return [_rounded(number) for number in value] if isinstance(value, list) else float(f"{value:.4g}")


if __name__ == "__main__":
    typer.run(main)
