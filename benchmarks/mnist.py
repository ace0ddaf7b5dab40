"""Train models of MNIST for 20,000 steps on two CPU cores, which takes minutes, and score them.

Density estimation with Concrete relaxations and with VIMCO, scored by 1,000 samples, and structured prediction of the
lower half of a digit from the upper one, scored by 100. Runs go on from where they were stopped.
"""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from concretely.cli.terminal import training_progress
from concretely.experiment.record import format_value
from concretely.experiment.scoring import independent_pixels, likelihood_metric, score_split
from concretely.training.folder import data_of, restored
from concretely.training.loop import train
from concretely.training.recipe import Recipe, resolve

from . import record

STEPS = 20_000
TARGET = 115.0
"""The limit for the NLL of a density, in nats."""

COMMON: dict[str, Any] = {"data": "mnist", "steps": STEPS, "lr": 1e-3, "lr_schedule": "cosine"}
RECIPES = [
    (resolve(notation="200H~784V", **COMMON), 1_000),
    (resolve(notation="200H~784V", estimator="vimco", samples=5, **COMMON), 1_000),
    (resolve(notation="392V-240H-240H-392V", **COMMON), 100),
]


def main() -> None:
    """Train and score the models, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/mnist"), help="where the runs are")
    parser.add_argument("--record", type=Path, default=Path(__file__).parent / "records" / "mnist.json")
    wished = parser.parse_args()
    console = Console()
    results = [_result(recipe, samples, wished.out / recipe.title, console) for recipe, samples in RECIPES]
    console.print(_table(results))
    recipe = {"steps": STEPS, "target": TARGET}
    record.write(wished.record, recipe, seed=RECIPES[0][0].seed, results=results)


def _result(recipe: Recipe, samples: int, folder: Path, console: Console) -> dict[str, Any]:
    """Return the result of a recipe."""
    console.print(recipe.title, markup=False)
    data = data_of(recipe, progress=True)
    with training_progress(recipe, Console(stderr=True), None) as watch:
        train(recipe, folder, data=data, callbacks=watch)
    run, model, _ = restored(folder)
    likelihood = score_split(recipe, model, data, split="test", samples=samples, progress=True)
    return {
        "recipe": recipe.settings,
        "seconds": round(run.seconds, 1),
        "test_nll": likelihood_metric(likelihood),
        "test_factorised_nll": independent_pixels(recipe, data, split="test"),
        "target": TARGET if recipe.architecture.context is None else None,
    }


def _table(results: list[dict[str, Any]]) -> Table:
    table = Table("model", "trained by", "m", "seconds", "test NLL", "asked", "independent pixels", box=None)
    for result in results:
        recipe, nll, other = result["recipe"], result["test_nll"], result["test_factorised_nll"]
        table.add_row(
            recipe["notation"],
            recipe["estimator"],
            str(recipe["samples"]),
            f"{result['seconds']:.0f}",
            format_value(nll["value"], nll["standard_error"]),
            "" if result["target"] is None else f"< {result['target']:.0f}",
            format_value(other["value"], other["standard_error"]),
        )
    return table


if __name__ == "__main__":
    main()
