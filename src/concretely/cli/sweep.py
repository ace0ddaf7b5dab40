"""`concretely sweep`: train a grid of recipes, and choose among them by the validation set, as the paper did."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..file import atomic_write
from ..training.member import DIFFERENT, OF_DATA, Member
from ..training.recipe import said_of
from .flags import loaded, resolved, with_recipe
from .list import brief, choices, differing, named, title
from .member import (
    DIVERGED,
    Wish,
    interrupted,
    rehearse,
    require_different,
    require_fitting,
    require_no_longer,
    score,
    train_all,
    validation,
)
from .terminal import Device, Products, console, device, prepare, refusing, require, show

if TYPE_CHECKING:
    from rich.table import Table


EXAMPLE = "Example: concretely sweep 8H-64V --steps 30 --lr 1e-3,3e-3 --weight-decay 0"

GRID = {"lr": "1e-4,3e-4,1e-3", "weight_decay": "0,1e-2,1e-1,1"}
"""The values that the paper chose from, appendix D.5."""
NAMED = tuple(name for name in DIFFERENT if name not in OF_DATA)
"""The keys of a recipe by which members are called."""

SWEEP, BEST = "sweep.json", "best.toml"


@with_recipe
def sweep(
    notation: Annotated[
        str | None, typer.Argument(help="The model in the paper's notation, such as 200H~784V.")
    ] = None,
    *,
    given: dict[str, Any],
    out: Annotated[
        Path | None, typer.Option(help="The folder of the sweep.", show_default="out/sweep/ and a name")
    ] = None,
    device_name: Device = None,
    products: Products = None,
    score_samples: Annotated[int, typer.Option(help="Samples by which the validation set is scored.")] = 100,
) -> None:
    """Train a grid of recipes, and choose the best by the validation set. Ctrl-C saves; the same command goes on.

    lr, weight-decay, temperature, prior-temperature and seed may be lists such as 1e-4,3e-4 or, of seeds, 0..7; all
    members are trained as one program.
    Without lr or weight-decay, their values are those that the paper chose from.
    """
    require(score_samples >= 1, "score-samples", "be at least 1", score_samples)
    with refusing():
        said = said_of(given if notation is None else {**given, "notation": notation})
        wished = choices({**{key: values for key, values in GRID.items() if key not in said}, **given})
    recipes = [resolved(notation, choice) for choice in wished]
    for name in OF_DATA:
        found = dict.fromkeys(recipe.settings[name] for recipe in recipes)
        require(len(found) == 1, name.replace("_", "-"), "have one value, as one member is chosen", ",".join(found))
    require(recipes[0].train_on == "train", "train-on", "be train, as members are chosen by what is held out", "whole")
    folder = Path("out/sweep") / title(recipes) if out is None else out
    members = [Member(recipe, folder / name) for recipe, name in zip(recipes, named(recipes, NAMED), strict=True)]
    require_different(members)
    on = device(device_name, products)
    for member in members:
        require_fitting(member)
        require_no_longer(member)
    with refusing():
        data = loaded(recipes[0])
        rehearse(recipes[0], data, on=on)
    prepare(folder)
    console(err=True).print(f"{len(members)} members in {folder}\n{data.source}", markup=False, style="dim")
    try:
        if not train_all(members, lambda recipe: data, on=on):
            interrupted()
        records = [score(member, data, {"valid": Wish(score_samples)}, on=on) for member in members]
    except KeyboardInterrupt:
        interrupted()
    ranked = sorted(zip(members, records, strict=True), key=lambda pair: validation(pair[1]))
    show(_table(ranked, title=title(recipes), samples=score_samples))
    best = _write(folder, ranked, samples=score_samples)
    if best is None:
        typer.echo("no member can be chosen, as all have diverged: try a smaller lr", err=True)
        raise typer.Exit(1)
    console().print(str(best), style="bold", markup=False)


def _table(ranked: Sequence[tuple[Member, Mapping[str, Any] | None]], *, title: str, samples: int) -> "Table":
    from rich import box
    from rich.table import Table

    caption = f"validation NLL in nats from {samples:,} samples ± standard error"
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    keys = differing([member.recipe for member, _ in ranked])
    for header in (*keys, "NLL", "steps", "seconds", ""):
        table.add_column(header, justify="left" if not header else "right", no_wrap=True)
    for index, (member, record) in enumerate(ranked):
        values = [brief(member.recipe.settings.get(name)) for name in keys]
        best = "best" if index == 0 and math.isfinite(validation(record)) else ""
        table.add_row(*values, *_result(member, record), best, style="bold" if best else "")
    return table


def _result(member: Member, record: Mapping[str, Any] | None) -> tuple[str, str, str]:
    from ..report.record import measured

    if record is None:
        return "diverged", "–", "–"
    metric = record["metrics"]["valid_nll"]
    nll = measured(metric["value"], metric["standard_error"])
    return nll, f"{record['step']:,}", f"{record['seconds']:,.1f}"


def _write(folder: Path, ranked: Sequence[tuple[Member, Mapping[str, Any] | None]], *, samples: int) -> Path | None:
    """Write what was found and the recipe of the best, whose path is returned if there is one."""
    from ..report.record import write

    members = [_told(member, record) for member, record in ranked]
    (member, record), path = ranked[0], folder / BEST
    found = math.isfinite(validation(record))
    write(folder / SWEEP, {"score_samples": samples, "best": member.folder.name if found else None, "members": members})
    if not found:
        path.unlink(missing_ok=True)
        return None
    with atomic_write(path) as place:
        place.write_text(member.recipe.toml(), encoding="utf-8")
    return path


def _told(member: Member, record: Mapping[str, Any] | None) -> dict[str, Any]:
    """A member as a sweep tells it."""
    told: dict[str, Any] = {"folder": member.folder.name, "recipe": member.recipe.settings}
    if record is None:
        return {**told, "diverged": (member.folder / DIVERGED).read_text(encoding="utf-8").strip()}
    metric = record["metrics"]["valid_nll"]
    return {
        **told,
        "nll": metric["value"],
        "standard_error": metric["standard_error"],
        "samples": metric["samples"],
        "step": record["step"],
        "seconds": record["seconds"],
    }
