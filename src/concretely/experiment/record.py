"""The record of a run, `record.json`: its recipe, metrics and environment, and nothing that identifies a user.

A checksum detects records that were edited. Everything that reports show is checked when a record is read.
"""

import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from ..environment import require_environment
from ..file import json_digest, parse_json, read_bytes, write_text
from ..spelling import is_count, is_number
from ..training.own_recipe import RunRecipe

FILE = "record.json"
"""The file name of a record in the folder of its run."""

KEYS = ("recipe", "commit", "versions", "device", "seed", "metrics", "seconds")
"""The keys that every record has."""
NUMBERS = ("value", "standard_error", "effective_sample_size", "seconds")
"""The numbers of a metric, which may be null."""
COUNTS = ("samples", "points", "full_points")
"""The integers of a metric."""
SHOWN = ("data", "estimator")
"""The texts of a recipe that are shown, besides its notation or its model."""
CHECKSUM = "checksum"
"""The key of the digest of all other keys in the file of a record or of records."""
MOST = 2**26
"""The maximum number of bytes of a file of records."""


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON, with a checksum. Numbers that are not finite become null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.loads(json.dumps(finite_or_none(record)))  # as it will be read
    content[CHECKSUM] = json_digest(content)
    write_text(path, f"{json.dumps(content, indent=2, ensure_ascii=False)}\n")


def read_checked(path: Path, *, remedy: str, has_checksum: bool = True) -> Any:
    """Read a file of `write_record` without its checksum; raise an error with a remedy if it was changed since.

    Without `has_checksum`, a file that has none, as older versions wrote it, is read as it is.
    """
    try:
        content = parse_json(read_bytes(path, most=MOST))
    except (ValueError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"a record must be JSON, got a damaged file {str(path)!r} ({why}): {remedy}") from None
    if not isinstance(content, dict):
        raise ValueError(f"a record must be a JSON object, got {type(content).__name__} in {str(path)!r}: {remedy}")
    if has_checksum and CHECKSUM not in content:
        raise ValueError(f"a record must have a checksum, got none in {str(path)!r}: {remedy}")
    if CHECKSUM in content and content.pop(CHECKSUM) != json_digest(content):
        raise ValueError(f"a record must be as it was written, got changes since then in {str(path)!r}: {remedy}")
    return finite_or_none(content)


def read_record(path: Path) -> dict[str, Any]:
    """Read and check the record of a run."""
    remedy = "restore it"
    if any(path.parent.glob("checkpoint-*.json")):
        remedy = f"make it again with: concretely evaluate {shlex.quote(str(path.parent))}"
    record = read_checked(path, remedy=remedy)
    require_record(record, path)
    return dict(record)


def require_record(record: Any, path: Path) -> None:
    """Raise an error unless a value that was read from a file is the record of a run."""
    try:
        _require_record(record)
    except ValueError as error:
        raise ValueError(f"{error} in {str(path)!r}") from None


def _require_record(record: Any) -> None:
    if not isinstance(record, dict):
        raise ValueError(f"a record must be a JSON object, got {type(record).__name__}")
    if missing := [key for key in KEYS if key not in record]:
        raise ValueError(f"a record must have {', '.join(KEYS)}, got no {' and no '.join(missing)}")
    require_environment(record, "a record")
    recipe, metrics = record["recipe"], record["metrics"]
    _require(_is_recipe(recipe), "recipe", "have the texts notation or model, data, estimator, and samples", recipe)
    for key in ("seed", "step", "members"):
        _require(is_count(record.get(key, 0)), key, "be a whole number", record.get(key))
    _require(is_number(record["seconds"]), "seconds", "be a number", record["seconds"])
    _require(isinstance(metrics, dict), "metrics", "be a JSON object", metrics)
    for name, metric in (*metrics.items(), ("valid", record.get("valid", {}))):
        _require(_is_metric(metric), name, "be a metric", metric)


def _require(holds: bool, name: str, must: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{name} of a record must {must}, got {shortened(value)}")


def recipe_settings(recipe: RunRecipe) -> dict[str, Any]:
    """Return a recipe as a record stores it: the data by name, without their path."""
    return {**recipe.settings, "data": Path(recipe.data).name}


def model_title(settings: Mapping[str, Any]) -> str:
    """Return the name of a model from the settings of a record.

    >>> model_title({"notation": "2H-6V"}), model_title({"model": "package.module:build", "arguments": {"width": 9}})
    ('2H-6V', 'module.build(width=9)')
    """
    if "notation" in settings:
        return str(settings["notation"])
    module, _, function = str(settings.get("model", "")).rpartition(":")
    given = ", ".join(f"{name}={value}" for name, value in settings.get("arguments", {}).items())
    place = module.rpartition("/")[2].removesuffix(".py").rpartition(".")[2]
    return f"{place}.{function}({given})" if function else "a model"


def merge_metrics(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Merge metrics. Of two with the same name, keep the more precise one, or the new one if they are equally precise.

    Metrics of the model come first, then those of baselines.
    """
    better = {name: was for name, was in old.items() if name not in new or precision(was) > precision(new[name])}
    return dict(sorted({**new, **better}.items(), key=lambda item: (item[0].count("_"), item[0])))


def precision(metric: Mapping[str, Any]) -> tuple[int, int]:
    """Return a sort key for precision: the number of samples, then that of the data points scored with all of them."""
    return metric.get("samples", 0), metric.get("full_points", metric.get("points", 0))


def is_sufficient(metric: Mapping[str, Any], *, samples: int, full_points: int | None = None) -> bool:
    """Return whether a likelihood is at least as precise as requested. By default all data points need all samples.

    >>> some = {"samples": 1_000, "points": 250, "full_points": 50}
    >>> [is_sufficient(some, samples=1_000, full_points=number) for number in (50, 51, None)]
    [True, False, False]
    """
    points = metric.get("points", 0)
    return precision(metric) >= (samples, points if full_points is None else min(full_points, points))


def is_corrected(metric: Mapping[str, Any]) -> bool:
    """Return whether only some data points were scored with all samples, and the others were corrected."""
    points = metric.get("points", 0)
    return bool(metric.get("full_points", points) < points)


def validation_nll(record: Mapping[str, Any] | None) -> float:
    """Return the score of the validation set, by which runs are selected, or infinity if it is unknown."""
    metrics = {} if record is None else record["metrics"]
    value = metrics.get(score_key(metrics, "valid"), {}).get("value")
    return math.inf if value is None else value


def score_key(metrics: Mapping[str, Any], split: str) -> str:
    """Return the name of the score of a split: that of the NLL or, for a program, of the cost.

    >>> score_key({"test_cost": {}}, "test"), score_key({}, "valid")
    ('test_cost', 'valid_nll')
    """
    return f"{split}_cost" if f"{split}_cost" in metrics else f"{split}_nll"


def format_value(value: float | None, error: float | None) -> str:
    """Format a number with its standard error, to two digits of the error if it is known.

    >>> format_value(92.123, 0.278), format_value(92.123, None)
    ('92.12 ± 0.28', '92.12')
    """
    if value is None or not math.isfinite(value):
        return "unknown" if value is None or math.isnan(value) else "∞" if value > 0 else "−∞"
    if error is None or not math.isfinite(error) or error <= 0:
        return f"{value:,.4g}".replace("-", "−")
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:,.{digits}f} ± {error:,.{digits}f}".replace("-", "−")


def format_metric(metric: Mapping[str, Any]) -> str:
    """Format a metric of a record with its standard error."""
    return format_value(metric.get("value"), metric.get("standard_error"))


def finite_or_none(value: Any) -> Any:
    """Replace every number that is not finite by None, since JSON has no such numbers."""
    if isinstance(value, Mapping):
        return {key: finite_or_none(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_recipe(recipe: Any) -> bool:
    """Return whether a value has the keys of a recipe that are shown."""
    return (
        isinstance(recipe, dict)
        and all(isinstance(recipe.get(key), str) for key in SHOWN)
        and isinstance(recipe.get("notation", recipe.get("model")), str)
        and isinstance(recipe.get("arguments", {}), dict)
        and is_count(recipe.get("samples"))
    )


def _is_metric(metric: Any) -> bool:
    """Return whether a value has the keys of a metric. Numbers may be null, if they were not finite."""
    return (
        isinstance(metric, dict)
        and all(metric.get(name) is None or is_number(metric[name]) for name in NUMBERS)
        and all(is_count(metric.get(name, 0)) for name in COUNTS)
        and all(isinstance(metric.get(name, ""), str) for name in ("title", "meaning"))
    )
