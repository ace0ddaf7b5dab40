"""`concretely sample`: picture what a trained model makes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .restore import LEFT, Folder, Place, restore
from .terminal import Device, device, prepare, require, save

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

    from ..data import Dataset
    from ..model import Model
    from ..training.recipe import Recipe

EXAMPLE = f"Example: concretely sample {LEFT}"

MOST = 50
"""The most images in a row or a column, so that the picture fits into memory."""


def sample(
    run: Folder,
    rows: Annotated[int, typer.Option(help="Rows of images: given a context, one for each data point.")] = 8,
    *,
    columns: Annotated[
        int | None,
        typer.Option(help="Images in a row: given a context, completions of it.", show_default="12, or 8 completions"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The draws follow from it.", show_default="that of the run")] = None,
    out: Annotated[Path, typer.Option(help="The folder to write to, created where it is missing.")] = Path(
        "out/sample"
    ),
    place: Place = None,
    device_name: Device = None,
) -> None:
    """Draw images from a run, as PNG and SVG: samples or, given a context, completions of test data."""
    for name, number in (("rows", rows), ("columns", columns)):
        require(number is None or 1 <= number <= MOST, name, f"be from 1 to {MOST}", number)
    require(seed is None or 0 <= seed < 2**63, "seed", "be from 0 to 2^63 - 1", seed)
    on = device(device_name)

    from ..training.rng import Purpose, generator_of

    past, model, data = restore(run, on=on, place=place)
    generator = generator_of(past.recipe.seed if seed is None else seed, Purpose.PICTURE, device=on)
    drawn = _drawn(past.recipe, model, data, rows=rows, columns=columns, generator=generator)
    prepare(out)
    save(drawn, out / run.resolve().name)


def _drawn(
    recipe: "Recipe",
    model: "Model",
    data: "Dataset",
    *,
    rows: int,
    columns: int | None,
    generator: "torch.Generator",
) -> "Figure":
    """Samples of a model or, if it needs a context, completions of data points spread over the test set."""
    from ..report import image
    from ..training.train_state import inputs_of

    if recipe.architecture.context is None:
        return image.samples(model, rows=rows, columns=columns or 12, generator=generator)
    points = len(data.test)
    require(rows <= points, "rows", f"be at most {points}, the data points of the test set", rows)
    inputs = inputs_of(recipe, data.test.spread(rows).to(generator.device))
    return image.completions(model, *inputs, samples=columns or 8, generator=generator)
