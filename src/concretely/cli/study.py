"""`concretely study`: the bias, the variance and the time of gradient estimators."""

import math
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ..spelling import number
from ..training.recipe import ESTIMATORS
from .option import Device, MaxBytes, folder_of, load_data, option, restore_run, select_device
from .terminal import report_errors, require, require_positive, save, show_text

EXAMPLE = "Example: concretely study 6H-64V --repeats 50"


def study(
    notation_or_run: Annotated[
        str, typer.Argument(metavar="NOTATION|RUN", help="A model before training, such as 6H-64V, or a run's folder.")
    ],
    estimators: Annotated[
        str, typer.Option(help=f"Estimators, separated by commas: {', '.join(ESTIMATORS)}.")
    ] = "concrete,vimco,rloo,nvil,reinforce",
    *,
    data: Annotated[
        str | None, option("Data set: digits, mnist, omniglot, or a .npz file.", "digits, or the run's")
    ] = None,
    samples: Annotated[int, typer.Option(help="Number of samples m.")] = 5,
    repeats: Annotated[int, typer.Option(help="Estimates for each estimator; fewer than 11 show no bias.")] = 200,
    points: Annotated[int, typer.Option(help="Data points in the batch.")] = 16,
    temperature: Annotated[
        str | None, option("Temperature of relaxed estimators, such as 2/3.", "the paper's, or the run's")
    ] = None,
    seed: Annotated[int | None, option("Random seed.", "0, or the run's")] = None,
    out: Annotated[Path, typer.Option(**folder_of("out"), help="Output folder.")] = Path("out/study"),
    max_bytes: MaxBytes = None,
    device_name: Device = None,
) -> None:
    """Compare the bias, the noise and the time of gradient estimators on a batch of training data.

    All estimators start fresh, even on a run: the baselines of nvil are untrained, and its scaling counts as bias.
    """
    names = [name.strip() for name in estimators.split(",")]
    require(repeats >= 2, "repeats", "be at least 2", repeats)
    require_positive(points=points, max_bytes=max_bytes)
    if temperature is not None:
        require(0 < number(temperature) < math.inf, "temperature", "be a positive number", temperature)
    device = select_device(device_name)

    from ..experiment.estimator_study import estimator_recipes, study_estimators, study_own
    from ..file import writable_dir
    from ..report.dotplot import draw_study
    from ..training.own_recipe import OwnRecipe
    from ..training.paper import build_model

    given: dict[str, Any] = {"samples": samples, "temperature": temperature, "seed": seed}
    folder, step, result = Path(notation_or_run), 0, None
    recipes: Any = {}
    with report_errors():
        if os.sep in notation_or_run or folder.exists():
            run, model, found = restore_run(folder, device=device, data=data, max_bytes=max_bytes)
            step, title = run.step, folder.resolve().name
            if isinstance(run.recipe, OwnRecipe):
                how = {"points": points, "repeats": repeats, "progress": True}
                result = study_own(run, model, found, names, **given, **how)
            else:
                recipes = estimator_recipes(names, run, **given)
        else:
            recipes = estimator_recipes(names, notation=notation_or_run, data=data, **given)
            recipe = recipes[names[0]]
            found = load_data(recipe, max_bytes=max_bytes)
            model = build_model(recipe, found).to(device)
            title = f"{recipe.notation}-{Path(recipe.data).stem}".replace(":", "x")
        if result is None:
            result = study_estimators(recipes, model, found, step=step, points=points, repeats=repeats, progress=True)
        writable_dir(out)
    show_text(f"{result}\n")
    save(draw_study(result), out / title)
