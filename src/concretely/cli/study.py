"""`concretely study`: the bias, variance and time of gradient estimators, and what they learn on small tasks."""

import math
import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from ..spelling import number
from ..training.own_resolve import is_builder_name
from ..training.recipe import ESTIMATORS
from .option import Device, MaxBytes, ModelName, folder_of, load_data, option, restore_run, select_device
from .terminal import (
    console,
    fail,
    interruptible,
    remark,
    report_errors,
    require,
    require_positive,
    save,
    show,
    show_path,
    show_text,
    stop_requested,
)

EXAMPLE = "Example: concretely study 6H-64V --repeats 50"

COMPARED = "concrete,vimco,rloo,nvil,reinforce"
"""The estimators of a study of gradients, unless others are named. A program is studied without vimco."""
RECORD = "tasks.json"


def study(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[NOTATION|RUN|TASKS]",
            help="A model before training, such as 6H-64V, or a run's folder; with --tasks, tasks such as gate,rnn.",
            show_default="all tasks",
        ),
    ] = None,
    estimators: Annotated[
        str | None,
        option(
            f"Estimators, separated by commas: {', '.join(ESTIMATORS)}. --tasks has pathwise, not logistic-normal.",
            f"{COMPARED}; with --tasks, all",
        ),
    ] = None,
    *,
    tasks: Annotated[
        bool,
        typer.Option(
            "--tasks", help="Train the estimators at their defaults on small tasks, and compare their test scores."
        ),
    ] = False,
    data: Annotated[
        str | None, option("Data set: digits, mnist, omniglot, or a .npz file.", "digits, or the run's")
    ] = None,
    samples: Annotated[int | None, option("Number of samples m; --tasks always takes 4.", "5")] = None,
    repeats: Annotated[int | None, option("Estimates for each estimator; fewer than 11 show no bias.", "200")] = None,
    points: Annotated[int | None, option("Data points in the batch.", "16")] = None,
    temperature: Annotated[
        str | None, option("Temperature of relaxed estimators, such as 2/3.", "the paper's, or the run's")
    ] = None,
    seed: Annotated[int | None, option("Random seed.", "0, or the run's")] = None,
    seeds: Annotated[int | None, option("With --tasks: number of seeds.", "3")] = None,
    steps: Annotated[int | None, option("With --tasks: training steps.", "those of each task")] = None,
    out: Annotated[Path, typer.Option(**folder_of("out"), help="Output folder.")] = Path("out/study"),
    model_name: ModelName = None,
    max_bytes: MaxBytes = None,
    device_name: Device = None,
) -> None:
    """Compare gradient estimators: their bias, noise and time on a batch, or with --tasks what they learn.

    All estimators start fresh, even on a run: the baselines of nvil are untrained, and its scaling counts as bias.
    With --tasks, finished runs are kept in the output folder, and the same command goes on after Ctrl-C.
    """
    gradients = {"data": data, "samples": samples, "repeats": repeats, "points": points, "temperature": temperature}
    gradients["seed"] = seed
    names = None if estimators is None else [name.strip() for name in estimators.split(",")]
    for name, value in (gradients if tasks else {"seeds": seeds, "steps": steps}).items():
        require(value is None, name, f"be left out {'with' if tasks else 'without'} --tasks", value)
    if tasks:
        _study_tasks(subject, names, seeds=seeds, steps=steps, out=out, device_name=device_name)
    else:
        require(subject is not None, "notation or run", "be given, or --tasks", subject)
        given = {name: value for name, value in gradients.items() if value is not None}
        how: dict[str, Any] = {"out": out, "model_name": model_name, "max_bytes": max_bytes, "device_name": device_name}
        _study_gradients(str(subject), names, given, **how)


def _study_gradients(
    notation_or_run: str,
    wished: list[str] | None,
    given: dict[str, Any],
    *,
    out: Path,
    model_name: str | None,
    max_bytes: int | None,
    device_name: str | None,
) -> None:
    """Print and draw the bias, the noise and the time of estimators."""
    repeats, points = given.pop("repeats", 200), given.pop("points", 16)
    require(repeats >= 2, "repeats", "be at least 2", repeats)
    require_positive(points=points, max_bytes=max_bytes)
    if (temperature := given.get("temperature")) is not None:
        require(0 < number(temperature) < math.inf, "temperature", "be a positive number", temperature)
    data = given.pop("data", None)
    given = {"samples": 5, "temperature": None, "seed": None} | given
    device = select_device(device_name)

    from ..experiment.estimator_study import estimator_recipes, study_estimators, study_own
    from ..experiment.task import TASKS
    from ..file import writable_dir
    from ..model import Model
    from ..report.dotplot import draw_study
    from ..training.own_recipe import OwnRecipe
    from ..training.paper import build_model

    if is_builder_name(notation_or_run):
        must = "study must be given the folder of a run, or a notation"
        todo = f"train it first: concretely train {shlex.quote(notation_or_run)}"
        fail(f"{must}, got the builder of a model; {todo}")
    names = COMPARED.split(",") if wished is None else wished
    folder, step, result = Path(notation_or_run), 0, None
    is_task = not folder.exists() and set(notation_or_run.split(",")) <= set(TASKS)
    require(not is_task, "study", "be given --tasks to train on tasks", notation_or_run)
    recipes: Any = {}
    with report_errors():
        if os.sep in notation_or_run or folder.exists():
            run, model, loaded = restore_run(
                folder, device=device, data=data, model_name=model_name, max_bytes=max_bytes
            )
            step, title = run.step, folder.resolve().name
            if isinstance(run.recipe, OwnRecipe):
                how = {"points": points, "repeats": repeats, "progress": True}
                if wished is None and not isinstance(model, Model):
                    names.remove("vimco")  # a program has no log-weights
                result = study_own(run, model, loaded, names, **given, **how)
            else:
                recipes = estimator_recipes(names, run, **given)
        else:
            recipes = estimator_recipes(names, notation=notation_or_run, data=data, **given)
            recipe = recipes[names[0]]
            loaded = load_data(recipe, max_bytes=max_bytes)
            model = build_model(recipe, loaded).to(device)
            title = f"{recipe.notation}-{Path(recipe.data).stem}".replace(":", "x")
        if result is None:
            result = study_estimators(recipes, model, loaded, step=step, points=points, repeats=repeats, progress=True)
        writable_dir(out)
    show_text(f"{result}\n")
    save(draw_study(result), out / title)


def _study_tasks(
    tasks: str | None,
    names: list[str] | None,
    *,
    seeds: int | None,
    steps: int | None,
    out: Path,
    device_name: str | None,
) -> None:
    """Train estimators on tasks, print a table of their test scores, and write a record."""
    require_positive(seeds=seeds, steps=steps)
    device = select_device(device_name)

    from ..experiment.task_study import require_suited, study_tasks
    from ..file import writable_dir
    from ..report.table import task_table

    stopped = f"stopped; finished runs are in {out / RECORD}: run the same command to go on"
    wished = None if tasks is None else [name.strip() for name in tasks.split(",")]
    with report_errors(), stop_requested() as stop, interruptible(stopped):
        require_suited(wished, names)
        writable_dir(out)
        result = study_tasks(
            wished,
            estimators=names,
            seeds=range(3 if seeds is None else seeds),
            steps=steps,
            record=out / RECORD,
            device=device,
            stop=stop,
            note=remark,
            progress=console(err=True).is_terminal,
        )
    show(task_table(result))
    show_path(out / RECORD)
