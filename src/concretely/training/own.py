"""The tasks of a user's own models: a module, its data, and the settings of `fit`."""

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_map_only

from ..estimator import Estimator
from ..evaluation.cost import Cost
from ..evaluation.likelihood import evaluate
from ..functional.convolution import is_supported
from ..functional.noise import Keys
from ..functional.slice import Slice
from ..graph.program import signature
from ..layer.base import Layer
from ..model import Model
from ..model.model import Function
from ..objective import Objective
from ..schedule import Schedule, at_step, lr_factor
from .builder import takes_draw
from .feed import Inputs
from .own_loss import (
    BETA,
    TEMPERATURE,
    Arrange,
    Objectives,
    OwnLoss,
    OwnMonitor,
    RelaxedLoss,
    at_temperatures,
    depends_on_mode,
    draws_relaxed,
    has_temperature,
    node_temperatures,
    requires_gradient,
    shown_temperature,
)
from .own_recipe import OBJECTS, OwnRecipe, require_schedules
from .parallel import ALONE, World
from .rng import Purpose, generator_of, keys_of, seed_of, torch_generators
from .source import Source
from .stream import seeded_everything
from .task import OptimizerFactory, Task
from .trial import describe_batch, require_finite
from .user_error import describe_raised, user_line

EXAMPLE = 1_000
"""The maximum number of data points of the example from which an estimator is built."""
VALIDATED = 4_096
"""The number of data points that are validated at once."""
BY_NAME, BY_FUNCTION = "name its entries like the inputs", "pass inputs=, a function from a batch to the inputs"
"""How the entries of a batch become the inputs of a program."""

Scheduled = Schedule | Mapping[str, Schedule]
"""A schedule, or schedules by node."""
MakeEstimator = Estimator | type
"""An estimator, or its class, which is called with the model and inputs if it is a module."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of a run that are objects. The recipe describes them by text."""

    estimator: MakeEstimator
    objective: Objective | None = None
    temperature: Scheduled | None = None
    beta: Schedule | None = None
    optimizer: str | OptimizerFactory = "adam"
    schedule: str | Callable[[int], float] = "constant"
    inputs: Callable[[Any], Any] | None = None
    """A function from a batch to the inputs of the program."""
    valid: "Source | Callable[[Any], float] | None" = None
    compiles: bool = False
    stacks: bool = True


def own_task(
    recipe: OwnRecipe, model: nn.Module, source: Source, options: Options, *, key: Hashable, digest: str | None = None
) -> Task:
    """Return the task of a model on the device of its data. `key` is equal for tasks that can be trained together."""
    device = source.device
    model.to(device)
    feed = source.feed(seed=recipe.seed, batch=recipe.batch, parts=recipe.accumulate)
    example = feed.inputs(0, device)[0]
    file = None if source.name == OBJECTS else source.name
    arrange = arranged(model, example, options.inputs, file=file)
    estimator = _estimator(options, model, arrange(example), seed=recipe.seed)
    controls = _controls(options, model)
    require_schedules({**controls, "schedule": options.schedule}, recipe.steps)
    what = Objectives(
        device=device,
        arrange=arrange,
        samples=recipe.samples,
        objective=options.objective,
        autocast=torch.bfloat16 if recipe.precision == "bfloat16" else None,
        controls=tuple(controls),
    )
    loss = OwnLoss(model, estimator, what)
    loss.to(device)
    monitor = OwnMonitor(loss)
    values = tuple(at_step(schedule, 0) for schedule in controls.values())
    keys = Keys(keys_of(recipe.seed, Purpose.GAP, 0, device=device), seeds_torch=False)
    with torch_generators(device):
        torch.manual_seed(seed_of(recipe.seed, Purpose.TORCH))
        named = "the data" if file is None else f"the data {file!r}"
        with _running_on(named, example, _passed_whole(model, arrange(example), file)):
            units = monitor.examine(example, keys, values)
        if isinstance(options.valid, Source) and recipe.validate:
            _try_validation(model, options.valid, arrange, samples=min(recipe.validation_samples, 2))
    names = {name for name, parameter in loss.named_parameters() if parameter.requires_grad}
    by_torch = not isinstance(options.optimizer, str)
    own = dict(loss.named_parameters())
    matrices = frozenset(name for name in names if name.startswith("model.") and own[name].dim() >= 2)
    schedule, kernels = options.schedule, not options.compiles and what.autocast is None
    by_estimator = None if isinstance(options.temperature, Mapping) else getattr(estimator, TEMPERATURE, None)
    return Task(
        recipe=recipe,
        device=device,
        key=key,
        loss=loss,
        monitor=monitor,
        metrics=monitor.names,
        feed=feed,
        digest=source.digest if digest is None else digest,
        source=source.name,
        lr=1.0 if recipe.lr is None or by_torch else recipe.lr,
        lr_factor=partial(at_step, schedule)
        if callable(schedule)
        else lambda step: lr_factor(schedule, step, recipe.steps),
        decay=0.0,
        controls=tuple(controls.values()),
        control_names=tuple(controls),
        temperature=shown_temperature(controls.get(TEMPERATURE, by_estimator)),
        temperatures=node_temperatures(estimator, monitor.states) if options.temperature is None else {},
        weights=matrices,
        watched=frozenset(names),
        validate=lambda world: validation_score(model, options.valid, arrange, recipe, device, world),
        stacks="several" if options.stacks and _suits_vmap(model, kernels=kernels) else "never",
        optimizer=options.optimizer if not isinstance(options.optimizer, str) else None,
        optimizer_lr=recipe.lr if by_torch else None,
        parts=recipe.accumulate,
        clip=recipe.clip,
        ema=recipe.ema,
        reseeds=True,
        units=units,
        examines=True,
        compiles=options.compiles,
        relaxes=draws_relaxed(estimator),
        relaxed=RelaxedLoss(loss) if draws_relaxed(estimator) and depends_on_mode(model) else None,
        is_bound=isinstance(model, Model),
    )


@contextmanager
def _running_on(data: str, batch: Inputs, todo: str, *, is_second: bool = False) -> Iterator[None]:
    """Name the data, and the shapes of a batch of them, in errors of a model that runs on it for the first time.

    `todo` is the end of such an error. A ValueError is about the data only if there is something to do about it, if the
    model has run on other data before, or if it passed through a line of the user's code.
    """
    try:
        yield
    except (ValueError, RuntimeError, TypeError, KeyError, IndexError, AttributeError) as error:
        is_of_data = todo or is_second or (type(error) is ValueError and user_line(error))
        if isinstance(error, ValueError) and not is_of_data:
            raise
        must = f"the model must run on a batch of {data}, of {describe_batch(batch)}"
        raise ValueError(f"{must}, but it raised {describe_raised(error)}{todo}") from error


def _try_validation(model: nn.Module, valid: Source, arrange: Arrange, *, samples: int) -> None:
    """Score two points, or the first batch, of validation data, so that data that do not fit cost no work.

    A program without `tile` may run with one sample and fail with two.
    """
    with closing(valid.parts(2)) as parts:
        part = next(parts, None)
    if part is None:
        raise ValueError("valid must have at least one data point, got none")
    inputs = arrange(part)
    file = None if valid.name == "valid" else valid.name
    named = "valid" if file is None else f"the validation data of {file!r}"
    with _running_on(named, part, _passed_whole(model, inputs, file), is_second=True):
        scored(model, inputs, samples=samples, generator=torch.Generator(valid.device).manual_seed(0))


def arranged(
    model: nn.Module, example: Inputs, given: Callable[[Any], Any] | None, *, file: str | None = None
) -> Arrange:
    """Return how a batch becomes the inputs of a program. Dictionaries are passed by the names of its parameters.

    If the first one has none of these names, or the program has a single input of another name, they are passed whole.
    Where the first batch is no dictionary, that is decided for each, as validation data may have another form. `file`
    is the name of the data if they are those of a file, for errors.
    """
    expected, defaults = _signature(model), _defaults(model)
    what = "a model" if isinstance(model, Model) else "a program"
    first = example if given is None else given(example)

    def has_names(batch: Mapping[Any, Any]) -> bool:
        return set(batch) <= set(defaults) or (len(defaults) > 1 and bool(set(batch) & set(defaults)))

    decided = has_names(first) if isinstance(first, Mapping) else None

    def passed(batch: Any) -> tuple[Any, ...]:
        if isinstance(batch, Mapping):
            by_name = has_names(batch) if decided is None else decided
            return _inputs_by_name(what, defaults, batch, file) if by_name else (batch,)
        return tuple(batch) if isinstance(batch, tuple | list) else (batch,)

    try:
        inputs = passed(first)
        expected.bind(None, *inputs)
    except (TypeError, ValueError) as error:
        if not takes_draw(expected):
            must = f"{what} must take draw before its inputs, as in forward(draw, x)"
            raise ValueError(f"{must}, got ({', '.join(expected.parameters)})") from None
        if isinstance(error, ValueError):
            raise
        if isinstance(first, Mapping):
            _inputs_by_name(what, defaults, first, file)
        if by_keyword := _by_keyword(expected, len(inputs)):
            must = f"{what} of ({', '.join(defaults)}) must take its inputs by position"
            raise ValueError(
                f"{must}, got {', '.join(by_keyword)} by keyword only: remove the * in its signature"
            ) from None
        names, got = list(expected.parameters)[1:], f"{len(inputs)} input{'s' * (len(inputs) != 1)}"
        must = f"{what} of ({', '.join(names)}) must be given as many inputs"
        todo = "" if len(inputs) > 1 else "put them in a tuple, as each entry of a list is a batch, or "
        todo = f"{todo}{BY_FUNCTION}" if file is None else _as_arrays(names, file)
        raise ValueError(f"{must}, got {got}: {todo}") from None
    return passed if given is None else lambda batch: passed(given(batch))


def _signature(model: nn.Module) -> inspect.Signature:
    """Return the signature of the program that is given the inputs."""
    return signature(model if not isinstance(model, Model) else model.p if model.q is None else model.q)


def _defaults(model: nn.Module) -> dict[str, Any]:
    """Return the defaults of the inputs of a program by their names; `inspect.Parameter.empty` if there is none."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = list(_signature(model).parameters.values())[1:]
    return {own.name: own.default for own in parameters if own.kind not in several}


def _by_keyword(expected: inspect.Signature, count: int) -> list[str]:
    """Return the names of the parameters by keyword only that a number of inputs, or any number, needs."""
    parameters = [own for own in list(expected.parameters.values())[1:] if own.kind is not own.VAR_KEYWORD]
    by_keyword = [(place, own) for place, own in enumerate(parameters) if own.kind is own.KEYWORD_ONLY]
    return [own.name for place, own in by_keyword if place < count or own.default is own.empty]


def _as_arrays(names: Sequence[str], file: str) -> str:
    """Return what to do so that the data of a file, or of a name, are the inputs of a program."""
    arrays = f"arrays {' and '.join(f'train_{name}' for name in names)}" if len(names) > 1 else "an array train"
    return f"instead of {file!r}, take a file with {arrays}, and likewise for valid and test"


def _inputs_by_name(
    what: str, defaults: Mapping[str, Any], batch: Mapping[Any, Any], file: str | None
) -> tuple[Any, ...]:
    """Return the entries of a dictionary in the order of the inputs, up to the last one that it has."""
    missing = [name for name, own in defaults.items() if own is inspect.Parameter.empty and name not in batch]
    unknown = [name for name in batch if name not in defaults]
    if missing or unknown:
        lacks = [f"without {', '.join(map(repr, missing))}"] if missing else []
        adds = [f"with unknown {', '.join(map(repr, unknown))}"] if unknown else []
        must = f"{what} of ({', '.join(defaults)}) must be given a dictionary of its inputs"
        todo = f"{BY_NAME}, or {BY_FUNCTION}" if file is None else _as_arrays(list(defaults), file)
        raise ValueError(f"{must}, got one {' and '.join(lacks + adds)}: {todo}")
    names = list(defaults)
    while names and names[-1] not in batch:
        names.pop()
    return tuple(batch.get(name, defaults[name]) for name in names)


def _passed_whole(model: nn.Module, inputs: tuple[Any, ...], file: str | None) -> str:
    """Return the end of an error of a program whose one input was a dictionary, of which it may want an entry."""
    names, whole = list(_defaults(model)), inputs[0] if len(inputs) == 1 else None
    unknown = [name for name in whole if name not in names] if isinstance(whole, Mapping) else []
    if not isinstance(whole, Mapping) or not unknown or len(unknown) == len(whole):
        return ""
    why = f"as ({', '.join(names)}) has no input {', '.join(map(repr, unknown))}"
    todo = f"{BY_NAME}, or {BY_FUNCTION}" if file is None else _as_arrays(names, file)
    return f"; {names[0]} was the whole dictionary, {why}: {todo}"


def validation_score(
    model: nn.Module,
    valid: Source | Callable[[Any], float] | None,
    arrange: Arrange,
    recipe: OwnRecipe,
    device: torch.device,
    world: World = ALONE,
) -> float:
    """Return the negative log-likelihood of validation data or, for a program, its expected cost.

    The ranks of a world share the work.
    """
    assert valid is not None
    if not isinstance(valid, Source):
        training = model.training
        own = seed_of(recipe.seed, Purpose.VALIDATION)
        try:
            with torch_generators(device), seeded_everything(own):  # as it may draw, like `evaluate`
                torch.manual_seed(own)
                score = valid(model.eval())
            try:
                return float(score)
            except (TypeError, ValueError, RuntimeError):
                raise TypeError(f"valid must return a number, got {type(score).__name__}") from None
        finally:
            model.train(training)
    generator = world.noise(generator_of(recipe.seed, Purpose.VALIDATION, device=device))
    total, count = 0.0, 0
    for part in valid.parts(VALIDATED):
        try:
            scores = scored(model, arrange(part), samples=recipe.validation_samples, generator=generator)
        except ValueError as error:
            require_finite([part], "a validation", error)
            raise
        total, count = total + float(scores.sum()), count + len(scores)
    if not count:
        raise ValueError("valid must have at least one data point, got none")
    return total / count


def scored(model: nn.Module, inputs: Sequence[Any], *, samples: int, generator: torch.Generator | Slice) -> Tensor:
    """Return the negative log-likelihood or, for a program, the expected cost of every data point."""
    score = evaluate(model, *inputs, samples=samples, generator=generator)
    return score.values if isinstance(score, Cost) else -score.log_likelihood


def _estimator(options: Options, model: nn.Module, inputs: tuple[Any, ...], *, seed: int) -> Estimator:
    """Return the estimator. A class of modules, such as NVIL, is called with the model and inputs."""
    given: Any = options.estimator
    if isinstance(given, type) and issubclass(given, nn.Module):
        with torch.random.fork_rng():
            torch.manual_seed(seed_of(seed, Purpose.INITIAL, 1))
            given = given(model, *tree_map_only(Tensor, lambda tensor: tensor[:EXAMPLE], inputs))
    estimator: Estimator = given() if isinstance(given, type) else given
    if options.temperature is None:
        return estimator
    if not has_temperature(estimator):
        name = type(estimator).__name__
        raise ValueError(f"temperature must be left out, as {name} has none, got {options.temperature!r}")
    if requires_gradient(options.temperature):
        todo = "to learn it, give a parameter of the model to the estimator, as in Pathwise(model.temperature)"
        raise ValueError(f"temperature must be numbers or schedules, got a tensor that requires a gradient: {todo}")
    is_number = isinstance(options.temperature, int | float)  # which needs no table on the device
    return at_temperatures(estimator, {TEMPERATURE: float(options.temperature)}) if is_number else estimator  # type: ignore[arg-type]


def _controls(options: Options, model: nn.Module) -> dict[str, Schedule]:
    """Return the schedules that change from step to step, by name."""
    controls = dict[str, Schedule]()
    given = options.temperature
    if given is not None and not isinstance(given, int | float):
        nodes = given.items() if isinstance(given, Mapping) else [("", given)]
        controls |= {f"{TEMPERATURE}/{node}" if node else TEMPERATURE: value for node, value in nodes}
    if options.beta is not None:
        if not isinstance(model, Model) or model.q is None:
            raise ValueError(f"beta must be left out, as only a model with q has a KL, got {options.beta!r}")
        controls[BETA] = options.beta
    return controls


def _suits_vmap(model: nn.Module, *, kernels: bool) -> bool:
    """Return whether members run faster as one vmapped program than side by side, as far as the modules show.

    The parameters of a plain function are in no module and cannot be replaced by those of another member. Convolutions
    without a kernel, as all are if not `kernels`, become grouped ones, which are slow. Layers change their buffers.
    """
    return not any(
        isinstance(part, Layer)
        or (isinstance(part, _ConvNd) and not (kernels and is_supported(part)))
        or (isinstance(part, Function) and part._parameters)
        for part in model.modules()
    )
