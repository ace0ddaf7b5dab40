"""The recipe of a run: everything that its result depends on, as one frozen value.

A recipe is read from flags and from a TOML file with the same names. What neither says is as in the paper
[maddison2017concrete, appendix D.5], whose temperatures depend on the arity and whose learning rates on the layers. So
may what a file says: under `[when.density]` or `[when.prediction]`, `[when.linear]` or `[when.nonlinear]`, the graph
that is trained, `[when.relaxed]` or `[when.discrete]`, the name of an estimator, such as `[when.nvil]`, and a number of
samples, such as `[when.m5]`, stands what is so for those, and each of them overrules what is before it here. What is so
only for both of two stands under both, `[when.nvil.linear]`, and overrules what is so for one.
"""

import json
import math
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..notation import Architecture, parse
from ..schedule import Annealing
from ..spelling import nearest, number
from . import section
from .section import WHEN

FILE = "recipe.toml"
"""The name under which a run keeps its recipe."""

PROTOCOLS = {path.stem: path for path in sorted((Path(__file__).parent / "protocol").glob("*.toml"))}
"""Recipes that come with the library, by their names; they say nothing of the model or the data."""

Temperature = float | Annealing


class Method(NamedTuple):
    """What a recipe must know of an estimator."""

    cools: bool = False
    """Whether it has a temperature."""
    relaxes: bool = False
    """Whether it runs the relaxed graph, whose bound is another than that of the discrete one."""
    samples: int = 1
    """How many samples it needs at least."""


ESTIMATORS = {
    "concrete": Method(cools=True, relaxes=True),
    "logistic-normal": Method(cools=True, relaxes=True),
    "gumbel-softmax": Method(cools=True, relaxes=True),
    "straight-through": Method(),
    "straight-through-gumbel-softmax": Method(cools=True),
    "reinforce": Method(),
    "rloo": Method(samples=2),
    "nvil": Method(),
    "vimco": Method(samples=2),
    "exact": Method(),
}
KINDS = (("density", "prediction"), ("linear", "nonlinear"), ("relaxed", "discrete"), tuple(ESTIMATORS))
"""For what a file may have a section, one of each being so; numbers of samples are others."""
OPTIMIZERS = ("adam", "muon")
LR_SCHEDULES = ("constant", "linear", "cosine")
BINARIZATIONS = ("bernoulli", "threshold")
TRAIN_ON = ("train", "whole")
LARGEST = sys.float_info.max

TEMPERATURES = {2: (2 / 3, 1 / 2), 4: (1.0, 2 / 3), 8: (2 / 3, 2 / 5)}
"""The paper's posterior and prior temperatures of each arity."""


@dataclass(frozen=True)
class Recipe:
    """How to train a model.

    >>> recipe = resolve(notation="200H~784V", data="mnist", estimator="vimco")
    >>> recipe.samples, recipe.lr, recipe.temperature
    (5, 0.0001, None)
    """

    notation: str
    """The model in the paper's notation."""
    data: str
    """The name of a data set, or the path of one."""
    binarize: str
    """How grey values of a file become bits: one draw of each, or whether it exceeds one half."""
    train_on: str
    """Whether points that are held out for validation are left out, or the whole is trained on as none are needed."""
    estimator: str
    samples: int
    """The number m of samples in the bound."""
    temperature: Temperature | None
    """That of what draws the latents, or how it falls."""
    prior_temperature: Temperature | None
    """That at which p scores them."""
    steps: int
    batch: int
    optimizer: str
    """Adam, or Muon for the weights of the model and Adam for all else."""
    lr: float
    lr_schedule: str
    """Whether the learning rate stays, or falls to zero along a line or half a wave of the cosine."""
    weight_decay: float
    """The factor of half the squared weights, which are added to the loss over the number of training points."""
    seed: int
    validate: int
    """How many steps lie between two looks at the validation set; with any, the best parameters are kept."""
    validation_samples: int
    patience: int
    """After how many looks without a better one training stops; 0 is never."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _require_possible(field.name, getattr(self, field.name))
        least = self.method.samples
        _require(
            self.samples >= least, "samples", f"be at least {least} for estimator {self.estimator!r}", self.samples
        )
        for name, there in (("temperature", self.method.cools), ("prior_temperature", self._has_prior_temperature)):
            _require_temperature(name, getattr(self, name), there=there, recipe=self)
        _require(
            self.validate == 0 or self.train_on == "train", "validate", "be 0 to train on the whole", self.validate
        )
        _require(self.validate > 0 or self.patience == 0, "patience", "be 0 unless validate is given", self.patience)

    @cached_property
    def architecture(self) -> Architecture:
        """The model that the notation stands for."""
        return parse(self.notation)

    @property
    def method(self) -> Method:
        """What must be known of the estimator."""
        return ESTIMATORS[self.estimator]

    @property
    def width(self) -> int:
        """The number of bits of a data point: those of the context, if there is one, and those that are modelled."""
        architecture = self.architecture
        return architecture.observed.units + (architecture.context.units if architecture.context else 0)

    @property
    def title(self) -> str:
        """A name for the run, made of what is most often changed."""
        data = Path(self.data).stem
        return f"{self.notation}-{data}-{self.estimator}-m{self.samples}-seed{self.seed}".replace(":", "x")

    @property
    def settings(self) -> dict[str, Any]:
        """The recipe as plain values under their names, without those that it has no use for."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _plain(value) for name, value in values.items() if value is not None}

    def toml(self) -> str:
        """The recipe as the text of a file that gives it again."""
        # the strings and numbers of JSON are those of TOML, save for one character that TOML would have escaped
        lines = (f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in self.settings.items())
        return "".join(lines).replace("\x7f", r"\u007f")

    @property
    def _has_prior_temperature(self) -> bool:
        return self.estimator in _PRIOR_COOLS and self.architecture.context is None


def read(path: Path) -> dict[str, Any]:
    """What a TOML file says, or one that comes with the library, to be resolved together with other wishes.

    >>> read(Path("paper"))
    {'steps': 10000000, 'batch': 64, 'lr_schedule': 'constant'}
    """
    try:
        given = tomllib.loads(PROTOCOLS.get(str(path), path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        known = " or ".join(PROTOCOLS)
        raise ValueError(f"recipe must be {known}, or a file that can be read, got {str(path)!r}: {why}") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"recipe must be a file of TOML, got {str(path)!r}: {error}") from None
    try:
        _require_known(given)
        _sections(given)
        for name, value in given.items():
            if name != WHEN and not _is_several(value):
                for each in value if isinstance(value, list) else [value]:
                    _require_value(name, each)
    except ValueError as error:
        raise ValueError(f"{error} in {str(path)!r}") from None
    return given


def overruled(given: Mapping[str, Any], wished: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says, and wishes that go before it wherever it says something else.

    >>> overruled({"lr": 1e-3, "when": {"linear": {"lr": 1e-2, "batch": 8}}}, {"lr": "0.1"})
    {'lr': '0.1', 'when': {'linear': {'batch': 8}}}
    """
    found = {**given, **wished}
    if WHEN in given:
        found[WHEN] = section.without(_sections(given), wished)
    return found


def said_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the sections of a file say of the model that is given with them.

    >>> said_of({"notation": "4H~6V", "when": {"linear": {"lr": 1e-2}, "nonlinear": {"batch": 8}}})
    {'batch': 8}
    """
    sections, deciding = _sections(given), ("notation", "estimator", "samples")
    wished = {name: _read(name, given[name]) for name in deciding if given.get(name) is not None}
    if "notation" not in wished:
        raise ValueError("notation must be given, such as 200H~784V, got none")
    return section.said(sections, _kinds(parse(wished["notation"]), wished))


def resolve(**given: Any) -> Recipe:
    """A recipe with all that is given, and the paper's values for the rest.

    Values may be text, as in flags: `lr="3e-4"`, `temperature="2/3"`, or `temperature="1:1/2:10000"` for one that falls
    from 1 to 1/2 within 10,000 steps. `arity` becomes part of the notation.

    >>> resolve(notation="240H~784V", data="mnist", arity=8).notation
    '240H:8~784V'
    >>> resolve(notation="200H~784V", stepps=10)
    Traceback (most recent call last):
    ValueError: unknown key 'stepps'; did you mean 'steps'?
    """
    _require_known(given)
    plain = {name: value for name, value in given.items() if value is not None and name != WHEN}
    wished = {name: _read(name, value) for name, value in (plain | said_of(given)).items()}
    architecture = parse(wished["notation"], arity=wished.pop("arity", None))
    wished["notation"] = str(architecture)
    return Recipe(**{**_defaults(architecture, wished), **wished})


def _kinds(architecture: Architecture, wished: Mapping[str, Any]) -> tuple[str, ...]:
    """What a model, its estimator and its samples are, for which a file may say something of its own."""
    task = "density" if architecture.context is None else "prediction"
    layers = "nonlinear" if architecture.nonlinear else "linear"
    estimator = wished.get("estimator", "concrete")
    graph = "relaxed" if ESTIMATORS.get(estimator, Method()).relaxes else "discrete"
    return task, layers, graph, estimator, f"m{wished.get('samples', _samples(estimator))}"


def _sections(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of some models, estimators and numbers of samples alone."""
    return section.require(given.get(WHEN, {}), KINDS, _require_value, keys=_keys())


def _is_several(value: Any) -> bool:
    """Whether a value may be text for several runs: with commas, or a range."""
    return isinstance(value, str) and ("," in value or ".." in value)


def _require_value(name: str, value: Any) -> None:
    """Refuse what no recipe could have."""
    _require_known({name: value})
    _require_possible(name, _read(name, value))


def _samples(estimator: str) -> int:
    """How many samples an estimator takes unless one says otherwise."""
    return 5 if ESTIMATORS.get(estimator, Method()).samples > 1 else 1


def _defaults(architecture: Architecture, wished: Mapping[str, Any]) -> dict[str, Any]:
    """The paper's values and, where it has none, what suits a first look."""
    arities = {layer.arity for layer in architecture.latent}
    # of other arities the paper says that 2/3 was best across those it tried
    temperature, prior = TEMPERATURES.get(max(arities), TEMPERATURES[2]) if len(arities) == 1 else TEMPERATURES[2]
    estimator = wished.get("estimator", "concrete")
    method = ESTIMATORS.get(estimator, Method())
    predicts = architecture.context is not None
    steps = wished.get("steps", 20_000)
    return {
        "data": "digits",
        "binarize": "bernoulli",
        "train_on": "train",
        "estimator": estimator,
        "samples": _samples(estimator),
        "temperature": temperature if method.cools else None,
        "prior_temperature": prior if estimator in _PRIOR_COOLS and not predicts else None,
        "steps": steps,
        "batch": 64,
        "optimizer": "adam",
        "lr": 1e-4 if architecture.nonlinear and not predicts else 3e-4,
        "lr_schedule": "constant",
        "weight_decay": 1e-3 if predicts else 0.0,
        "seed": 0,
        "validate": max(1, steps // 50) if wished.get("patience") else 0,
        "validation_samples": 10,
        "patience": 0,
    }


_PRIOR_COOLS = ("concrete", "logistic-normal")
"""The estimators that score latents under p at a temperature of its own."""
_CHOICES: dict[str, tuple[str, ...]] = {
    "estimator": tuple(ESTIMATORS),
    "optimizer": OPTIMIZERS,
    "lr_schedule": LR_SCHEDULES,
    "binarize": BINARIZATIONS,
    "train_on": TRAIN_ON,
}
_MOST = {
    **dict.fromkeys(("samples", "batch", "validation_samples"), 10**6),
    **dict.fromkeys(("steps", "validate", "patience"), 10**12),
}
"""Far beyond what can be done, and near enough to be refused before it is tried."""
_TEXTS = {"notation", "data", *_CHOICES}
_FRACTIONS = {"lr", "weight_decay"}
_TEMPERATURES = {"temperature", "prior_temperature"}


def _read(name: str, value: Any) -> Any:
    """A value of the type that its key has, from text or from a value of TOML or Python."""
    if name in _TEXTS:
        if not isinstance(value, str):
            raise ValueError(f"{name} must be text, got {value!r}")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError(f"{name} must be text that a file can hold, got {value!r}")
        return value
    if name in _TEMPERATURES and isinstance(value, Annealing):
        return value
    if name in _TEMPERATURES and isinstance(value, str) and ":" in value:
        return _annealing(name, value)
    found = number(value) if isinstance(value, str) else value
    if isinstance(found, bool) or not isinstance(found, int | float) or found != found:
        raise ValueError(f"{name} must be a number, got {value!r}")
    if name in _FRACTIONS | _TEMPERATURES:
        if not abs(found) <= LARGEST:
            raise ValueError(f"{name} must be finite, got {value!r}")
        return float(found)
    if found != found // 1:
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    # through the text where there is one, as large seeds are no floats
    return int(value) if isinstance(value, str) and value.strip().removeprefix("+").isdecimal() else int(found)


def _annealing(name: str, text: str) -> Annealing:
    parts = [number(part) for part in text.split(":")]
    if len(parts) != 3 or not all(0 < part < math.inf for part in parts) or parts[2] != parts[2] // 1:
        raise ValueError(f"{name} must be a number, or start:end:steps such as 1:1/2:10000, got {text!r}")
    return Annealing(parts[0], parts[1], int(parts[2]))


def _plain(value: Any) -> Any:
    """A value that JSON and TOML know."""
    return ":".join(f"{part!r}" for part in asdict(value).values()) if isinstance(value, Annealing) else value


def _require_known(given: Mapping[str, Any]) -> None:
    for name in given:
        if name not in _keys():
            raise ValueError(f"unknown key {name!r}{nearest(name, _keys())}")


def _keys() -> list[str]:
    """What a file or flags may say."""
    return [*(field.name for field in fields(Recipe)), "arity", WHEN]


def _require_possible(name: str, value: Any) -> None:
    """Refuse what no recipe can have, whatever else it says."""
    if name in ("samples", "steps", "batch", "validation_samples"):
        _require(value >= 1, name, "be at least 1", value)
    if name in ("weight_decay", "seed", "validate", "patience"):
        _require(0 <= value < math.inf, name, "not be negative", value)
    if name in _MOST:
        _require(value <= _MOST[name], name, f"be at most {_MOST[name]:,}", value)
    if name == "lr":
        _require(0 < value < math.inf, name, "be positive", value)
    if name == "seed":
        _require(value < 2**63, name, "be below 2^63", value)
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ValueError(f"unknown {name} {value!r}{nearest(value, _CHOICES[name])}")
    if name in _TEMPERATURES and isinstance(value, int | float):
        _require(0 < value < math.inf, name, "be positive", value)


def _require(holds: bool, name: str, must: str, found: Any) -> None:
    if not holds:
        raise ValueError(f"{name} must {must}, got {found!r}")


def _require_temperature(name: str, temperature: Temperature | None, *, there: bool, recipe: Recipe) -> None:
    """Refuse a temperature that is missing or would be ignored."""
    if temperature is None:
        _require(not there, name, f"be given for estimator {recipe.estimator!r}", None)
        return
    if not there:
        why = f"estimator {recipe.estimator!r} has none"
        if recipe.estimator in _PRIOR_COOLS:
            why = f"{recipe.notation} has no prior over its latents"
        raise ValueError(f"{name} must be left out, as {why}, got {_plain(temperature)!r}")
