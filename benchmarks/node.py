"""Time a stochastic node against its peers: draw, log density, and gradient of the logits.

Run it with `python -m benchmarks.node`. Two tasks are timed. In the first a node is drawn and scored; in the second a
posterior is drawn, and scored under itself and under a prior of another temperature.
"""

import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import Progress

from . import definition, record
from .contender.base import Contender
from .table import table
from .task import Kind, Task
from .timing import Timing, first_call, interleaved

THREADS = 2
SEED = 0
SHAPES: tuple[tuple[Kind, tuple[int, ...]], ...] = (
    ("binary", (64, 200)),
    ("binary", (3200, 200)),
    ("n-ary", (3200, 80, 8)),
)
TEMPERATURES = {"node": (2 / 3,), "posterior scored under a prior": (2 / 3, 1 / 2)}
OURS = "ours"
PEERS = {
    "torch_distributions": "torch",
    "pyro_distributions": "pyro",
    "jax_by_hand": "jax",
    "numpyro_distributions": "numpyro",
    "tfp_distributions": "tensorflow_probability",
}
BUSY = 0.5
WIDTH = 160
"""The columns of a table that goes into a file."""

OUT = Path(__file__).parent / "records" / "node.json"


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often every contender is timed.")] = 40,
    quick: Annotated[bool, typer.Option("--quick", help="Three rounds, to see that all runs.")] = False,
    out: Annotated[Path, typer.Option(help="Where to write the record.", show_default=False)] = OUT,
) -> None:
    """Time a stochastic node against its peers, after checking it against its definition."""
    rounds = 3 if quick else rounds
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    load = os.getloadavg()[0]
    if load > BUSY:
        console.print(f"the machine carries a load of {load:.1f} already: threads that wait for each other suffer most")
    share_cores()
    torch.manual_seed(SEED)
    tasks = [
        Task(name, kind=kind, shape=shape, temperatures=temperatures, seed=SEED)
        for name, temperatures in TEMPERATURES.items()
        for kind, shape in SHAPES
    ]
    peers = list(installed(console))

    with console.status("checking against the definition in float64"):
        for task in tasks:
            for contender in entered([OURS], task):
                error = definition.error(contender.step(0), task=task, space=contender.space)
                if not error <= definition.TOLERANCE:
                    console.print(
                        f"{contender.name} must be within {definition.TOLERANCE:.0e} of its definition in float64, got "
                        f"{error:.1e} at {task.name}, {task.kind} {task.shape}: nothing is timed"
                    )
                    raise typer.Exit(1)

    forget_compilations()
    results = []
    for task in tasks:
        timings = timed(task, [OURS, *peers], rounds=rounds, console=console)
        console.print(table(task, timings))
        results.append((task, timings))
    recipe = {
        "benchmark": "node",
        "shapes": [{"kind": kind, "shape": shape} for kind, shape in SHAPES],
        "temperatures": TEMPERATURES,
        "dtype": "float32",
        "rounds": rounds,
        "threads": THREADS,
        "load_before": round(load, 2),
    }
    record.write(out, recipe, seed=SEED, results=[record.described(task, timings) for task, timings in results])


def share_cores() -> None:
    """Give all libraries the same cores, of which JAX would otherwise take as many as there are."""
    torch.set_num_threads(THREADS)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])


def installed(console: Console) -> Iterator[str]:
    """The peers that can be imported, with a line about each that cannot."""
    for module, library in PEERS.items():
        try:
            importlib.import_module(f".contender.{module}", __package__)
        except (ImportError, AttributeError) as reason:  # an attribute is missing when two versions do not fit
            console.print(f"{library} is left out, as it cannot be imported: {reason}", highlight=False)
        else:
            yield module


def entered(modules: Sequence[str], task: Task) -> list[Contender]:
    """The contenders of some modules, none of them compiled yet."""
    torch.compiler.reset()
    loaded = [importlib.import_module(f".contender.{module}", __package__) for module in modules]
    return [contender for module in loaded for contender in module.contenders(task)]


def forget_compilations() -> None:
    """Let a first call compile all it needs, and find nothing on disk."""
    torch.compiler.config.force_disable_caches = True
    warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")


def timed(task: Task, modules: Sequence[str], *, rounds: int, console: Console) -> list[Timing]:
    """The timings of all contenders that can do a task, with a line about each that cannot."""
    contenders, first = [], []
    for contender in entered(modules, task):
        try:
            first.append(first_call(contender))
        except (NotImplementedError, RuntimeError, ValueError) as reason:
            console.print(f"{contender.name} is left out, as it fails: {str(reason).splitlines()[0]}", highlight=False)
        else:
            contenders.append(contender)
    # a bar that redraws itself would do so on the cores that are being timed
    with Progress(console=console, auto_refresh=False, transient=True) as progress:
        bar = progress.add_task(f"{task.name}, {task.kind} {task.shape}", total=rounds)

        def finished() -> None:
            progress.update(bar, advance=1, refresh=True)

        seconds = interleaved(contenders, rounds, seed=SEED, finished=finished)
    return [Timing(*row) for row in zip(contenders, first, seconds, strict=True)]


if __name__ == "__main__":
    typer.run(main)
