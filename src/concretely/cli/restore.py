"""A run as the verbs that look back at one need it: its model and its data, from its folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .flags import loaded
from .terminal import console, refusing

if TYPE_CHECKING:
    import torch

    from ..data import Dataset
    from ..model import Model
    from ..training.run import Run

LEFT = "out/train/32H~64V-digits-concrete-m1-seed0"
"""What the example of `concretely train` leaves, for the examples of other verbs to go on with."""

Folder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, as concretely train leaves it.")]


Place = Annotated[str | None, typer.Option("--data", help="Where the data are now.", show_default="where they were")]


def restore(folder: Path, *, on: "torch.device", place: str | None = None) -> tuple["Run", "Model", "Dataset"]:
    """What a run has come to, its model and its data, with a word about what is damaged or not finished."""
    from ..training.run import require_same, restored

    err = console(err=True)
    with refusing():
        run, model, damaged = restored(folder, device=on)
        data = loaded(run.recipe, place, again=True)
        require_same(run, data)
    for sentence in damaged:
        err.print(f"{sentence}; taking that of step {run.step:,}", markup=False)
    if not run.finished:
        err.print(
            f"the run is not finished; this is its model after step {run.chosen:,} of {run.recipe.steps:,}",
            markup=False,
        )
    return run, model, data
