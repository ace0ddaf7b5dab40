"""A run on the disk: what it has come to, and what its folder holds.

That is the recipe, the last two checkpoints and, once it is finished, the parameters and the curve.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from ..data import Dataset, load
from ..file import atomic_write
from ..model import Model
from . import checkpoint
from .recipe import FILE, Recipe, read, resolve
from .trainer import Row, Trainer, built

CURVE, PARAMETERS = "curve.csv", "model.safetensors"
SOME = 8
"""How many runs are named at most, where one is to be chosen."""


@dataclass(frozen=True)
class Run:
    """What a run has come to."""

    recipe: Recipe
    made: Mapping[str, Any]
    """The environment of the last steps: commit, versions, device."""
    digest: str
    """That of the data, which a run keeps."""
    start: float
    """The bound before training, on the first batch."""
    step: int
    seconds: float
    rows: tuple[Row, ...] = ()
    best: tuple[int, float] | None = None
    """The step with the best look at the validation set, and the negative log-likelihood found there."""
    stale: int = 0
    """How many looks have passed since."""
    finished: bool = False
    members: int = 1
    """How many were trained as one program, of whose seconds these are a share."""

    @property
    def chosen(self) -> int:
        """The step after which its model was taken: that of the best look at the validation set, or the last."""
        return self.step if self.best is None else self.best[0]


def data_of(recipe: Recipe, *, place: str | None = None, progress: bool = False) -> Dataset:
    """The data of a recipe, which may now be in another place."""
    name = recipe.data if place is None else place
    data = load(name, width=recipe.width, binarize=recipe.binarize, progress=progress)
    return data.whole if recipe.train_on == "whole" else data


def begun(folder: Path) -> Recipe:
    """The recipe of the run in a folder."""
    path = folder / FILE
    if not path.is_file():
        inside = runs_in(folder)
        some = ", ".join(map(repr, inside[:SOME])) + ", …" * (len(inside) > SOME)
        which = f"which holds runs: choose one of {some}" if inside else f"which has no {FILE}"
        raise ValueError(f"run must be the folder of a run, got {str(folder)!r}, {which}")
    return resolve(**read(path))


def runs_in(folder: Path) -> list[str]:
    """The names of the folders within one that are those of runs."""
    return sorted(path.parent.name for path in folder.glob(f"*/{FILE}"))


def restored(folder: Path, *, device: torch.device | str = "cpu") -> tuple[Run, Model, tuple[str, ...]]:
    """What a run has come to, its model, and a sentence about each checkpoint that is damaged.

    The model is the best on the validation set, if that was looked at, else the last one.
    """
    recipe, last = begun(folder), checkpoint.latest(folder)
    if last is None:
        raise ValueError(f"run must have a checkpoint, got {str(folder)!r}, which has none yet: train it first")
    run, model = _run(recipe, last), built(recipe)
    kept = "best/" if any(name.startswith("best/") for name in last.tensors) else "model/"
    names = {name: tensor for name, tensor in last.tensors.items() if name.startswith(kept)}
    model.load_state_dict({name.removeprefix(kept): tensor for name, tensor in names.items()})
    return run, model.to(device).eval(), last.damaged


def require_same(run: Run, data: Dataset) -> None:
    """Refuse data that are not those of a run."""
    if data.digest != run.digest:
        must = "data must be those that the run was trained on"
        raise ValueError(f"{must}, got others in {data.name!r}: bring them back, or begin a new run")


def _run(recipe: Recipe, last: checkpoint.Checkpoint) -> Run:
    """A run as a checkpoint tells it."""
    told = dict(last.state)
    was = resolve(**told.pop("recipe"))
    others = [field.name for field in fields(recipe) if field.name != "steps"]
    if changed := [name for name in others if getattr(was, name) != getattr(recipe, name)]:
        found = f"other values of {', '.join(changed)}"
        raise ValueError(f"a run must keep its recipe but for steps, got {found}: put them back, or begin a new run")
    if was.lr_schedule != "constant" and was.steps != recipe.steps:
        raise ValueError(f"steps must stay {was.steps:,}, as the learning rate falls towards it, got {recipe.steps:,}")
    if last.step > recipe.steps:
        raise ValueError(f"steps must be at least {last.step:,}, which the run has taken, got {recipe.steps:,}")
    rows = tuple(Row(**row) for row in told.pop("rows"))
    best = None if told["best"] is None else tuple(told["best"])
    finished = told.pop("finished") and (last.step >= recipe.steps or was.steps == recipe.steps)
    return Run(recipe, step=last.step, rows=rows, finished=finished, **{**told, "best": best})


def resumed(trainer: Trainer, folder: Path) -> tuple[Run, tuple[str, ...]] | None:
    """The run of a folder up to its last checkpoint, if it has one, and a sentence about each that is damaged.

    The trainer goes there.
    """
    last = checkpoint.latest(folder)
    if last is None:
        return None
    run = _run(trainer.recipe, last)
    trainer.load(run.step, run.seconds, last.tensors)
    return run, last.damaged


def keep(run: Run, trainer: Trainer, folder: Path) -> None:
    """Write a checkpoint."""
    state = {field.name: getattr(run, field.name) for field in fields(run) if field.name not in ("recipe", "step")}
    told = {**state, "recipe": run.recipe.settings, "rows": [asdict(row) for row in run.rows]}
    checkpoint.save(folder, run.step, trainer.tensors(), told)


def finish(run: Run, trainer: Trainer, folder: Path) -> None:
    """Write what others will read: the curve and, once it is finished, the parameters."""
    write(folder / CURVE, _csv(run.rows))
    if run.finished:
        parameters: dict[str, Tensor] = trainer.best or trainer.model.state_dict()
        with atomic_write(folder / PARAMETERS) as place:
            place.write_bytes(save({name: tensor.cpu().contiguous() for name, tensor in parameters.items()}))


def _csv(rows: tuple[Row, ...]) -> str:
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(row) for row in rows)
    return text.getvalue()


def write(path: Path, text: str) -> None:
    """Write a text whole or not at all."""
    with atomic_write(path) as place:
        place.write_text(text, encoding="utf-8")
