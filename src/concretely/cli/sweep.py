"""`concretely sweep`: train a grid of recipes, and select the best on the validation set."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .option import (
    Address,
    Device,
    MaxBytes,
    MembersPerProgram,
    Notation,
    On,
    Precision,
    ProgramsPerGPU,
    Shared,
    folder_of,
    option,
    select_device,
    select_place,
    with_precision,
    with_recipe,
)
from .terminal import (
    fail,
    interruptible,
    monitor,
    refuse_ranks,
    report_errors,
    require_positive,
    show,
    show_path,
    show_text,
    stop_requested,
)

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
    halving: Annotated[
        int | None, option("Successive halving: several times, keep only one in this number of members.", "none")
    ] = None,
    share: Shared = False,
    on: On = None,
    address: Address = None,
    programs_per_gpu: ProgramsPerGPU = None,
    members_per_program: MembersPerProgram = None,
) -> None:
    """Train a grid of recipes and select the best on the validation set. Run the same command to go on after Ctrl-C.

    lr, weight-decay, temperature, prior-temperature, beta, clip, ema, seed and the values of set may be lists such as
    1e-4,3e-4 or, for seeds, 0..7. All members of one architecture train as one program. By default lr and weight-decay
    take the values that the paper chose from; for a model of your own lr does, unless its builder has arguments.

    With --share, run the same command in several terminals or on several machines with one shared folder: each process
    takes members that no other has, and all end when everything is done.
    """
    refuse_ranks("sweep")
    require_positive(score_samples=score_samples, max_bytes=max_bytes)
    sizes: dict[str, Any] = {"members_per_program": members_per_program, "programs_per_gpu": programs_per_gpu}
    place = select_place(share=share, on=on, address=address, device_name=device_name, **sizes)

    from ..experiment.folder_name import sweep_folder
    from ..experiment.grid import grid_title
    from ..experiment.search import BEST, sweep, sweep_recipes
    from ..report.table import sweep_table

    with report_errors(), interruptible(), stop_requested() as stop:
        recipes = sweep_recipes(**with_precision(given, precision))
        folder = out or sweep_folder(recipes, Path("out/sweep"))
        device = select_device(device_name if on is None else "cpu", precision)
        how: dict[str, Any] = {"device": device, "max_bytes": max_bytes, "monitor": monitor(stop)}
        result = sweep(recipes, folder, samples=score_samples, on=place, halving=halving, **how)
    show(sweep_table(result.ranked, title=grid_title(recipes), samples=score_samples, stopped=result.stopped))
    if result.saved:
        show_text(result.saved)
    if result.best is None:
        fail("no member can be selected, as all have diverged: run the command again with smaller values of --lr", 1)
    show_path(folder / BEST)
