"""What a run leaves behind: its recipe, its numbers and their circumstances, and nothing of whose machine it was."""

import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..file import draft

PACKAGES = ("concretely", "torch", "numpy")
"""Those whose versions may change the numbers of a run."""

PARTS = ("recipe", "commit", "versions", "device", "seed", "metrics", "seconds")
"""What the record of a run says."""


def record(
    recipe: Mapping[str, Any],
    metrics: Mapping[str, Mapping[str, Any]],
    *,
    seed: int,
    seconds: float,
    on: str = "cpu",
) -> dict[str, Any]:
    """The record of a run on a device of torch; a metric has a value, its standard error, and more if it likes.

    >>> nll = {"value": 21.3, "standard_error": 0.2}
    >>> tuple(record({"data": "digits"}, {"test_nll": nll}, seed=0, seconds=2.5)) == PARTS
    True
    """
    return {"recipe": recipe, **circumstances(on), "seed": seed, "metrics": metrics, "seconds": seconds}


def circumstances(on: str = "cpu", *, packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """The commit, the versions and the device behind numbers."""
    return {"commit": commit(), "versions": versions(packages), "device": device(on)}


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON, which has no word for what is not finite: that becomes null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_finite(record), indent=2, ensure_ascii=False)
    with draft(path) as place:
        place.write_text(f"{text}\n", encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """The record of a run, as it was written."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"a record must be JSON, got a damaged file {path}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"a record must be a JSON object, got {type(found).__name__} in {path}")
    if missing := [part for part in PARTS if part not in found]:
        raise ValueError(f"a record must have {', '.join(PARTS)}, got no {' and no '.join(missing)} in {path}")
    return found


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


def commit() -> dict[str, Any] | None:
    """The commit of this package and whether its tree had changes, or None if it is not in a repository of its own."""
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")  # else it is installed inside somebody else's repository
        return {"hash": _git("rev-parse", "HEAD"), "dirty": bool(_git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """The versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def device(on: str = "cpu") -> dict[str, Any]:
    """The model of the processor, the number of its cores and, on a device such as cuda:0, the model of that."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    found = {"cpu": model[1] if model else platform.processor() or platform.machine(), "cores": os.cpu_count()}
    if on.startswith("cuda"):
        import torch  # here, so that records are read without it

        found["gpu"] = torch.cuda.get_device_name(on)
    return found


def _git(*arguments: str) -> str:
    command, package = ("git", *arguments), Path(__file__).parent.parent
    return subprocess.run(command, cwd=package, check=True, capture_output=True, text=True).stdout.strip()


def _finite(value: Any) -> Any:
    """A value with None for every number in it that is not finite."""
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
