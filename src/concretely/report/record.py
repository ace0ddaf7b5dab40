"""What a run leaves behind: its recipe, its numbers and their environment, and nothing of whose machine it was."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..file import atomic_write

FILE = "record.json"
"""The name under which a run keeps its record."""

PARTS = ("recipe", "commit", "versions", "device", "seed", "metrics", "seconds")
"""What the record of a run says."""
TABLES = ("recipe", "versions", "device", "metrics")
"""Those of them that have parts of their own."""
COUNTS = ("samples", "points", "thorough")
"""What of a metric is a number without a fraction."""


def record(
    recipe: Mapping[str, Any],
    metrics: Mapping[str, Mapping[str, Any]],
    *,
    seed: int,
    seconds: float,
    made: Mapping[str, Any],
) -> dict[str, Any]:
    """The record of a run that was made in some environment; a metric has a value, its standard error, and more.

    >>> from concretely.environment import describe_environment
    >>> nll, made = {"value": 21.3, "standard_error": 0.2}, describe_environment()
    >>> tuple(record({"data": "digits"}, {"test_nll": nll}, seed=0, seconds=2.5, made=made)) == PARTS
    True
    """
    return {"recipe": recipe, **made, "seed": seed, "metrics": metrics, "seconds": seconds}


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON, which has no word for what is not finite: that becomes null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(finite(record), indent=2, ensure_ascii=False)
    with atomic_write(path) as place:
        place.write_text(f"{text}\n", encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """The record of a run, as it was written."""
    try:
        found = finite(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a record must be JSON, got a damaged file {path}: {error}") from None
    require_whole(found, path)
    return dict(found)


def require_whole(found: Any, path: Path) -> None:
    """Refuse what cannot be the record of a run."""
    if not isinstance(found, dict):
        raise ValueError(f"a record must be a JSON object, got {type(found).__name__} in {path}")
    if missing := [part for part in PARTS if part not in found]:
        raise ValueError(f"a record must have {', '.join(PARTS)}, got no {' and no '.join(missing)} in {path}")
    for part in TABLES:
        if not isinstance(found[part], dict):
            raise ValueError(f"{part} of a record must be a JSON object, got {found[part]!r} in {path}")
    if not _is_number(found["seconds"]):
        raise ValueError(f"seconds of a record must be a number, got {found['seconds']!r} in {path}")
    for name, metric in found["metrics"].items():
        if not _is_metric(metric):
            raise ValueError(f"{name} of a record must be a metric, got {metric!r} in {path}")


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of before and new ones; of two of the same name the one that is known better, or else the new one."""
    return {**new, **{name: was for name, was in old.items() if name not in new or worth(was) > worth(new[name])}}


def worth(metric: Mapping[str, Any]) -> tuple[int, int]:
    """How well a likelihood is known: first by its samples, then by the data points that had all of them."""
    return metric.get("samples", 0), metric.get("thorough", metric.get("points", 0))


def suffices(metric: Mapping[str, Any], *, samples: int, thorough: int | None = None) -> bool:
    """Whether a likelihood is known at least as well as from so many samples, for so many data points or for all.

    >>> some = {"samples": 1_000, "points": 250, "thorough": 50}
    >>> [suffices(some, samples=1_000, thorough=number) for number in (50, 51, None)]
    [True, False, False]
    """
    points = metric.get("points", 0)
    return worth(metric) >= (samples, points if thorough is None else min(thorough, points))


def surveys(metric: Mapping[str, Any]) -> bool:
    """Whether a likelihood is one of which not all data points had all samples."""
    points = metric.get("points", 0)
    return bool(metric.get("thorough", points) < points)


def measured(value: float | None, error: float | None) -> str:
    """A number and its standard error to two digits of the latter; none is shown that is not known.

    >>> measured(92.123, 0.278), measured(92.123, None)
    ('92.12 ± 0.28', '92.12')
    """
    if value is None or not math.isfinite(value):
        return "not known" if value is None or math.isnan(value) else "∞" if value > 0 else "−∞"
    if error is None or not math.isfinite(error) or error <= 0:
        return f"{value:,.4g}".replace("-", "−")
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:,.{digits}f} ± {error:,.{digits}f}".replace("-", "−")


def _is_metric(metric: Any) -> bool:
    """Whether this is a number, or null where it is not finite, with the counts by which it is known."""
    return (
        isinstance(metric, dict)
        and all(metric.get(name) is None or _is_number(metric[name]) for name in ("value", "standard_error"))
        and all(isinstance(metric.get(name, 0), int) for name in COUNTS)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite(value: Any) -> Any:
    """A value with None for every number in it that is not finite, for which JSON has no word."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
