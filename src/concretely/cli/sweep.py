"""`concretely sweep`: train a grid of recipes, and select the best on the validation set."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .option import Device, MaxBytes, Notation, Precision, folder_of, select_device, with_recipe
from .terminal import fail, interruptible, monitor, report_errors, require_positive, show, show_path, stop_requested

EXAMPLE = "Example: concretely sweep 8H-64V --steps 30 --lr 1e-3,3e-3 --weight-decay 0"


@with_recipe
def sweep(
    notation: Notation = None,
    *,
    given: dict[str, Any],
    out: Annotated[
        Path | None, typer.Option(**folder_of("out"), help="Output folder.", show_default="out/sweep/ and a name")
    ] = None,
    max_bytes: MaxBytes = None,
    device_name: Device = None,
    precision: Precision = None,
    score_samples: Annotated[int, typer.Option(help="Samples for scoring the validation set.")] = 100,
) -> None:
    """Train a grid of recipes and select the best on the validation set. Run the same command to go on after Ctrl-C.

    lr, weight-decay, temperature, prior-temperature and seed may be lists such as 1e-4,3e-4 or, for seeds, 0..7, as may
    the arguments of a builder. All members of one architecture train as one program. By default lr and weight-decay
    take the values that the paper chose from.
    """
    require_positive(score_samples=score_samples, max_bytes=max_bytes)

    from ..experiment.grid import grid_title
    from ..experiment.search import BEST, sweep, sweep_recipes
    from ..report.table import sweep_table

    with report_errors(), interruptible(), stop_requested() as stop:
        recipes = sweep_recipes(**given)
        folder = out or Path("out/sweep") / grid_title(recipes)
        device = select_device(device_name, precision)
        how: dict[str, Any] = {"device": device, "max_bytes": max_bytes, "monitor": monitor(stop)}
        found = sweep(recipes, folder, samples=score_samples, **how)
    show(sweep_table(found.ranked, title=grid_title(recipes), samples=score_samples))
    if found.best is None:
        fail("no member can be selected, as all have diverged: run the command again with smaller values of --lr", 1)
    show_path(folder / BEST)
