"""The recipe of a run: everything that its result depends on, as one frozen value.

Precedence: defaults < file < `[when.*]` sections (more kinds win) < flags. Flags and TOML files use the same names. The
defaults are the paper's [maddison2017concrete, appendix D.5]: temperatures depend on the arity, learning rates on the
layers. A section of a file applies only to runs of its kind. Kinds are, in this order: the task, `[when.density]` or
`[when.prediction]`; the layers, `[when.linear]` or `[when.nonlinear]`; the graph that is trained, `[when.relaxed]` or
`[when.discrete]`; the estimator, such as `[when.nvil]`; the number of samples, such as `[when.m5]`.
`[when.nvil.linear]` applies to runs of both kinds. Of two sections with equally many kinds, the one whose kind comes
later in this order wins.
"""

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ..file import parse_toml, read_bytes
from ..notation import Architecture, parse
from ..schedule import Annealing, read_start_end_steps
from ..spelling import did_you_mean, number
from ..temperature import PAPER, PAPER_PRIOR
from . import section
from .section import WHEN

FILE = "recipe.toml"
"""The name of the recipe file in the folder of a run."""

PRESETS = {path.stem: path for path in sorted((Path(__file__).parent / "preset").glob("*.toml"))}
"""The recipe files that come with the library, by name. They set neither the model nor the data."""

Temperature = float | Annealing


class Method(NamedTuple):
    """The properties of an estimator that a recipe depends on."""

    has_temperature: bool = False
    """Whether it has a temperature."""
    has_prior_temperature: bool = False
    """Whether p scores the latents at a separate temperature."""
    relaxes: bool = False
    """Whether it trains the relaxed graph, whose bound differs from the bound of the discrete graph."""
    samples: int = 1
    """The smallest number of samples."""


ESTIMATORS = {
    "concrete": Method(has_temperature=True, has_prior_temperature=True, relaxes=True),
    "logistic-normal": Method(has_temperature=True, has_prior_temperature=True, relaxes=True),
    "gumbel-softmax": Method(has_temperature=True, relaxes=True),
    "straight-through": Method(),
    "straight-through-gumbel-softmax": Method(has_temperature=True),
    "reinforce": Method(),
    "rloo": Method(samples=2),
    "nvil": Method(),
    "vimco": Method(samples=2),
    "exact": Method(),
}
KINDS = (("density", "prediction"), ("linear", "nonlinear"), ("relaxed", "discrete"), tuple(ESTIMATORS))
"""The kinds that sections of a file may name, besides numbers of samples. A run has one kind of each group."""
OPTIMIZERS = ("adam", "muon")
LR_SCHEDULES = ("constant", "linear", "cosine")
BINARIZATIONS = ("bernoulli", "threshold")
LARGEST = sys.float_info.max
MOST = 2**20
"""The maximum number of bytes of a recipe file."""

OF_DATA = ("data", "binarize", "train_on")
"""The keys of a recipe that choose the data."""
DIFFERENT = (*OF_DATA, "lr", "weight_decay", "temperature", "prior_temperature", "seed")
"""The keys in which the recipes of runs that are trained together may differ."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train a model. The defaults of settings without one here depend on other settings (see `resolve`).

    >>> recipe = resolve(notation="200H~784V", data="mnist", estimator="vimco")
    >>> recipe.samples, recipe.lr, recipe.temperature
    (5, 0.0001, None)
    """

    flexible: ClassVar[frozenset[str]] = frozenset({"steps"})
    """The keys that may change when a run is resumed."""

    notation: str
    """The model in the paper's notation."""
    data: str = "digits"
    """The name of a data set, or the path of one."""
    binarize: str = "bernoulli"
    """How grey values of a file become bits: by one random draw of each ("bernoulli"), or by a threshold at 1/2."""
    train_on: str = "train"
    """Whether to train on the training points ("train"), or on these and the validation points ("whole")."""
    estimator: str = "concrete"
    samples: int
    """The number m of samples in the bound."""
    temperature: Temperature | None
    """The temperature at which latents are drawn, or its schedule."""
    prior_temperature: Temperature | None
    """The temperature at which p scores the latents, or its schedule."""
    steps: int = 20_000
    batch: int = 64
    optimizer: str = "adam"
    """Adam, or Muon for the weights of the model and Adam for all other parameters."""
    lr: float
    lr_schedule: str = "constant"
    """Whether the learning rate is constant, or falls to zero linearly or along a cosine."""
    weight_decay: float
    """The L2 penalty: this factor times half the squared weights, over the number of training points, is added to the
    loss."""
    seed: int = 0
    validate: int
    """The number of steps between two validations, or 0 for none. With validations, the best parameters are kept."""
    validation_samples: int = 10
    patience: int = 0
    """The number of validations without improvement after which training stops, or 0 to never stop early."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _require_possible(field.name, getattr(self, field.name))
        method, estimator, least = self.method, f"estimator {self.estimator!r}", self.method.samples
        _require(self.samples >= least, "samples", f"be at least {least} for {estimator}", self.samples)
        has_prior = method.has_prior_temperature and self.architecture.context is None
        for name, there in (("temperature", method.has_temperature), ("prior_temperature", has_prior)):
            value = _plain(getattr(self, name))
            if there:
                _require(value is not None, name, f"be given for {estimator}", value)
            else:
                lack = f"{self.notation} has no prior over its latents"
                why = lack if method.has_prior_temperature else f"{estimator} has none"
                _require(value is None, name, f"be left out, as {why}", value)
        whole = self.train_on == "whole"
        _require(self.validate == 0 or not whole, "validate", "be 0 to train on the whole", self.validate)
        _require(self.validate > 0 or self.patience == 0, "patience", "be 0 unless validate is given", self.patience)

    @classmethod
    def of(cls, **settings: Any) -> "Recipe":
        """Build a recipe from some settings. The others get the paper's values for that kind of model.

        >>> Recipe.of(notation="200H~784V", data="mnist", lr=1e-3).samples
        1
        """
        return resolve(**settings)

    @cached_property
    def architecture(self) -> Architecture:
        """The parsed notation."""
        return parse(self.notation)

    @property
    def method(self) -> Method:
        """The properties of the estimator."""
        return ESTIMATORS[self.estimator]

    @property
    def width(self) -> int:
        """The number of bits of a data point, including those of the context."""
        architecture = self.architecture
        return architecture.observed.units + (architecture.context.units if architecture.context else 0)

    @property
    def title(self) -> str:
        """A name for the run, from the settings that are changed most often."""
        data = Path(self.data).stem
        return f"{self.notation}-{data}-{self.estimator}-m{self.samples}-seed{self.seed}".replace(":", "x")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are not None, as plain values by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _plain(value) for name, value in values.items() if value is not None}

    def toml(self) -> str:
        """Return the recipe as the text of a TOML file."""
        # strings and numbers of JSON are valid TOML, except for one character that TOML wants escaped
        lines = (f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in self.settings.items())
        return "".join(lines).replace("\x7f", r"\u007f")


class Member(NamedTuple):
    """One of the runs that are trained together."""

    recipe: Any
    """A `Recipe`, or an `OwnRecipe`."""
    folder: Path


def program_key(recipe: Recipe) -> tuple[object, ...]:
    """Return a key that is equal for recipes whose runs can be trained together."""
    return tuple(getattr(recipe, field.name) for field in fields(recipe) if field.name not in DIFFERENT)


def data_key(recipe: Recipe) -> tuple[str | int, ...]:
    """Return a key that is equal for recipes with the same data."""
    return recipe.width, *(getattr(recipe, name) for name in OF_DATA)


def read(path: Path, require: Callable[[Mapping[str, Any]], None] | None = None) -> dict[str, Any]:
    """Read the settings of a TOML file, or of a recipe of the library by its name. `require` raises if they are wrong.

    >>> read(Path("paper"))
    {'steps': 10000000, 'batch': 64, 'lr_schedule': 'constant'}
    """
    try:
        given = parse_toml(read_bytes(PRESETS.get(str(path), path), most=MOST))
    except OSError as error:
        must = f"recipe must be {' or '.join(PRESETS)}, or a file that can be read"
        raise ValueError(f"{must}, got {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"recipe must be a file of TOML, got {str(path)!r}: {error}") from None
    try:
        if require is not None or "model" not in given:  # a model of one's own is checked where it is resolved
            (require or require_settings)(given)
    except ValueError as error:
        raise ValueError(f"in {str(path)!r}: {error}") from None
    return given


def require_settings(given: Mapping[str, Any]) -> None:
    """Raise if no recipe can have these settings."""
    _require_known(given)
    _sections(given)
    for name, value in given.items():
        is_list = isinstance(value, str) and ("," in value or ".." in value)  # read where it is split
        if name != WHEN and not is_list:
            for entry in value if isinstance(value, list) else [value]:
                _require_value(name, entry)


def overridden(given: Mapping[str, Any], wished: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file, overridden by others in the file and in its sections.

    >>> overridden({"lr": 1e-3, "when": {"linear": {"lr": 1e-2, "batch": 8}}}, {"lr": "0.1"})
    {'lr': '0.1', 'when': {'linear': {'batch': 8}}}
    """
    merged = {**given, **wished}
    if WHEN in given:
        merged[WHEN] = section.without(_sections(given), wished)
    return merged


def section_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in those sections of `given` that apply to its notation, estimator and samples.

    >>> section_settings({"notation": "4H~6V", "when": {"linear": {"lr": 1e-2}, "nonlinear": {"batch": 8}}})
    {'batch': 8}
    """
    sections, deciding = _sections(given), ("notation", "estimator", "samples")
    wished = {name: _read(name, given[name]) for name in deciding if given.get(name) is not None}
    if "notation" not in wished:
        raise ValueError("notation must be given, such as 200H~784V, got none")
    return section.settings_for(sections, _kinds(parse(wished["notation"]), wished))


def resolve(**given: Any) -> Recipe:
    """Build a recipe from settings, with the paper's values for all settings that are not given.

    Values may be text, as in flags: `lr="3e-4"`, `temperature="2/3"`, or `temperature="1:1/2:10000"` for a temperature
    that falls from 1 to 1/2 within 10,000 steps. `arity` becomes part of the notation.

    >>> resolve(notation="240H~784V", data="mnist", arity=8).notation
    '240H:8~784V'
    >>> resolve(notation="200H~784V", stepps=10)
    Traceback (most recent call last):
    ValueError: unknown key 'stepps'; did you mean 'steps'?
    """
    _require_known(given)
    plain = {name: value for name, value in given.items() if value is not None and name != WHEN}
    wished = {name: _read(name, value) for name, value in (plain | section_settings(given)).items()}
    architecture = parse(wished["notation"], arity=wished.pop("arity", None))
    wished["notation"] = str(architecture)
    return Recipe(**{**_defaults(architecture, wished), **wished})


def _kinds(architecture: Architecture, wished: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of a model, its estimator and its number of samples."""
    task = "density" if architecture.context is None else "prediction"
    layers = "nonlinear" if architecture.nonlinear else "linear"
    estimator = wished.get("estimator", Recipe.estimator)
    graph = "relaxed" if ESTIMATORS.get(estimator, Method()).relaxes else "discrete"
    return task, layers, graph, estimator, f"m{wished.get('samples', _samples(estimator))}"


def _sections(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a file; raise if they are invalid."""
    return section.require(given.get(WHEN, {}), KINDS, _require_value, keys=KEYS)


def _require_value(name: str, value: Any) -> None:
    """Raise if no recipe can have this setting."""
    _require_known({name: value})
    _require_possible(name, _read(name, value))


def _samples(estimator: str) -> int:
    """Return the default number of samples of an estimator."""
    return 5 if ESTIMATORS.get(estimator, Method()).samples > 1 else 1


def _defaults(architecture: Architecture, wished: Mapping[str, Any]) -> dict[str, Any]:
    """Return defaults of the settings that depend on others: the paper's values or, if it has none, reasonable ones."""
    arities = {layer.arity for layer in architecture.latent}
    arity = max(arities) if len(arities) == 1 else 2
    estimator = wished.get("estimator", Recipe.estimator)
    method = ESTIMATORS.get(estimator, Method())
    predicts = architecture.context is not None
    return {
        "samples": _samples(estimator),
        "temperature": PAPER(arity) if method.has_temperature else None,
        "prior_temperature": PAPER_PRIOR(arity) if method.has_prior_temperature and not predicts else None,
        "lr": 1e-4 if architecture.nonlinear and not predicts else 3e-4,
        "weight_decay": 1e-3 if predicts else 0.0,
        "validate": max(1, wished.get("steps", Recipe.steps) // 50) if wished.get("patience") else 0,
    }


KEYS = [*(field.name for field in fields(Recipe)), "arity", WHEN]
"""The keys of files and flags."""
OWN_KEYS = ("model", "arguments", "objective", "inputs", "beta", "accumulate", "clip", "ema", "precision")
"""The keys of files and flags that only models of one's own have."""
_CHOICES: dict[str, tuple[str, ...]] = {
    "estimator": tuple(ESTIMATORS),
    "optimizer": OPTIMIZERS,
    "lr_schedule": LR_SCHEDULES,
    "binarize": BINARIZATIONS,
    "train_on": ("train", "whole"),
}
_MOST = {
    **dict.fromkeys(("samples", "batch", "validation_samples"), 10**6),
    **dict.fromkeys(("steps", "validate", "patience"), 10**12),
}
"""Limits far beyond practical values, so that absurd values raise an error before any work."""
_TEXTS = {"notation", "data", *_CHOICES}
_FRACTIONS = {"lr", "weight_decay"}
_TEMPERATURES = {"temperature", "prior_temperature"}


def _read(name: str, value: Any) -> Any:
    """Convert a value, from text, TOML or Python, to the type of its key."""
    if name in _TEXTS:
        if name == "data" and isinstance(value, Path):
            return str(value)
        if not isinstance(value, str):
            raise ValueError(f"{name} must be text, got {value!r}")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError(f"{name} must be text that a file can hold, got {value!r}")
        return value
    if name in _TEMPERATURES and isinstance(value, Annealing):
        return value
    if name in _TEMPERATURES and isinstance(value, str) and ":" in value:
        return read_start_end_steps(name, value)
    read = number(value) if isinstance(value, str) else value
    if isinstance(read, bool) or not isinstance(read, int | float) or read != read:
        raise ValueError(f"{name} must be a number, got {value!r}")
    if name in _FRACTIONS | _TEMPERATURES:
        if not abs(read) <= LARGEST:
            raise ValueError(f"{name} must be finite, got {value!r}")
        return float(read)
    if read != read // 1:
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    # from the text where there is one: a large seed does not fit into a float
    return int(value) if isinstance(value, str) and value.strip().removeprefix("+").isdecimal() else int(read)


def _plain(value: Any) -> Any:
    """Convert a value to one that JSON and TOML can represent."""
    return ":".join(f"{part!r}" for part in asdict(value).values()) if isinstance(value, Annealing) else value


def _require_known(given: Mapping[str, Any]) -> None:
    for name in (name for name in given if name not in KEYS):
        if name in OWN_KEYS:
            raise ValueError(f"{name} must be left out for a notation, as it is for models of one's own")
        raise ValueError(f"unknown key {name!r}{did_you_mean(name, KEYS)}")


def _require_possible(name: str, value: Any) -> None:
    """Raise if no recipe can have this value, whatever its other settings are."""
    if name in ("samples", "steps", "batch", "validation_samples"):
        _require(value >= 1, name, "be at least 1", value)
    if name in ("weight_decay", "seed", "validate", "patience"):
        _require(0 <= value < math.inf, name, "not be negative", value)
    if name in _MOST:
        _require(value <= _MOST[name], name, f"be at most {_MOST[name]:,}", value)
    if name == "lr" or (name in _TEMPERATURES and isinstance(value, int | float)):
        _require(0 < value < math.inf, name, "be positive", value)
    if name == "seed":
        _require(value < 2**63, name, "be below 2^63", value)
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ValueError(f"unknown {name} {value!r}{did_you_mean(value, _CHOICES[name])}")


def _require(holds: bool, name: str, must: str, got: Any) -> None:
    if not holds:
        raise ValueError(f"{name} must {must}, got {got!r}")
