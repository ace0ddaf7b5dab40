"""Recipes of a user's own models from flags and files, and the objects that their text denotes."""

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..file import exclusive_dir
from ..schedule import Annealing, Schedule, Warmup, read_start_end_steps
from ..spelling import did_you_mean, number
from .origin import FILE as ORIGIN
from .own_recipe import REAL, WHOLE, OwnRecipe, RunRecipe, read_argument, require_possible, require_weight
from .recipe import ESTIMATORS, FILE, KEYS, LR_SCHEDULES, OPTIMIZERS, resolve
from .section import WHEN

BUILDER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*|.+\.py:[A-Za-z_][\w.]*")
"""The name of a builder: `package.module:build` or `path/to/file.py:build`."""
CHOICES = {
    "optimizer": OPTIMIZERS,
    "lr_schedule": LR_SCHEDULES,
    "estimator": tuple(ESTIMATORS),
    "precision": ("float32", "tf32", "bfloat16"),
}
SCHEDULES = {"Annealing": Annealing, "Warmup": Warmup}
"""The schedules by name."""
UNREADABLE = (SyntaxError, AssertionError, KeyError, ValueError, TypeError, RecursionError, MemoryError)
"""The errors of a text that is not as Python writes an object."""
PICTURES = ("curve.png", "samples.png", "reconstructions.png", "completions.png")
"""The pictures of a run."""
RUN_FILES = (FILE, ORIGIN, "curve.csv", "model.safetensors", "record.json", "report.html", "diverged.txt", *PICTURES)
"""The files of a run besides its checkpoints."""
DIFFERENT_OWN = ("data", "lr", "temperature", "prior_temperature", "beta", "clip", "ema", "seed")
"""The keys of an own recipe that may have several values, besides the arguments of the builder."""


def is_builder_name(text: str) -> bool:
    """Return whether a text names a builder; otherwise it is a model in the paper's notation.

    >>> is_builder_name("package.module:build"), is_builder_name("my.py:build"), is_builder_name("20H:8~784V")
    (True, True, False)
    """
    return BUILDER.fullmatch(text) is not None


def resolve_recipe(**given: Any) -> RunRecipe:
    """Build a recipe from settings: that of a user's own model if there is a `model`, else that of a notation."""
    return resolve_own(**given) if given.get("model") is not None else resolve(**given)


def resolve_own(**given: Any) -> OwnRecipe:
    """Build the recipe of a user's own model from settings, which may be text as in flags.

    >>> recipe = resolve_own(model="package.module:build", estimator="rloo", lr="1e-3", arguments={"width": "20"})
    >>> recipe.samples, recipe.lr, recipe.arguments
    (5, 0.001, {'width': 20})
    """
    wished = {name: value for name, value in given.items() if value is not None}
    require_own_keys(wished)
    for name, names in CHOICES.items():
        if name in wished and wished[name] not in names:
            raise ValueError(f"unknown {name} {wished[name]!r}{did_you_mean(str(wished[name]), names)}")
    for name in WHOLE:
        if name in wished:
            wished[name] = _whole(name, wished[name])
    for name in REAL:
        if name in wished:
            wished[name] = _real(name, wished[name])
    for name in ("temperature", "prior_temperature", "beta"):
        if name in wished:
            wished[name] = str(wished[name])
            read_schedule(name, wished[name])
    arguments = wished.get("arguments", {})
    wished["arguments"] = {
        name: read_argument(value) if isinstance(value, str) else value for name, value in arguments.items()
    }
    estimator, steps = wished.get("estimator", OwnRecipe.estimator), wished.get("steps", OwnRecipe.steps)
    wished.setdefault("samples", 5 if ESTIMATORS[estimator].samples > 1 else 1)
    if wished.get("patience"):
        wished.setdefault("validate", max(1, steps // 50))
    recipe = OwnRecipe(**{"data": "digits", **wished})
    require_possible(recipe)
    least = ESTIMATORS[recipe.estimator].samples
    if recipe.samples < least:
        raise ValueError(f"samples must be at least {least} for estimator {recipe.estimator!r}, got {recipe.samples}")
    for name in ("temperature", "prior_temperature"):
        if getattr(recipe, name) is not None and not getattr(ESTIMATORS[recipe.estimator], f"has_{name}"):
            got = getattr(recipe, name)
            raise ValueError(f"{name} must be left out, as estimator {recipe.estimator!r} has none, got {got!r}")
    if recipe.patience and not recipe.validate:
        raise ValueError(f"patience must be 0 unless validate is given, got {recipe.patience}")
    return recipe


def require_own_keys(given: Mapping[str, Any]) -> None:
    """Raise an error in one sentence about settings that a model of one's own does not have."""
    known = [field.name for field in fields(OwnRecipe)]
    must = "must be left out for a model of one's own"
    for name in given:
        if name == WHEN:
            raise ValueError(f"sections {must}, as they are for a notation, got [{WHEN}.…]")
        if name in KEYS and name not in known:
            raise ValueError(f"{name} {must}, as it is for a notation")
        if name not in known:
            raise ValueError(f"unknown key {name!r}{did_you_mean(name, known)}")
        if name == "arguments" and not isinstance(given[name], Mapping):
            raise ValueError(f"arguments must be a table of arguments by name, got {given[name]!r}")


def own_program_key(recipe: OwnRecipe) -> str:
    """Return a key that is equal for recipes whose runs can be trained together."""
    settings = recipe.settings
    return repr({name: value for name, value in settings.items() if name not in ("seed", "lr", "data")})


def read_schedule(name: str, text: str) -> Schedule:
    """Read a number, or a schedule such as 1:1/2:10000: start, end and steps. A temperature anneals exponentially.

    The schedules of this library may also be as Python writes them.

    >>> read_schedule("beta", "0:1:1000"), read_schedule("temperature", "2/3")
    (Warmup(steps=1000, start=0.0, end=1.0), 0.6666666666666666)
    >>> read_schedule("temperature", "Annealing(start=1.0, end=0.5, steps=100)")
    Annealing(start=1.0, end=0.5, steps=100)
    """
    if text.startswith(tuple(f"{kind}(" for kind in SCHEDULES)):
        schedule: Schedule = made_from_text(text, SCHEDULES)
        return schedule
    value = number(text)
    if value != value:
        return read_start_end_steps(name, text)
    if name == "beta":
        require_weight(value)
    return value


def read_temperature(text: str) -> Schedule | dict[str, Schedule]:
    """Read a temperature from a flag, or from the recipe of a run of `fit`, which may have temperatures by node.

    >>> read_temperature("{'h': 0.5}"), read_temperature("1/2")
    ({'h': 0.5}, 0.5)
    """
    if not text.startswith("{"):
        return read_schedule("temperature", text)
    try:
        by_node = dict(ast.literal_eval(text))
    except UNREADABLE:
        raise ValueError(f"temperature must be a number, a schedule, or either by node, got {text!r}") from None
    return {str(node): read_schedule("temperature", str(value)) for node, value in by_node.items()}


def made_from_text(text: str, classes: Mapping[str, Callable[..., Any]]) -> Any:
    """Return an object that Python writes as a text, such as `Annealing(start=1.0, end=0.5, steps=100)`."""
    try:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        make = classes[call.func.id]
        return make(**{str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords})
    except UNREADABLE:
        raise ValueError(not_made(text)) from None


def not_made(text: str) -> str:
    """Return an error about an object of a run of `fit`."""
    return f"this run had an object that cannot be made from its text {text!r}"


def _whole(name: str, value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*\+?\d+\s*", value):
        return int(value)
    read = number(value) if isinstance(value, str) else value
    if isinstance(read, bool) or not isinstance(read, int | float) or read != read or read != read // 1:
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return int(read)


def _real(name: str, value: Any) -> float:
    read = number(value) if isinstance(value, str) else value
    if isinstance(read, bool) or not isinstance(read, int | float) or read != read:
        raise ValueError(f"{name} must be a number, got {value!r}")
    return float(read)


def remove_runs(folder: Path, members: Iterable[Path] = ()) -> None:
    """Delete the run in a folder and those of members inside it, unless a process trains one.

    Other files, and other runs inside it, stay.
    """
    given = dict.fromkeys((folder, *(path for path in members if not path.is_symlink())))
    runs = [own for own in given if (own / FILE).exists()]
    with ExitStack() as stack:
        for own in runs:
            stack.enter_context(exclusive_dir(own))
        for own in runs:
            for path in own.glob("checkpoint-*"):
                path.unlink()
            for name in RUN_FILES:
                (own / name).unlink(missing_ok=True)
