"""A run on disk.

Its folder holds the recipe, the last two checkpoints, the curve and, once the run is finished, the parameters.
"""

import csv
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from ..data import load_data
from ..file import atomic_write
from ..model.model import Function
from . import checkpoint
from .own_method import own_data, own_model
from .own_recipe import OwnRecipe, RunRecipe
from .paper import build_model, paper_recipe
from .recipe import FILE, read, resolve
from .train_state import Row, TrainState

CURVE, PARAMETERS = "curve.csv", "model.safetensors"
SOME = 8
"""The maximum number of runs that an error lists."""


@dataclass(frozen=True)
class Run:
    """The progress of a run."""

    recipe: RunRecipe
    environment: Mapping[str, Any]
    """The commit, versions and device with which the run was last started or resumed."""
    digest: str
    """The digest of the data, which must not change during a run."""
    start: float
    """The bound before training, on the first batch."""
    step: int
    seconds: float
    rows: tuple[Row, ...] = ()
    best: tuple[int, float] | None = None
    """The step with the best validation and its negative log-likelihood, or None without validations."""
    stale: int = 0
    """The number of validations since the best."""
    finished: bool = False
    members: int = 1
    """The number of runs that were trained together. Each is charged an equal share of the seconds."""

    @property
    def chosen(self) -> int:
        """The step of the exported parameters: the step of the best validation or, without validations, the last."""
        return self.step if self.best is None else self.best[0]


def data_of(recipe: RunRecipe, *, place: str | None = None, progress: bool = False) -> Any:
    """Load the data of a recipe. `place` is their current name or path, if they were moved."""
    if isinstance(recipe, OwnRecipe):
        return own_data(recipe, place=place, progress=progress)
    own = paper_recipe(recipe)
    name = own.data if place is None else place
    data = load_data(name, width=own.width, binarize=own.binarize, progress=progress)
    return data.whole if own.train_on == "whole" else data


def load(folder: str | Path, *, model: Any = None, device: torch.device | str = "cpu") -> Any:
    """Load the model of a run, in evaluation mode.

    Its parameters are those of the best validation or, without validations, of the last checkpoint. The model of `fit`
    is built again by its name if that can be imported; otherwise pass a new one as `model`, whose parameters are then
    replaced.
    """
    _, found, damaged = restored(folder, model=model, device=device)
    for sentence in damaged:
        warnings.warn(sentence, stacklevel=2)
    return found.function if isinstance(found, Function) else found


def load_recipe(folder: str | Path) -> RunRecipe:
    """Return the recipe of the run in a folder."""
    folder = Path(folder)
    path = folder / FILE
    if not path.is_file():
        inside = runs_in(folder)
        some = ", ".join(map(repr, inside[:SOME])) + ", …" * (len(inside) > SOME)
        which = f"which holds runs: choose one of {some}" if inside else f"which has no {FILE}"
        raise ValueError(f"run must be the folder of a run, got {str(folder)!r}, {which}")
    return recipe_of(read(path))


def runs_in(folder: Path) -> list[str]:
    """Return the names of the runs inside a folder."""
    return sorted(path.parent.name for path in folder.glob(f"*/{FILE}"))


def restored(
    folder: str | Path, *, model: Any = None, device: torch.device | str = "cpu"
) -> tuple[Run, Any, tuple[str, ...]]:
    """Return a run, its model in evaluation mode, and an error message for each damaged checkpoint.

    The parameters are those of the best validation or, without validations, of the last checkpoint. `model` is one of
    the user's own to load them into.
    """
    recipe, last = load_recipe(folder), checkpoint.latest(Path(folder))
    if last is None:
        raise ValueError(f"run must have a checkpoint, got {str(folder)!r}, which has none yet: train it first")
    run = _run(recipe, last)
    if not isinstance(recipe, OwnRecipe) and model is not None:
        raise ValueError("model must be left out, as this run is of a model in the paper's notation, got one")
    own: nn.Module = own_model(recipe, model) if isinstance(recipe, OwnRecipe) else build_model(paper_recipe(recipe))
    _load_parameters(own, last.tensors)
    return run, own.to(device).eval(), last.damaged


def _load_parameters(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Set the parameters and buffers of a model to the best of a checkpoint, or to the last, averaged if they are."""
    has_best = any(name.startswith("best/") for name in tensors)
    averages = {} if has_best else {name: each for name, each in tensors.items() if name.startswith("ema/model.")}
    start = "best/" if has_best else "model/"
    found = {name.removeprefix(start): each for name, each in tensors.items() if name.startswith(start)}
    found |= {name.removeprefix("ema/model."): each for name, each in averages.items()}
    for name, own in (*model.named_parameters(), *model.named_buffers()):
        if name not in found:
            if name in model.state_dict():
                raise ValueError(f"model must be that of the run, got one with another parameter {name!r}")
            continue
        if own.shape != found[name].shape:
            shapes = f"{tuple(own.shape)}, not {tuple(found[name].shape)}"
            raise ValueError(f"model must be that of the run, got one whose {name!r} has shape {shapes}")
        with torch.no_grad():
            own.copy_(found[name])
    if unknown := found.keys() - model.state_dict(keep_vars=True).keys() - {name for name, _ in model.named_buffers()}:
        raise ValueError(f"model must be that of the run, got one without {sorted(unknown)[0]!r}")


def require_same(run: Run, digest: str, name: str) -> None:
    """Raise if the digest of data is not that of the data that a run was trained on."""
    if digest != run.digest:
        must = "data must be those that the run was trained on"
        raise ValueError(f"{must}, got others in {name!r}: bring them back, or begin a new run")


def recipe_of(settings: Mapping[str, Any]) -> RunRecipe:
    """Return the recipe of settings: one of the paper's models, or of a user's own."""
    return resolve(**settings) if "model" not in settings else OwnRecipe.of(settings)


def _run(recipe: RunRecipe, last: checkpoint.Checkpoint) -> Run:
    """Return the run of a checkpoint; raise if its recipe differs from the given one in what must stay."""
    state = dict(last.state)
    was = recipe_of(state.pop("recipe"))
    now, before = recipe.settings, was.settings
    if changed := [
        name for name in {**now, **before} if name not in recipe.flexible and now.get(name) != before.get(name)
    ]:
        found = f"other values of {', '.join(changed)}"
        raise ValueError(f"a run must keep its recipe but for steps, got {found}: put them back, or begin a new run")
    if was.lr_schedule != "constant" and was.steps != recipe.steps:
        raise ValueError(f"steps must stay {was.steps:,}, as the learning rate falls towards it, got {recipe.steps:,}")
    if last.step > recipe.steps:
        raise ValueError(f"steps must be at least {last.step:,}, which the run has taken, got {recipe.steps:,}")
    rows = tuple(Row(**row) for row in state.pop("rows"))
    best = None if state["best"] is None else tuple(state["best"])
    finished = state.pop("finished") and (last.step >= recipe.steps or was.steps == recipe.steps)
    return Run(recipe, step=last.step, rows=rows, finished=finished, **{**state, "best": best})


def resume(train_state: TrainState, folder: Path) -> tuple[Run, tuple[str, ...]] | None:
    """Load the last checkpoint of a folder into `train_state`.

    Return the run and an error message for each damaged checkpoint, or None if the folder has no checkpoint.
    """
    last = checkpoint.latest(folder)
    if last is None:
        return None
    run = _run(train_state.recipe, last)
    train_state.load(run.step, run.seconds, last.tensors)
    return run, last.damaged


def save_checkpoint(run: Run, train_state: TrainState, folder: Path) -> None:
    """Write a checkpoint."""
    state = {field.name: getattr(run, field.name) for field in fields(run) if field.name not in ("recipe", "step")}
    state |= {"recipe": run.recipe.settings, "rows": [asdict(row) for row in run.rows]}
    checkpoint.save(folder, run.step, train_state.tensors(), state)


def export(run: Run, train_state: TrainState, folder: Path) -> None:
    """Write the training curve as CSV and, if the run is finished, the parameters."""
    names = [field.name for field in fields(Row) if field.name != "metrics"]
    names += dict.fromkeys(name for row in run.rows for name in row.metrics if name not in names)
    with atomic_write(folder / CURVE) as place, place.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, names, lineterminator="\n", extrasaction="ignore")
        table.writeheader()
        table.writerows(asdict(row) | dict(row.metrics) for row in run.rows)
    if run.finished:
        parameters: dict[str, Tensor] = train_state.best or train_state.parameters()
        with atomic_write(folder / PARAMETERS) as place:
            place.write_bytes(save({name: tensor.cpu().contiguous() for name, tensor in parameters.items()}))
