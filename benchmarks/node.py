"""Time a stochastic node against its peers: draw, log density, and gradient of the logits.

Run it with `python -m benchmarks.node`. Two tasks are timed. In the first a node is drawn and scored; in the second a
posterior is drawn, and scored under itself and under a prior of another temperature.
"""

import warnings
from pathlib import Path
from typing import Annotated

import torch
import typer

from . import definition, race, record
from .table import by_space
from .task import Kind, Task

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
PACKAGE = f"{__package__}.contender"
OUT = Path(__file__).parent / "records" / "node.json"


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often every contender is timed.")] = 40,
    quick: Annotated[bool, typer.Option("--quick", help="Three rounds, to see that all runs.")] = False,
    out: Annotated[Path, typer.Option(help="Where to write the record.", show_default=False)] = OUT,
) -> None:
    """Time a stochastic node against its peers, after checking it against its definition."""
    rounds = 3 if quick else rounds
    console = race.opened()
    load = race.load(console)
    race.share_cores()
    torch.manual_seed(SEED)
    tasks = [
        Task(name, kind=kind, shape=shape, temperatures=temperatures, seed=SEED)
        for name, temperatures in TEMPERATURES.items()
        for kind, shape in SHAPES
    ]
    peers = list(race.installed(PEERS, package=PACKAGE, console=console))

    with console.status("checking against the definition in float64"):
        for task in tasks:
            for contender in race.entered([OURS], task, package=PACKAGE):
                error = definition.error(contender.step(0), task=task, space=contender.space)
                if not error <= definition.TOLERANCE:
                    console.print(
                        f"{contender.name} must be within {definition.TOLERANCE:.0e} of its definition in float64, got "
                        f"{error:.1e} at {task.title}: nothing is timed"
                    )
                    raise typer.Exit(1)

    forget_compilations()
    results = []
    for task in tasks:
        entrants = race.entered([OURS, *peers], task, package=PACKAGE)
        timings = race.timed(entrants, task.title, rounds=rounds, seed=SEED, console=console)
        console.print(by_space(task.title, timings))
        results.append((task, timings))
    recipe = {
        "benchmark": "node",
        "shapes": [{"kind": kind, "shape": shape} for kind, shape in SHAPES],
        "temperatures": TEMPERATURES,
        "dtype": "float32",
        "rounds": rounds,
        "threads": race.THREADS,
        "load_before": load,
    }
    record.write(out, recipe, seed=SEED, results=[record.described(task, timings) for task, timings in results])


def forget_compilations() -> None:
    """Clear the compiler's caches, so that a first call compiles everything."""
    torch.compiler.config.force_disable_caches = True
    warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")


if __name__ == "__main__":
    typer.run(main)
