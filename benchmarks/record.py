"""What a run leaves behind: the circumstances of its numbers, and nothing that tells whose machine it was."""

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .timing import Spread, Timing

PACKAGES = (
    "concretely",
    "torch",
    "numpy",
    "jax",
    "jaxlib",
    "numpyro",
    "tfp-nightly",
    "tensorflow-probability",
    "pyro-ppl",
)


def write(path: Path, recipe: Mapping[str, Any], *, seed: int, results: Any) -> None:
    """Write the record of a run, with the circumstances of its numbers."""
    record = {
        "recipe": recipe,
        "commit": commit(),
        "versions": versions(),
        "device": device(),
        "seed": seed,
        "results": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def described(task: Any, timings: Sequence[Timing[Any]]) -> dict[str, Any]:
    """The timings of a task; ratios are against each contender of this library."""
    ours = [timing for timing in timings if timing.contender.ours]
    return {
        **task.described,
        "contenders": [
            {
                **timing.contender.described,
                "first_call_ms": _rounded(timing.first * 1e3),
                "ms": _described(Spread.of(timing.rounds * 1e3)),
                "ratio": {other.contender.name: _described(timing.over(other)) for other in ours},
            }
            for timing in timings
        ],
    }


def commit() -> dict[str, Any] | None:
    """The commit of the code and whether the tree had changes, or None outside a repository."""
    try:
        return {"hash": _git("rev-parse", "HEAD"), "dirty": bool(_git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def device() -> dict[str, Any]:
    """The model of the processor and the number of its cores."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return {"cpu": model[1] if model else platform.processor() or platform.machine(), "cores": os.cpu_count()}


def _git(*arguments: str) -> str:
    command = ("git", *arguments)
    done = subprocess.run(command, cwd=Path(__file__).parent, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _described(spread: Spread) -> dict[str, Any]:
    return {"median": _rounded(spread.median), "quartiles": [_rounded(spread.lower), _rounded(spread.upper)]}


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")
