"""The recipe of a run of a user's own model: all settings as plain values, for checkpoints, records and reports."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, ClassVar, Protocol, SupportsFloat, runtime_checkable

from ..spelling import did_you_mean, format_setting, number
from .recipe import LR_SCHEDULES, OPTIMIZERS

WHOLE = ("samples", "steps", "batch", "accumulate", "seed", "validate", "validation_samples", "patience")
"""The keys of whole numbers."""
REAL = ("lr", "clip", "ema")
"""The keys of real numbers."""
UNNAMED = re.compile(r"<.*> at 0x[0-9a-f]+|0x[0-9a-f]+")
"""Matches the addresses in the text of an object, which differ between processes."""

OBJECTS = "data"
"""The name of data that are objects of Python."""
NONE = {"none": True}
"""What None is in a file of TOML, which has no word for it."""
WEIGHT = "be finite and not negative"
"""What the weight of the KL must be."""


@runtime_checkable
class RunRecipe(Protocol):
    """The interface of the recipes of all runs, of the paper's models and of a user's own."""

    @property
    def seed(self) -> int: ...
    @property
    def data(self) -> str: ...
    @property
    def estimator(self) -> str: ...
    @property
    def samples(self) -> int: ...
    @property
    def optimizer(self) -> str: ...
    @property
    def lr_schedule(self) -> str: ...
    @property
    def steps(self) -> int: ...
    @property
    def validate(self) -> int: ...
    @property
    def patience(self) -> int: ...
    @property
    def title(self) -> str: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def flexible(self) -> frozenset[str]: ...
    def toml(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class OwnRecipe:
    """How to train a model of one's own. Objects such as estimators and schedules are described by text.

    >>> OwnRecipe(model="package.module:build", arguments={"width": 20}, data="my.npz", seed=3).title
    'module.build-width20-my-seed3'
    """

    flexible: ClassVar[frozenset[str]] = frozenset({"steps", "validate", "patience", "data"})
    """The keys that may change when a run is resumed. The data themselves may not."""

    model: str
    """The name by which the model or its builder can be imported, or a description."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the builder, as plain values: a tuple becomes a list, as in the files of a run."""
    data: str = "data"
    """The name of the data, or their path."""
    estimator: str = "concrete"
    samples: int = 1
    """The number m of samples."""
    objective: str | None = None
    inputs: str | None = None
    """The function from a batch to the inputs, if `fit` was given one."""
    temperature: str | None = None
    """The temperature, by node or as a schedule, if it was given."""
    prior_temperature: str | None = None
    """The temperature at which p scores the latents, if it was given on the command line."""
    beta: str | None = None
    """The weight of the KL, or its schedule."""
    steps: int = 20_000
    batch: int = 64
    accumulate: int = 1
    optimizer: str = "adam"
    lr: float | None = 1e-3
    lr_schedule: str = "constant"
    clip: float | None = None
    ema: float | None = None
    precision: str = "float32"
    seed: int = 0
    validate: int = 0
    validation_samples: int = 10
    patience: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", {name: _as_read(value) for name, value in self.arguments.items()})
        for name in (*WHOLE, *REAL):
            object.__setattr__(self, name, _as_read(getattr(self, name)))

    @property
    def title(self) -> str:
        """A name for the run: the model, its arguments, the data and the seed."""
        module, _, function = self.model.rpartition(":")
        place = Path(module).stem if module.endswith(".py") else module.rpartition(".")[2]
        given = "".join(f"-{name}{value}" for name, value in self.arguments.items())
        title = f"{place}.{function}{given}-{Path(self.data).stem}-seed{self.seed}" if module else f"seed{self.seed}"
        return re.sub(r"[^\w.,=+~-]", "_", title)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are not None, as plain values by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in values.items() if value is not None}
        return given | {"arguments": dict(self.arguments)}

    def toml(self) -> str:
        """Return the recipe as the text of a TOML file."""
        plain = {name: value for name, value in self.settings.items() if name != "arguments"}
        lines = [f"{name} = {_toml(value)}\n" for name, value in plain.items()]
        if self.arguments:
            lines += [
                "\n[arguments]\n",
                *(f"{_key(name)} = {_toml(value)}\n" for name, value in self.arguments.items()),
            ]
        return "".join(lines)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "OwnRecipe":
        """Return the recipe of settings from a file."""
        known = {field.name for field in fields(cls)}
        given = {name: value for name, value in settings.items() if name in known}
        for name, value in given.items():
            kind = int if name in WHOLE else (int, float) if name in REAL else Mapping if name == "arguments" else str
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ValueError(f"{name} must be as training writes it, got {shortened(value)}")
        recipe = cls(**{"lr": None, **given})  # settings that are None are not written
        require_possible(recipe)
        return recipe


def argument_key(name: str) -> str:
    """Return the name of an argument of a builder among settings: one of its own if a setting has the same.

    >>> argument_key("width"), argument_key("samples")
    ('width', 'set.samples')
    """
    return f"set.{name}" if name in SETTINGS else name


SETTINGS = frozenset(field.name for field in fields(OwnRecipe))
"""The names of all settings of a run of one's own."""


def require_possible(recipe: OwnRecipe, *, validate: str = "validate", is_saved: bool = False) -> None:
    """Raise an error in one sentence if a setting is not possible. `validate` is the name of that setting.

    If the run is saved, the arguments of the builder must be plain values, which files hold.
    """
    for name in ("samples", "steps", "batch", "accumulate", "validation_samples"):
        _require(_is_whole(getattr(recipe, name), 1), name, "be a whole number of at least 1", getattr(recipe, name))
    for name in ("validate", "patience", "seed"):
        value = getattr(recipe, name)
        title = validate if name == "validate" else name
        _require(_is_whole(value, 0), title, "be a whole number, not negative", value)
    for name in ("lr", "clip"):
        value = getattr(recipe, name)
        _require(value is None or (_is_real(value) and 0 < value < math.inf), name, "be positive", value)
    must = "be numbers, strings, None, or lists or dictionaries of them in a run that is saved"
    for name, value in recipe.arguments.items() if is_saved else ():
        if not _is_plain(value):
            raise ValueError(f"arguments must {must}, got {name}={shortened(value)}: pass a name, or train without out")
    ema, must = recipe.ema, "be at least 0 and below 1, such as 0.999"
    _require(ema is None or (_is_real(ema) and 0 <= ema < 1), "ema", must, ema)


def require_options(optimizer: Any, schedule: Any, lr: Any, beta: Any, inputs: Any, checkpoint_seconds: Any) -> None:
    """Raise an error in one sentence if an argument of `fit` is not possible that a recipe does not have as a value."""
    for name, value, names in (("optimizer", optimizer, OPTIMIZERS), ("schedule", schedule, LR_SCHEDULES)):
        if isinstance(value, str) and value not in names:
            raise ValueError(f"unknown {name} {value!r}{did_you_mean(value, names)}")
    _require(optimizer is not None, "optimizer", "be a name, a class of torch.optim or a function", optimizer)
    called = schedule.func if isinstance(schedule, partial) else schedule
    is_function = callable(called) and not isinstance(called, type)  # such as those of torch.optim.lr_scheduler
    must = "be a name or a function of the step that returns a factor of the learning rate"
    _require(isinstance(schedule, str) or is_function, "schedule", must, schedule)
    rates = lr if isinstance(lr, Sequence) and not isinstance(lr, str) else [lr]
    _require(all(rate is None or _is_number(rate) for rate in rates), "lr", "be a number, or a list of numbers", lr)
    must = "be a number, or a schedule such as Warmup(1000)"
    _require(beta is None or _is_real(beta) or (callable(beta) and not isinstance(beta, type)), "beta", must, beta)
    if _is_real(beta):
        require_weight(beta)
    _require(inputs is None or callable(inputs), "inputs", "be a function from a batch to the inputs", inputs)
    holds = _is_real(checkpoint_seconds) and checkpoint_seconds >= 0
    _require(holds, "checkpoint_seconds", "be a number that is not negative", checkpoint_seconds)


def seeds_of(seed: Any) -> list[Any]:
    """Return one or several seeds as a list. Whole numbers may be those of numpy."""
    given = [seed] if isinstance(seed, Integral) else seed
    _require(isinstance(given, Iterable) and not isinstance(given, str), "seed", "be a whole number, or several", seed)
    return [int(one) if isinstance(one, Integral) and not isinstance(one, bool) else one for one in given]


def flat(recipe: RunRecipe) -> dict[str, Any]:
    """Return the settings of a recipe, with the arguments of a builder among them."""
    given = recipe.arguments if isinstance(recipe, OwnRecipe) else {}
    return {**{argument_key(name): value for name, value in given.items()}, **recipe.settings}


def changed_settings(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings that differ. A NaN is the same as another."""
    pairs = {name: (now.get(name), before.get(name)) for name in {**now, **before}}
    return [name for name, (one, other) in pairs.items() if one != other and repr(one) != repr(other)]


def run_names(recipes: Sequence[RunRecipe], keys: Sequence[str]) -> list[str]:
    """Return the names of several runs, from some keys. Numbers are rounded if the names differ then.

    >>> run_names([OwnRecipe(model="", lr=lr) for lr in (0.1, 1 / 3)], ["lr", "beta"])
    ['lr=0.1', 'lr=0.333333']
    """
    given = [flat(recipe) for recipe in recipes]
    keys = [key for key in keys if any(key in own for own in given)]
    for write in (format_setting, str):
        texts = [",".join(f"{key}={write(own.get(key))}" for key in keys) for own in given]
        names = [text.replace(":", "x").replace("/", "_") for text in texts]
        if len(set(names)) == len(names):
            return names
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(f"seeds and settings must differ between runs, got {twice!r} twice: leave one of them out")


def require_schedules(schedules: Mapping[str, Any], steps: int) -> None:
    """Raise an error in one sentence if a schedule has no possible value at the first or the last of some steps."""
    for name, schedule in schedules.items():
        is_temperature, is_weight = name.startswith("temperature"), name == "beta"
        must = "be positive" if is_temperature else WEIGHT if is_weight else "be a finite number"
        for step in (0, steps - 1) if callable(schedule) else ():
            value = schedule(step)
            holds = _is_number(value) and math.isfinite(value)
            holds = holds and (value > 0 if is_temperature else value >= 0 or not is_weight)
            _require(holds, f"{name} at step {step:,}", must, value)


def _is_number(value: Any) -> bool:
    """Return whether a value is one number, which may be that of numpy or torch."""
    return isinstance(value, SupportsFloat) and getattr(value, "shape", ()) == ()


def require_weight(beta: float) -> None:
    """Raise an error in one sentence unless a number can be the weight of the KL."""
    _require(0 <= beta < math.inf, "beta", WEIGHT, beta)


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_plain(value: Any) -> bool:
    """Return whether a value is the same when it is read from a file."""
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_plain(entry) for name, entry in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 2**63)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


def _require(holds: bool, name: str, must: str, got: Any) -> None:
    if not holds:
        raise ValueError(f"{name} must {must}, got {got!r}")


def describe(value: Any) -> str:
    """Return a text for an object that is the same in every process.

    >>> describe(0.5), describe({"h": 0.5}), describe(print)
    ('0.5', "{'h': 0.5}", 'builtins:print')
    """
    if isinstance(value, str | int | float | None):
        return str(value)
    if isinstance(value, Mapping):
        return repr({name: _plain(entry) for name, entry in value.items()})
    name = getattr(value, "__qualname__", None)
    if name is not None:
        return f"{value.__module__}:{name}"
    return UNNAMED.sub("…", repr(value))


def read_argument(text: str) -> Any:
    """Read the value of an argument of a builder from a flag: a number, true or false, or a text.

    >>> [read_argument(text) for text in ("200", "1e-3", "1/2", "true", "relu")]
    [200, 0.001, 0.5, True, 'relu']
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    value = number(text)
    return text if value != value else value


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else describe(value)


def _as_read(value: Any) -> Any:
    """Return a value as it is read from the files of a run.

    >>> _as_read({"widths": (8, 16), "norm": NONE})
    {'widths': [8, 16], 'norm': None}
    """
    if isinstance(value, Mapping):
        return None if value == NONE else {name: _as_read(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_as_read(entry) for entry in value]
    if isinstance(value, Real) and not isinstance(value, bool):  # which may be of numpy
        return int(value) if isinstance(value, Integral) else float(value)
    return value


def _toml(value: Any) -> str:
    """Return a plain value as TOML. Values that TOML lacks become text."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if value is None or isinstance(value, Mapping):
        entries = NONE if value is None else value
        return f"{{{', '.join(f'{_key(name)} = {_toml(entry)}' for name, entry in entries.items())}}}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if not isinstance(value, str | int | float | bool):
        value = str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
