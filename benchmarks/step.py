"""Time a training step against the same step written by hand: forward pass, backward pass, update by Adam.

Run it with `python -m benchmarks.step`. One layer of binary units is trained relaxed, and two layers by VIMCO. Nothing
is timed unless all contenders estimate the same loss and the same gradient.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from . import agreement, race, record, table, training
from .training import Training

SEED = 0
TASKS = (
    *(Training("200H~784V", method="concrete", samples=samples, seed=SEED) for samples in (1, 5, 50)),
    Training("200H-200H-784V", method="vimco", samples=5, seed=SEED),
)
OURS = ("ours", "without_graph")
PEERS = {"torch_by_hand": "torch", "jax_by_hand": "jax"}
PACKAGE = f"{__package__}.contender_step"
DRAWS = 200
OUT = Path(__file__).parent / "records" / "step.json"


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often every contender is timed.")] = 40,
    quick: Annotated[bool, typer.Option("--quick", help="Three rounds, to see that all runs.")] = False,
    out: Annotated[Path, typer.Option(help="Where to write the record.", show_default=False)] = OUT,
) -> None:
    """Time a training step against the same step by hand, after checking that all contenders agree."""
    rounds, draws = (3, DRAWS // 4) if quick else (rounds, DRAWS)
    console = race.opened()
    load = race.load(console)
    race.share_cores()
    torch.manual_seed(SEED)
    modules = [*OURS, *race.installed(PEERS, package=PACKAGE, console=console)]

    with console.status("checking that all contenders agree"):
        distances = [agreed(task, modules, draws=draws, console=console) for task in TASKS]

    results = []
    for task, apart in zip(TASKS, distances, strict=True):
        entrants = race.entered(modules, task, package=PACKAGE)
        timings = race.timed(entrants, task.title, rounds=rounds, seed=SEED, console=console)
        shown = table.blank(task.title, references=("ours", "ours compiled", "no graph", "no graph compiled"))
        for cells in table.rows(timings):
            shown.add_row(*cells)
        console.print(shown)
        results.append({**record.described(task, timings), "standard_errors_apart": apart})
    recipe = {
        "benchmark": "step",
        "batch": training.BATCH,
        "pixels": training.PIXELS,
        "temperature": training.TEMPERATURE,
        "prior_temperature": training.PRIOR_TEMPERATURE,
        "optimiser": {"name": "adam", "learning_rate": training.LEARNING_RATE, "betas": training.BETAS},
        "dtype": "float32",
        "draws_to_agree": draws,
        "rounds": rounds,
        "threads": race.THREADS,
        "load_before": load,
    }
    record.write(out, recipe, seed=SEED, results=results)


def agreed(task: Training, modules: list[str], *, draws: int, console: Console) -> dict[str, dict[str, float]]:
    """Return the distance of every other contender from ours in standard errors; exit if it is too large."""
    ours, *others = race.entered(modules, task, package=PACKAGE)
    expected = agreement.probed(ours.probe, draws)
    distances = {}
    for contender in others:
        apart = agreement.apart(agreement.probed(contender.probe, draws), expected)
        for name, distance in apart._asdict().items():
            if not distance <= agreement.LIMIT:
                console.print(
                    f"{name} of {contender.name} must be within {agreement.LIMIT:.0f} standard errors of that of "
                    f"{ours.name}, got {distance:.1f} at {task.title}: nothing is timed"
                )
                raise typer.Exit(1)
        distances[contender.name] = {name: round(float(distance), 2) for name, distance in apart._asdict().items()}
    return distances


if __name__ == "__main__":
    typer.run(main)
