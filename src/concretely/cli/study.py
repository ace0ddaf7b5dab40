"""`concretely study`: the bias, the variance and the time of gradient estimators."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ..spelling import number
from ..training.recipe import ESTIMATORS, Method, Recipe, resolve
from .flags import loaded
from .restore import restore
from .terminal import Device, device, prepare, refuse, refusing, require, save

if TYPE_CHECKING:
    import torch

    from ..data import Dataset
    from ..evaluation import GradientStudy
    from ..model import Model

EXAMPLE = "Example: concretely study 6H-64V --repeats 50"


def study(
    notation_or_run: Annotated[
        str,
        typer.Argument(metavar="NOTATION|RUN", help="A model before training, such as 6H-64V, or the folder of a run."),
    ],
    estimators: Annotated[
        str, typer.Option(help=f"Any of {', '.join(ESTIMATORS)}, separated by commas.")
    ] = "concrete,vimco,rloo,nvil,reinforce",
    *,
    data: Annotated[
        str | None,
        typer.Option(help="digits, mnist, omniglot, or the path of a .npz file.", show_default="digits, or the run's"),
    ] = None,
    samples: Annotated[int, typer.Option(help="The number m of samples of each.")] = 5,
    repeats: Annotated[int, typer.Option(help="Estimates of each; fewer than 11 find no bias.")] = 200,
    points: Annotated[int, typer.Option(help="Data points that the gradient is of.")] = 16,
    temperature: Annotated[
        str | None,
        typer.Option(help="That of those which have one, such as 2/3.", show_default="the paper's, or the run's"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="All that is random.", show_default="0, or the run's")] = None,
    out: Annotated[Path, typer.Option(help="The folder to write to, created where it is missing.")] = Path("out/study"),
    device_name: Device = None,
) -> None:
    """Compare gradient estimators on a batch of training data: how far off, how noisy and how slow each is.

    All start fresh, also on a run: the baselines of nvil have learned nothing yet, and its scale counts as bias.
    """
    names = [name.strip() for name in estimators.split(",")]
    require(repeats >= 2, "repeats", "be at least 2", repeats)
    require(points >= 1, "points", "be at least 1", points)
    if temperature is not None:
        require(0 < number(temperature) < math.inf, "temperature", "be a positive number", temperature)
    wished = {"samples": samples, "temperature": temperature, "seed": seed}
    if os.sep in notation_or_run or Path(notation_or_run).exists():
        subject = _trained(Path(notation_or_run), names, wished, place=data, on=device(device_name))
    else:
        recipes = _recipes(names, {"notation": notation_or_run, "data": data, **wished})
        subject = _untrained(recipes, on=device(device_name))
    most = len(subject.data.train)
    require(points <= most, "points", f"be at most {most:,}, those for training", points)
    prepare(out)

    from ..report.study import figure

    found = _studied(subject, points=points, repeats=repeats)
    typer.echo(f"{found}\n")
    save(figure(found), out / subject.title)


class _Subject(NamedTuple):
    """What estimators are studied on, and the recipe of each by its name."""

    recipes: dict[str, Recipe]
    model: "Model"
    data: "Dataset"
    step: int
    """How many steps the model has been trained for."""
    title: str


def _untrained(recipes: dict[str, Recipe], *, on: "torch.device") -> _Subject:
    """A model as training would find it."""
    from ..training.train_state import build_model

    recipe = next(iter(recipes.values()))
    with refusing():
        data = loaded(recipe)
    title = f"{recipe.notation}-{Path(recipe.data).stem}".replace(":", "x")
    return _Subject(recipes, build_model(recipe, data).to(on), data, step=0, title=title)


def _trained(
    folder: Path, names: list[str], wished: dict[str, Any], *, place: str | None, on: "torch.device"
) -> _Subject:
    """The model of a run, which also decides what was not wished otherwise."""
    from ..training.method import at_step

    run, model, data = restore(folder, on=on, place=place)
    kept = {name: getattr(run.recipe, name) for name in ("notation", "data", "binarize", "seed")}
    for name in ("temperature", "prior_temperature"):
        kept[name] = at_step(getattr(run.recipe, name), run.step)
    wished = kept | {name: value for name, value in wished.items() if value is not None}
    return _Subject(_recipes(names, wished), model, data, step=run.step, title=folder.resolve().name)


def _recipes(names: list[str], wished: dict[str, Any]) -> dict[str, Recipe]:
    """What each estimator is to do, by its name, with the temperatures that it has a use for."""
    cooling = [name for name in names if ESTIMATORS.get(name, Method()).has_temperature]
    with refusing():
        recipes = {}
        for name in names:
            useless = {"temperature": name not in cooling, "prior_temperature": name != "concrete"}
            used = {key: value for key, value in wished.items() if not useless.get(key)}
            recipes[name] = resolve(estimator=name, **used)
    # that of a run is no wish, but text is
    if isinstance(wished["temperature"], str) and not cooling:
        refuse(f"temperature must be left out, as no estimator has one, got {wished['temperature']!r}")
    return recipes


def _studied(subject: _Subject, *, points: int, repeats: int) -> "GradientStudy":
    """What a study finds on the batch of the next step."""
    from ..evaluation import gradient_study
    from ..training.method import estimator_of
    from ..training.rng import Order, Purpose, generator_of
    from ..training.train_state import inputs_of

    recipes, model, data, step, _ = subject
    recipe, on = next(iter(recipes.values())), next(model.parameters()).device
    batch = Order(points=len(data.train), batch=points, seed=recipe.seed).indices(step)
    inputs = inputs_of(recipe, data.train[batch].to(on))
    with refusing():
        return gradient_study(
            model,
            *inputs,
            estimators={name: estimator_of(each, model, inputs) for name, each in recipes.items()},
            samples=recipe.samples,
            repeats=repeats,
            generator=generator_of(recipe.seed, Purpose.NOISE, step, device=on),
            progress=True,
        )
