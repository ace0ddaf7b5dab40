"""A run on the disk: trained, watched, stopped, resumed.

Its folder holds the recipe, the last two checkpoints and, once it is finished, the parameters and the curve. Whatever
ends a run, at most the steps since the last checkpoint are done again, and they end in the same parameters.
"""

import csv
import io
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from ..circumstance import circumstances
from ..data import Dataset, load
from ..file import claimed, draft
from ..model import Model
from . import checkpoint
from .recipe import FILE, Recipe, read, resolve
from .trainer import WATCHED, Row, Trainer, built

CURVE, PARAMETERS = "curve.csv", "model.safetensors"
ROWS = 500
"""The most rows that a curve has, or some more if it has grown."""
HOPELESS = 10
"""A bound so many times as far below zero as before training is no bad luck."""


class DivergedError(ArithmeticError):
    """Training that has become useless; its sentence says where, and where to go back to."""


@dataclass(frozen=True)
class Watch:
    """Who wants to know how a run is doing."""

    step: Callable[[int], None] = lambda step: None
    row: Callable[[Row], None] = lambda row: None
    note: Callable[[str], None] = lambda sentence: None


@dataclass(frozen=True)
class Run:
    """What a run has come to."""

    recipe: Recipe
    made: Mapping[str, Any]
    """The circumstances of the last steps: commit, versions, device."""
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

    @property
    def chosen(self) -> int:
        """The step after which its model was taken: that of the best look at the validation set, or the last."""
        return self.step if self.best is None else self.best[0]


def train(
    recipe: Recipe,
    folder: Path,
    *,
    data: Dataset,
    device: torch.device | str = "cpu",
    checkpoint_seconds: float = 60.0,
    watch: Watch = Watch(),  # noqa: B008 (frozen)
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Train a model in a folder, from the last checkpoint there or from the start.

    A checkpoint is written every so many seconds, when there is reason to stop, and at the end. After each step `stop`
    is asked whether there is.
    """
    trainer = Trainer(recipe, data, device=device)
    start = trainer.rehearsed()
    folder.mkdir(parents=True, exist_ok=True)
    with claimed(folder):
        made = circumstances(str(trainer.device))
        run = _resumed(trainer, folder, watch) or Run(recipe, made, data.digest, start, step=0, seconds=0.0)
        require_same(run, data)
        run = run if run.finished else replace(run, made=made)
        _write(folder / FILE, recipe.toml())  # only now, as a run that is refused keeps its own
        return _finish(_trained(trainer, run, folder, checkpoint_seconds, watch, stop), trainer, folder)


def data_of(recipe: Recipe, *, place: str | None = None, progress: bool = False) -> Dataset:
    """The data of a recipe, which may now be in another place."""
    name = recipe.data if place is None else place
    data = load(name, width=recipe.width, binarize=recipe.binarize, progress=progress)
    return data.whole if recipe.train_on == "whole" else data


def begun(folder: Path) -> Recipe:
    """The recipe of the run in a folder."""
    path = folder / FILE
    if not path.is_file():
        raise ValueError(f"run must be the folder of a run, got {str(folder)!r}, which has no {FILE}")
    return resolve(**read(path))


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


def _resumed(trainer: Trainer, folder: Path, watch: Watch) -> Run | None:
    """The run of a folder up to its last checkpoint, if it has one."""
    last = checkpoint.latest(folder)
    if last is None:
        return None
    for sentence in last.damaged:
        watch.note(f"{sentence}; going on from step {last.step:,}")
    run = _run(trainer.recipe, last)
    trainer.load(run.step, run.seconds, last.tensors)
    return run


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


def _trained(
    trainer: Trainer,
    run: Run,
    folder: Path,
    checkpoint_seconds: float,
    watch: Watch,
    stop: Callable[[], bool],
) -> Run:
    """Take the steps that are left, and look up from them where there is something to write down."""
    recipe, saved = trainer.recipe, time.monotonic()
    stopped = False

    def pause() -> bool:
        nonlocal stopped
        watch.step(trainer.step)
        stopped = stop()
        return stopped or time.monotonic() - saved > checkpoint_seconds

    while not (run.finished or stopped):
        ends = [recipe.steps, _following(trainer.step, _interval(recipe))]
        ends += [_following(trainer.step, recipe.validate)] if recipe.validate else []
        trainer.advance(min(ends), pause=pause)
        _require_sound(trainer, folder)
        _require_hope(trainer, run, folder)
        if trainer.step in ends:
            _require_finite(trainer, folder)
            run = _looked(trainer, run)
            watch.row(run.rows[-1])
        run = replace(run, step=trainer.step, seconds=trainer.seconds)
        if run.finished or stopped or time.monotonic() - saved > checkpoint_seconds:
            _require_finite(trainer, folder)
            checkpoint.save(folder, run.step, trainer.tensors(), _told(run))
            saved = time.monotonic()
    return run


def _looked(trainer: Trainer, run: Run) -> Run:
    """The run with one more row, and with a look at the validation set where the recipe wants one."""
    recipe, best, stale = trainer.recipe, run.best, run.stale
    # a run that was stopped after a row may be asked to end right there
    again = bool(run.rows) and run.rows[-1].step == trainer.step
    rows, row = (run.rows[:-1], run.rows[-1]) if again else (run.rows, trainer.row())
    if recipe.validate and trainer.step % recipe.validate == 0:
        nll = trainer.validated()
        row = replace(row, valid=nll)
        if best is None or nll < best[1]:
            best, stale = (trainer.step, nll), 0
            trainer.keep()
        else:
            stale += 1
    finished = trainer.step >= recipe.steps or 0 < recipe.patience <= stale
    return replace(run, rows=(*rows, row), best=best, stale=stale, finished=finished)


def _finish(run: Run, trainer: Trainer, folder: Path) -> Run:
    """Write what others will read, the curve and the parameters."""
    _write(folder / CURVE, _csv(run.rows))
    if run.finished:
        parameters: dict[str, Tensor] = trainer.best or trainer.model.state_dict()
        with draft(folder / PARAMETERS) as place:
            place.write_bytes(save({name: tensor.cpu().contiguous() for name, tensor in parameters.items()}))
    return run


def _require_sound(trainer: Trainer, folder: Path) -> None:
    fault = trainer.fault()
    if fault is not None:
        step, layer = fault
        raise DivergedError(
            f"the gradient of step {step + 1:,} is not finite, first in layer {layer}; {_way_back(folder)}"
        )


def _require_finite(trainer: Trainer, folder: Path) -> None:
    layer = trainer.spoiled()
    if layer is not None:
        raise DivergedError(
            f"the parameters after step {trainer.step:,} are not finite, first in layer {layer}; {_way_back(folder)}"
        )


def _require_hope(trainer: Trainer, run: Run, folder: Path) -> None:
    bound = trainer.bound()
    if not bound >= -HOPELESS * max(abs(run.start), 1.0):
        layer = trainer.culprit(trainer.step - 1)
        raise DivergedError(
            f"training has diverged by step {trainer.step:,}: its bound is {bound:,.4g}, and was {run.start:,.4g} "
            f"at first; the largest gradient is that of layer {layer}; {_way_back(folder)}"
        )


def _way_back(folder: Path) -> str:
    try:
        last = checkpoint.latest(folder)
    except ValueError as error:
        return str(error)
    found = "there is no checkpoint yet" if last is None else f"the last good checkpoint is that of step {last.step:,}"
    return f"{found}: try a smaller lr"


def _told(run: Run) -> dict[str, Any]:
    """What a checkpoint says of a run, as plain values."""
    return {
        "recipe": run.recipe.settings,
        "made": run.made,
        "digest": run.digest,
        "start": run.start,
        "seconds": run.seconds,
        "rows": [asdict(row) for row in run.rows],
        "best": run.best,
        "stale": run.stale,
        "finished": run.finished,
    }


def _interval(recipe: Recipe) -> int:
    """The number of steps of a row."""
    return WATCHED * math.ceil(recipe.steps / ROWS / WATCHED)


def _following(step: int, every: int) -> int:
    return (step // every + 1) * every


def _csv(rows: tuple[Row, ...]) -> str:
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(row) for row in rows)
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    with draft(path) as place:
        place.write_text(text, encoding="utf-8")
