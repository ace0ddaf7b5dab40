"""A run on disk.

Its folder holds the recipe, the last two checkpoints, the curve and, once the run is finished, the parameters.
"""

import csv
import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, cast

import torch
from safetensors.torch import save
from torch import Tensor, nn

from ..data import load_data
from ..environment import require_environment
from ..file import atomic_write, write_text
from ..model.model import Function
from ..spelling import is_count, is_number, listed
from . import checkpoint
from .checkpoint import require_tensors
from .origin import require_named, sign_run
from .own_method import own_data, own_model
from .own_recipe import OwnRecipe, RunRecipe, changed_settings
from .paper import empty_model, paper_recipe
from .recipe import FILE, Recipe, read, resolve
from .train_state import Row, TrainState, renamed

CURVE, PARAMETERS = "curve.csv", "model.safetensors"
ROW = [field.name for field in fields(Row) if field.name != "run"]
"""The names of what files have of a row."""
INSTEAD = "restore them, or start a new run in another folder or with overwrite"
"""What to do if a run cannot go on with other settings or data."""
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


def data_of(
    recipe: RunRecipe, *, place: str | None = None, max_bytes: int | None = None, progress: bool = False
) -> Any:
    """Load the data of a recipe. `place` is their current name or path, if they were moved."""
    if isinstance(recipe, OwnRecipe):
        return own_data(recipe, place=place, max_bytes=max_bytes, progress=progress)
    own = paper_recipe(recipe)
    name = own.data if place is None else place
    data = load_data(name, width=own.width, binarize=own.binarize, max_bytes=max_bytes, progress=progress)
    return data.whole if own.train_on == "whole" else data


def load(folder: str | Path, *, model: Any = None, device: torch.device | str = "cpu") -> Any:
    """Load the model of a run, in evaluation mode.

    Its parameters are those of the best validation or, without validations, of the last checkpoint. The model of `fit`
    is built again by its name if that can be imported. Otherwise pass its builder as `model`, which is called with the
    arguments of the run, or a new model, whose parameters are then replaced. If the run was not trained by you on this
    machine, or its builder is now in another place, pass the name of the builder, such as "path/to/file.py:build".

    >>> import concretely as c
    >>> from tempfile import mkdtemp
    >>> folder, model = mkdtemp() + "/mine", c.density("2H-6V")
    >>> run = c.fit(model, torch.zeros(10, 6), steps=2, out=folder)
    >>> load(folder, model=c.density("2H-6V")).training
    False
    """
    _, loaded, damaged = restored(folder, model=model, device=device)
    for sentence in damaged:
        warnings.warn(sentence, stacklevel=2)
    return loaded.function if isinstance(loaded, Function) else loaded


def load_recipe(folder: str | Path) -> RunRecipe:
    """Return the recipe of the run in a folder."""
    folder = Path(folder)
    path = folder / FILE
    if not path.is_file():
        inside = runs_in(folder)
        some = listed([repr(name) for name in inside], most=SOME)
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
    the user's own to load them into, its builder, or the name of that, as in `load`.
    """
    recipe, last = load_recipe(folder), checkpoint.latest(Path(folder))
    if last is None:
        raise ValueError(f"run must have a checkpoint, got {str(folder)!r}, which has none yet: train it first")
    run = _run(recipe, last, recipe.settings.get("model"))
    if isinstance(recipe, OwnRecipe):
        name = model if isinstance(model, str) else None
        if recipe.model and (model is None or name is not None):
            require_named(Path(folder), recipe, name)
        named = recipe if name is None else replace(recipe, model=name)
        own = own_model(named, model if name is None else None)
        _load_parameters(own, last.tensors)
    elif model is not None:
        raise ValueError("model must be left out, as this run is of a model in the paper's notation, got one")
    else:
        own = _paper_model(paper_recipe(recipe), last)
    return run, own.to(device).eval(), last.damaged


def rename_builder(folder: Path, name: str) -> RunRecipe:
    """Let a run build its model by another name from now on, if the model has its parameters; return its recipe."""
    run, _, _ = restored(folder, model=name)
    recipe = replace(cast("OwnRecipe", run.recipe), model=name)
    write_text(folder / FILE, recipe.toml())
    sign_run(folder, recipe)
    return recipe


def _paper_model(recipe: Recipe, last: checkpoint.Checkpoint) -> nn.Module:
    """Return the model of a recipe with the parameters of a checkpoint.

    A recipe may ask for more memory and time than its checkpoint. So nothing else is allocated, and a recipe with more
    layers than the checkpoint has tensors is refused.
    """
    kept = "best/" if any(name.startswith("best/") for name in last.tensors) else "model/"
    tensors = {name: tensor for name, tensor in last.tensors.items() if name.startswith(kept)}
    if len(tensors) < len(layers := recipe.architecture.layers):
        raise ValueError(f"{last.place} must have tensors of {len(layers):,} layers, got {len(tensors):,} tensors")
    model = empty_model(recipe)
    require_tensors(tensors, {f"{kept}{name}": tensor for name, tensor in model.state_dict().items()}, last.place)
    model.load_state_dict({name.removeprefix(kept): tensor for name, tensor in tensors.items()}, assign=True)
    return model


def _load_parameters(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load the best parameters and buffers of a checkpoint or, without validations, the last or averaged ones."""
    has_best = any(name.startswith("best/") for name in tensors)
    averages = {} if has_best else {name: tensor for name, tensor in tensors.items() if name.startswith("ema/model.")}
    start = "best/" if has_best else "model/"
    stored = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
    stored |= {name.removeprefix("ema/model."): tensor for name, tensor in averages.items()}
    unknown = sorted(stored.keys() - model.state_dict(keep_vars=True).keys() - dict(model.named_buffers()).keys())
    missing = f"without {unknown[0]!r}" if unknown else ""
    for name, own in (*model.named_parameters(), *model.named_buffers()):
        if name not in stored:
            if name in model.state_dict():  # one that is compiled or wrapped has a prefix in all of its names
                got = f"another parameter {name!r}{' and ' * bool(unknown)}{missing}"
                raise ValueError(f"model must be that of the run, got one with {got}")
            continue
        if own.shape != stored[name].shape:
            shapes = f"{tuple(own.shape)}, not {tuple(stored[name].shape)}"
            raise ValueError(f"model must be that of the run, got one whose {name!r} has shape {shapes}")
        with torch.no_grad():
            own.copy_(stored[name])
    if unknown:
        raise ValueError(f"model must be that of the run, got one {missing}")


def require_same(run: Run, digest: str, name: str) -> None:
    """Raise if the digest of data is not that of the data that a run was trained on."""
    if digest != run.digest:
        must = "data must be those that the run was trained on"
        raise ValueError(f"{must}, got others in {name!r}: {INSTEAD}")


def recipe_of(settings: Mapping[str, Any]) -> RunRecipe:
    """Return the recipe of settings: one of the paper's models, or of a user's own."""
    return resolve(**settings) if "model" not in settings else OwnRecipe.of(settings)


def _run(recipe: RunRecipe, last: checkpoint.Checkpoint, model: str | None) -> Run:
    """Return the run of a checkpoint; raise if its recipe differs from the given one in keys that must not change.

    `model` is the name of the builder in the recipe of the folder, which may be newer than that in the checkpoint.
    """
    _require_state(last)
    state = dict(last.state)
    was = recipe_of(state.pop("recipe"))
    was = replace(was, model=model) if isinstance(was, OwnRecipe) and model is not None else was
    changed = [name for name in changed_settings(recipe.settings, was.settings) if name not in recipe.flexible]
    if changed:
        others = f"other values of {', '.join(changed)}: {INSTEAD}"
        raise ValueError(f"a resumed run must keep its recipe except for steps, got {others}")
    if was.lr_schedule != "constant" and was.steps != recipe.steps:
        raise ValueError(
            f"steps must stay {was.steps:,}, as the schedule of lr may depend on them, got {recipe.steps:,}"
        )
    if last.step > recipe.steps:
        raise ValueError(f"steps must be at least {last.step:,}, which the run has taken, got {recipe.steps:,}")
    rows = tuple(Row(**renamed(row)) for row in state.pop("rows"))
    best = None if state["best"] is None else tuple(state["best"])
    finished = state.pop("finished") and (last.step >= recipe.steps or was.steps == recipe.steps)
    return Run(recipe, step=last.step, rows=rows, finished=finished, **{**state, "best": best})


def _require_state(last: checkpoint.Checkpoint) -> None:
    """Raise an error that names what is wrong with the state of a checkpoint, which may come from someone else."""
    checks: dict[str, Callable[[Any], bool]] = {
        "recipe": lambda value: isinstance(value, dict),
        "environment": lambda value: isinstance(value, dict) and {"commit", "versions", "device"} <= value.keys(),
        "digest": lambda value: isinstance(value, str),
        "start": is_number,
        "seconds": lambda value: is_number(value) and 0 <= value < math.inf,
        "rows": lambda value: isinstance(value, list) and all(map(_is_row, value)),
        "best": lambda value: value is None or (isinstance(value, list) and len(value) == 2 and _is_best(*value)),
        "stale": is_count,
        "finished": lambda value: isinstance(value, bool),
        "members": is_count,
    }
    for name, is_valid in checks.items():
        if name not in last.state:
            raise ValueError(f"{last.place} must have {name}, got none")
        if not is_valid(last.state[name]):
            raise ValueError(f"{name} of {last.place} must be as training writes it, got {shortened(last.state[name])}")
    if unknown := last.state.keys() - checks:
        raise ValueError(f"{last.place} must have {', '.join(checks)}, got also {min(unknown)!r}")
    require_environment(last.state["environment"], last.place)


def _is_row(value: Any) -> bool:
    """Return whether a value is a row of a training curve. Two of its numbers may be missing."""
    value = renamed(value) if isinstance(value, dict) else value
    return (
        isinstance(value, dict)
        and value.keys() == set(ROW)
        and is_count(value["step"])
        and all(is_number(value[name]) for name in ("seconds", "lr", "objective", "discrete"))
        and all(value[name] is None or is_number(value[name]) for name in ("temperature", "valid"))
        and isinstance(value["metrics"], dict)
        and all(map(is_number, value["metrics"].values()))
    )


def _is_best(step: Any, nll: Any) -> bool:
    return is_count(step) and is_number(nll)


def resume(train_state: TrainState, folder: Path) -> tuple[Run, tuple[str, ...]] | None:
    """Load the last checkpoint of a folder into `train_state`.

    Return the run and an error message for each damaged checkpoint, or None if the folder has no checkpoint.
    """
    last = checkpoint.latest(folder)
    if last is None:
        return None
    model = None
    with suppress(ValueError):  # a damaged recipe is written again
        model = read(folder / FILE).get("model")
    run = _run(train_state.recipe, last, model)
    train_state.load(run.step, run.seconds, last.tensors, place=last.place)
    return run, last.damaged


def save_checkpoint(run: Run, train_state: TrainState, folder: Path) -> None:
    """Write a checkpoint. Of several ranks, all must call this, and the first one writes."""
    tensors = train_state.tensors() if train_state.world.is_first or train_state.world.shards else {}
    if not train_state.world.is_first:
        return
    state = {field.name: getattr(run, field.name) for field in fields(run) if field.name not in ("recipe", "step")}
    state |= {"recipe": run.recipe.settings, "rows": [_saved(row) for row in run.rows]}
    checkpoint.save(folder, run.step, tensors, state)


def _saved(row: Row) -> dict[str, Any]:
    """Return a row as it is written to files of its run."""
    return {name: getattr(row, name) for name in ROW}


def export(run: Run, train_state: TrainState, folder: Path) -> None:
    """Write the training curve as CSV and, if the run is finished, the parameters.

    Of several ranks, all must call this, and the first one writes.
    """
    parameters = (train_state.best or train_state.parameters()) if run.finished else {}
    if not train_state.world.is_first:
        return
    names = [name for name in ROW if name != "metrics"]
    names += dict.fromkeys(name for row in run.rows for name in row.metrics if name not in names)
    with atomic_write(folder / CURVE) as place, place.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, names, lineterminator="\n", extrasaction="ignore")
        table.writeheader()
        table.writerows(_saved(row) | dict(row.metrics) for row in run.rows)
    if run.finished:
        kept = parameters.keys() & train_state.model.state_dict().keys()  # without the buffers that it leaves out
        with atomic_write(folder / PARAMETERS) as place:
            place.write_bytes(save({name: parameters[name].cpu().contiguous() for name in sorted(kept)}))
