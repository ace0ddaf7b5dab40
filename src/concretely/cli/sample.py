"""`concretely sample`: draw images from a trained model."""

from pathlib import Path
from typing import Annotated

import typer

from .option import (
    EXAMPLE_RUN,
    DataPath,
    Device,
    MaxBytes,
    ModelName,
    RunFolder,
    folder_of,
    option,
    restore_run,
    select_device,
)
from .terminal import report_errors, require, require_positive, save

EXAMPLE = f"Example: concretely sample {EXAMPLE_RUN}"

MOST = 50
"""The maximum number of rows or columns, so that the picture fits into memory."""


def sample(
    run: RunFolder,
    rows: Annotated[int, typer.Option(help="Rows of images; with a context, one for each data point.")] = 8,
    *,
    columns: Annotated[
        int | None, option("Images in a row; with a context, completions of it.", "12, or 8 completions")
    ] = None,
    seed: Annotated[int | None, option("Random seed.", "that of the run")] = None,
    out: Annotated[Path, typer.Option(**folder_of("out"), help="Output folder.")] = Path("out/sample"),
    data_path: DataPath = None,
    model_name: ModelName = None,
    max_bytes: MaxBytes = None,
    device_name: Device = None,
) -> None:
    """Draw images from a run, as PNG and SVG: samples or, with a context, completions of test data."""
    for name, number in (("rows", rows), ("columns", columns)):
        require(number is None or 1 <= number <= MOST, name, f"be from 1 to {MOST}", number)
    require_positive(max_bytes=max_bytes)
    require(seed is None or 0 <= seed < 2**63, "seed", "be from 0 to 2^63 - 1", seed)
    device = select_device(device_name)

    from ..experiment.picture import sample_picture
    from ..report.image import draw_picture
    from ..training.own_recipe import OwnRecipe
    from ..training.paper import paper_recipe
    from ..training.rng import Purpose, generator_of

    past, model, data = restore_run(run, device=device, data=data_path, model_name=model_name, max_bytes=max_bytes)
    if not isinstance(past.recipe, OwnRecipe) and paper_recipe(past.recipe).architecture.context is not None:
        require(rows <= len(data.test), "rows", f"be at most {len(data.test)}, the size of the test set", rows)
    generator = generator_of(past.recipe.seed if seed is None else seed, Purpose.PICTURE, device=device)
    with report_errors():
        picture = sample_picture(past.recipe, model, data, rows=rows, columns=columns, generator=generator)
    save(draw_picture(picture), out / run.resolve().name)
