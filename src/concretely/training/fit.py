"""`fit`: train any model or program on any data, with one or many seeds and settings."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import Dataset as TorchDataset

from ..data import Dataset
from ..data.arrays import Arrays
from ..estimator import RLOO, VIMCO, Pathwise
from ..graph.program import Program
from ..model import Model
from ..model.model import checked_objective
from ..objective import Objective, average
from ..schedule import Schedule, within
from ..spelling import did_you_mean
from .builder import as_model, built, is_builder, name_of, name_of_class, require_arguments, require_separate
from .callback import Callback, joined_callbacks, warn_caller
from .folder import Run
from .group import starts_group
from .interrupt import stop_requested
from .loop import DivergedError, train_states
from .own import MakeEstimator, Options, Scheduled, own_task
from .own_recipe import OwnRecipe, argument_key, describe, require_options, require_possible, run_names, seeds_of
from .parallel import World, join, shapes_of
from .place import tensors_of
from .source import Source, as_source
from .task import OptimizerFactory
from .train_state import Row, TrainState

PRECISIONS = {"float32": None, "tf32": "high", "bfloat16": "high"}
"""The precisions of `fit`, and torch's name for that of float32 products. None keeps what torch is set to."""
VALIDATIONS = 20
"""The default number of validations in a run."""


class TrainingWarning(UserWarning):
    """A remark about a training run, unless a callback takes it."""


@dataclass(frozen=True, eq=False)
class FittedRun:
    """A run of `fit`: its progress, its `model` with the best or last parameters, and its `folder`, if it has one."""

    run: Run
    model: nn.Module
    """The trained model in evaluation mode, with the parameters of the best validation if there was one."""
    folder: Path | None
    """The folder of the run, or None if it is in memory only."""
    error: DivergedError | None = None
    """Why training has diverged, if it has."""

    @property
    def step(self) -> int:
        """The number of steps taken."""
        return self.run.step

    @property
    def rows(self) -> tuple[Row, ...]:
        """The training curve."""
        return self.run.rows

    @property
    def best(self) -> tuple[int, float] | None:
        """The step with the best validation and its score, or None without validations."""
        return self.run.best

    @property
    def finished(self) -> bool:
        """Whether training has ended: after all steps, or because validations no longer improved."""
        return self.run.finished

    @property
    def seconds(self) -> float:
        """The seconds of training."""
        return self.run.seconds

    @property
    def seed(self) -> int:
        """The seed."""
        return self.run.recipe.seed

    @property
    def recipe(self) -> OwnRecipe:
        """The settings."""
        assert isinstance(self.run.recipe, OwnRecipe)
        return self.run.recipe

    def __repr__(self) -> str:
        last = f", objective {self.rows[-1].objective:.4g}" if self.rows else ""
        best = "" if self.best is None else f", best validation {self.best[1]:.4g} at step {self.best[0]:,}"
        state = "diverged" if self.error else "finished" if self.finished else "not finished"
        return f"FittedRun(step {self.step:,}, {state}{last}{best})"


class _Member(NamedTuple):
    recipe: OwnRecipe
    model: nn.Module
    folder: Path | None
    name: str  # among several, else empty


def fit(
    model: Model | Program | Callable[..., Any],
    data: Any,
    *,
    estimator: MakeEstimator | None = None,
    samples: int | None = None,
    objective: Objective | None = None,
    steps: int = 20_000,
    batch: int = 64,
    optimizer: str | OptimizerFactory = "adam",
    lr: float | Sequence[float] | None = None,
    schedule: str | Callable[[int], float] = "constant",
    valid: Any = None,
    every: int | None = None,
    patience: int = 0,
    validation_samples: int = 10,
    seed: int | Sequence[int] = 0,
    arguments: Mapping[str, Any] | None = None,
    inputs: Callable[[Any], Any] | None = None,
    temperature: Scheduled | None = None,
    beta: Schedule | None = None,
    clip: float | None = None,
    accumulate: int = 1,
    ema: float | None = None,
    precision: str = "float32",
    device: torch.device | str | None = None,
    compile: bool = False,  # noqa: A002 (the name that torch gives it)
    shard: bool = False,
    out: str | Path | None = None,
    overwrite: bool = False,
    checkpoint_seconds: float = 60.0,
    callbacks: Callback | Sequence[Callback] = (),
) -> Any:
    """Train a model or a program, and return its run, or a list of runs for several seeds or settings.

    `model` is a `Model`, a program, or a function without required arguments that builds one. `data` are tensors with
    points along their first axis (one, or a tuple or dictionary of them), a data set of torch, a `DataLoader` or
    another iterable of batches, such as a list, or a data set of this library, its name, or the path of an `.npz` file.
    Batches are passed to the program: tuples by position, dictionaries by the names of its parameters, or as one input
    if they have none of these names or more entries than its one parameter. `inputs` maps a batch to other inputs.

    With `out`, the run is saved there every `checkpoint_seconds`, when it ends and when it is interrupted (SIGINT,
    SIGTERM), and the same call goes on where the last one stopped. On a CPU an interrupted run then has the same bits
    as an uninterrupted one. Without `out` it is kept in memory only. On a GPU, steps are captured as CUDA graphs and
    replayed where that is possible. Under torchrun, each rank takes its slice of every batch, so all ranks must read
    the same batches, without a `DistributedSampler`.

    Several seeds, as in `seed=range(8)`, several learning rates, or lists among the `arguments` need a function that
    builds the model. Such runs are trained together, each in a folder of its own inside `out`.

    Args:
        model: What to train.
        data: What to train it on.
        estimator: The gradient estimator, by default `Pathwise()`, or its class: `NVIL` is built for each model.
        samples: The number of samples, by default 1, or 5 for estimators that need several.
        objective: The objective, as in `estimate`.
        steps: The number of updates.
        batch: The number of data points of a batch, unless `data` are batches.
        optimizer: "adam", "muon", a class of `torch.optim`, or a function of parameters that returns an optimizer.
        lr: The learning rate, by default 1e-3, or the optimizer's own.
        schedule: "constant", "linear", "cosine", or a function of the step that returns a factor of the learning rate.
        valid: Validation data, or a function of the model that returns a score of which lower is better. Data are
            scored by the negative log-likelihood or, for a program, the expected cost of the discrete graph. A data set
            of this library brings its own, which is used if `every` or `patience` is given.
        every: The number of steps between validations, by default a twentieth of all. The best parameters are kept.
        patience: The number of validations without improvement after which training stops, or 0 to never stop early.
        validation_samples: The number of samples for each data point in a validation.
        seed: The seed of the initial parameters (of a builder), the order of the data, and all noise; or several.
        arguments: Arguments of the builder. Lists are several settings. With `out` they must be plain values: numbers,
            strings, None, or lists or dictionaries of them. Tuples become lists.
        inputs: A function from a batch to the inputs of the program.
        temperature: A temperature that replaces that of the estimator: a number, a schedule such as `Annealing`, or
            either by node.
        beta: The weight of the KL between q and p, or its schedule, such as `Warmup(1000)`.
        clip: The largest norm of a gradient.
        accumulate: The number of batches whose gradients are averaged in a step.
        ema: The decay of a running average of the parameters, such as 0.999, which is then validated and returned.
        precision: "float32", "tf32" for faster matrix products on a GPU, or "bfloat16" for autocast.
        device: Where to train, by default where the model is; for a builder on a GPU if there is one.
        compile: Whether to compile the loss with `torch.compile`.
        shard: Whether parameters, gradients and moments are sharded over the ranks of torchrun, by FSDP2.
        out: The folder of the run.
        overwrite: Whether to delete an earlier run in that folder once the new one has been checked.
        checkpoint_seconds: The number of seconds between checkpoints.
        callbacks: `ProgressBar()`, `TensorBoard(folder)`, `CSVLog(path)`, or functions of a `Row` of the curve, whose
            `run` is the name of its run among several.

    >>> import torch, concretely as c
    >>> x = (torch.rand(100, 6) < 0.3).float()
    >>> run = c.fit(c.density("2H-6V"), x, estimator=c.Pathwise(), steps=20, batch=10)
    >>> run.step, run.finished, len(run.rows)
    (20, True, 2)
    """
    builds = is_builder(model)
    module = None if builds else as_model(model)
    world, folder = join(_device(device, module), shard=shard), None if out is None else Path(out)
    with ExitStack() as stack:
        stack.enter_context(world.telling_once())
        stack.enter_context(torch.inference_mode(mode=False))  # which also enables gradients
        settings = _Settings(seed, lr, arguments)
        require_options(optimizer, schedule, lr, beta, inputs, checkpoint_seconds)
        if precision not in PRECISIONS:
            raise ValueError(f"unknown precision {precision!r}{did_you_mean(str(precision), PRECISIONS)}")
        if not builds and (settings.count > 1 or arguments):
            what = f"arguments={dict(arguments)!r}" if arguments else f"{settings.count} of them"
            raise ValueError(f"several seeds or settings need a function that builds the model, got {what} for a model")
        for given in settings.arguments if builds else ():
            require_arguments(model, given)
        estimator = Pathwise() if estimator is None else estimator
        if not isinstance(estimator, type):
            checked_objective(estimator, objective, samples=1 if samples is None else samples, default=average)
        if folder is not None and (not str(out) or folder.is_file()):  # Python takes '' for the current folder
            raise ValueError(f"out must be the path of a folder, got {str(out)!r}")
        if settings.count > 1 and isinstance(estimator, nn.Module):
            must = "estimator must be a class of modules for several seeds or settings, as each has its own parameters"
            got = f"got one {type(estimator).__name__}: pass the class, called with the model and inputs"
            raise ValueError(f"{must}, {got}")
        if valid is None and (patience or every) and isinstance(data, str | Path | Dataset | Arrays):
            valid = data  # whose validation points are kept apart
        if patience and valid is None:
            raise ValueError(f"patience must be 0 unless valid is given, got {patience}")
        warn = partial(warn_caller, category=TrainingWarning)
        shown = (callbacks, warn) if world.is_first else ((), lambda sentence: None)
        called = joined_callbacks(shown[0], steps=steps, stack=stack, note=shown[1])
        source = as_source([()] if data is None else data, device=world.device, note=called.note)
        if settings.count > 1 and isinstance(source.batches, Iterator):
            raise ValueError("data must be readable once for each seed, got an iterator: pass a DataLoader or a list")
        recipe = OwnRecipe(
            model=name_of(model) if builds else name_of_class(model),
            data=source.name,
            estimator=describe(estimator),
            samples=_samples(estimator) if samples is None else samples,
            objective=None if objective is None else describe(objective),
            inputs=None if inputs is None else describe(inputs),
            temperature=None if temperature is None else describe(temperature),
            beta=None if beta is None else describe(beta),
            steps=steps,
            batch=batch,
            accumulate=accumulate,
            optimizer=describe(optimizer),
            lr=1e-3 if lr is None and isinstance(optimizer, str) else None,
            lr_schedule=describe(schedule),
            clip=clip,
            ema=ema,
            precision=precision,
            validate=0 if valid is None else max(1, steps // VALIDATIONS) if every is None else every,
            validation_samples=validation_samples,
            patience=patience,
        )
        spread = list(settings.spread(recipe, folder))
        for own, _, _ in spread:
            require_possible(own, validate="every", is_saved=folder is not None)
        options = Options(
            estimator=estimator,
            objective=objective,
            temperature=within(temperature, steps),
            beta=within(beta, steps),
            optimizer=optimizer,
            schedule=within(schedule, steps),
            inputs=inputs,
            valid=_validation(valid, world.device),
            compiles=compile,
        )
        if folder is not None and overwrite:
            world.require_alone("overwrite", "a restart would delete the run")
        members = [
            _Member(own, built(model, own.arguments, seed=own.seed) if module is None else module, where, name)
            for own, where, name in spread
        ]
        require_separate([member.model for member in members])
        stack.enter_context(_products(precision))
        stop = stack.enter_context(stop_requested())
        how: dict[str, Any] = {"checkpoint_seconds": checkpoint_seconds, "callbacks": called, "stop": stop}
        how["overwritten"] = folder if overwrite else None
        runs = _trained(members, source, options, world, **how)
        if settings.is_one and runs[0].error is not None:
            raise runs[0].error
    return runs[0] if settings.is_one else runs


def _trained(members: Sequence[_Member], source: Source, options: Options, world: World, **how: Any) -> list[FittedRun]:
    """Train members in groups that can be one program, and return their runs. All are tried before any is trained."""
    keys, fitted = [_program_key(member) for member in members], dict[int, FittedRun]()
    tasks = [own_task(own.recipe, own.model, source, options, key=key) for own, key in zip(members, keys, strict=True)]
    for first in dict.fromkeys(keys):
        group = [k for k, key in enumerate(keys) if key == first]
        for other in set(range(len(tasks))).difference(group):
            tasks[other].feed.close()  # which ends its workers
        states = [TrainState(tasks[k], world) for k in group]
        runs = train_states(states, [members[k].folder for k in group], names=[members[k].name for k in group], **how)
        for k, state, run in zip(group, states, runs, strict=True):
            fitted[k] = _fitted(state, run, members[k].folder)
            if not fitted[k].finished and fitted[k].error is None:
                call = "the same call" + " without overwrite" * (how["overwritten"] is not None)
                saved = "" if members[k].folder is None else f" and saved; {call} goes on from there"
                name = f"{members[k].name}: " if members[k].name else ""
                how["callbacks"].note(f"{name}stopped after step {fitted[k].step:,}{saved}")
    return [fitted[k] for k in range(len(members))]


def _fitted(state: TrainState, run: Run | DivergedError, folder: Path | None) -> FittedRun:
    """Return the run with its model, which gets the best parameters."""
    if isinstance(run, DivergedError):
        start = Run(state.recipe, {}, state.task.digest, 0.0, step=state.step, seconds=state.seconds)
        return FittedRun(start, state.model.eval(), folder, run)
    state.adopt_best()
    return FittedRun(run, state.model.eval(), folder)


class _Settings:
    """The seeds, learning rates and arguments of a call of `fit`, each one value or several."""

    def __init__(
        self, seed: int | Sequence[int], lr: float | Sequence[float] | None, arguments: Mapping[str, Any] | None
    ) -> None:
        if not isinstance(arguments, Mapping | None):
            raise ValueError(f"arguments must be a dictionary, whose lists are several settings, got {arguments!r}")
        given = dict(arguments or {})
        lists = {name: value for name, value in given.items() if isinstance(value, list | tuple | range)}
        self.is_one = isinstance(seed, Integral) and not isinstance(lr, Sequence) and not lists
        self._seeds = seeds_of(seed)
        self._lrs = list(lr) if isinstance(lr, Sequence) else [lr]
        self.arguments = [given | dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
        for name, values in (("seed", self._seeds), ("lr", self._lrs), *lists.items()):
            if not values:
                raise ValueError(f"{name} must have at least one value, got none")
        names = [*map(argument_key, lists), *["lr"] * (len(self._lrs) > 1), *["seed"] * (len(self._seeds) > 1)]
        self._names = names or ["seed"]

    @property
    def count(self) -> int:
        """The number of members."""
        return len(self._seeds) * len(self._lrs) * len(self.arguments)

    def spread(self, recipe: OwnRecipe, folder: Path | None) -> Iterator[tuple[OwnRecipe, Path | None, str]]:
        """Yield the recipe, the folder and the name of every member."""
        recipes = [
            replace(recipe, arguments=given, seed=seed, lr=recipe.lr if lr is None else float(lr))
            for given, lr, seed in product(self.arguments, self._lrs, self._seeds)
        ]
        names = [""] if self.is_one else run_names(recipes, self._names)
        for own, name in zip(recipes, names, strict=True):
            yield own, None if folder is None else folder / name, name


def _program_key(member: _Member) -> Hashable:
    """Return a key that is equal for members whose steps can be taken as one program."""
    return repr(replace(member.recipe, seed=0, lr=None).settings), tuple(shapes_of(tensors_of(member.model)).items())


def _validation(valid: Any, device: torch.device) -> Any:
    """Return validation data as a source; a function that scores a model stays as it is."""
    if valid is None or (callable(valid) and not isinstance(valid, Iterable | TorchDataset)):
        return valid
    if isinstance(valid, Iterator):
        raise TypeError("valid must be data that can be read again, got an iterator: pass a DataLoader or a list")
    return as_source(valid, device=device, note=lambda sentence: None, split="valid", name="valid")


def _device(device: torch.device | str | None, module: nn.Module | None) -> torch.device:
    """Return where to train: by default where a model is, or on a GPU if there is one."""
    if device is None:
        own = None if module is None else next(module.parameters(), None)
        device = own.device if own is not None else "cuda" if torch.cuda.is_available() else "cpu"
        if own is not None and own.is_cuda and starts_group():  # every rank may have built its model on the first GPU
            device = "cuda"
    place = None
    with suppress(RuntimeError):  # a name that torch does not know
        place = torch.device(device)
    is_cuda = place is not None and place.type == "cuda" and not starts_group()  # a rank has its own sentence
    if place is None or (is_cuda and (place.index or 0) >= torch.cuda.device_count()):
        raise ValueError(f"device must be available to torch, such as 'cpu', got {str(device)!r}")
    return place


def _samples(estimator: MakeEstimator) -> int:
    """Return the default number of samples of an estimator."""
    several = (RLOO, VIMCO)
    return 5 if isinstance(estimator, several) or estimator in several else 1


@contextmanager
def _products(precision: str) -> Iterator[None]:
    """Inside this context, products of float32 matrices on a GPU have a precision of `fit`."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(PRECISIONS[precision] or before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
