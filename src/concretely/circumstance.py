"""The circumstances that numbers depend on, and nothing of whose machine it was."""

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("concretely", "torch", "numpy")
"""Those whose versions may change the numbers of a run."""

COMMIT = "CONCRETELY_COMMIT"
"""The variable that names the commit of a tree that came without its history, a + behind it if there were changes."""


def circumstances(on: str = "cpu", *, packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """The commit, the versions and the device behind numbers."""
    return {"commit": commit(), "versions": versions(packages), "device": device(on)}


def commit() -> dict[str, Any] | None:
    """The commit of this package and whether its tree had changes, or None if neither git nor a variable knows it."""
    told = os.environ.get(COMMIT)
    if told:
        return {"hash": told.removesuffix("+"), "dirty": told.endswith("+")}
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
        found["float32_products"] = torch.get_float32_matmul_precision()
    return found


def _git(*arguments: str) -> str:
    command, package = ("git", *arguments), Path(__file__).parent
    return subprocess.run(command, cwd=package, check=True, capture_output=True, text=True).stdout.strip()
