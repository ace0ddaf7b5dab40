"""Record the commit, the package versions and the device of a run, but no user or host name."""

import os
import platform
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

PRECISIONS = {"float32": "highest", "tf32": "high", "bfloat16": "medium"}
"""The precisions of matrix products, and torch's names for them."""

PACKAGES = ("concretely", "torch", "numpy")
"""Packages whose versions can change the numbers of a run."""

COMMIT = "CONCRETELY_COMMIT"
"""Environment variable that sets the commit if there is no git history; a trailing + marks uncommitted changes."""


def describe_environment(on: str = "cpu", *, packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Return the commit, the package versions and the device, for a record."""
    return {"commit": commit(), "versions": versions(packages), "device": device(on)}


def require_environment(record: Mapping[str, Any], place: str) -> None:
    """Raise an error unless commit, versions and device have their form, as they may have been read from a file."""
    commit = record["commit"]
    if commit is not None and not (
        isinstance(commit, dict) and isinstance(commit.get("hash"), str) and isinstance(commit.get("dirty"), bool)
    ):
        raise ValueError(f"commit of {place} must be a hash and whether there were changes, got {shortened(commit)}")
    for key, must, kinds in (("versions", "text", str), ("device", "text and integers", str | int | None)):
        if not isinstance(record[key], dict) or not all(isinstance(entry, kinds) for entry in record[key].values()):
            raise ValueError(f"{key} of {place} must hold {must}, got {shortened(record[key])}")


def commit() -> dict[str, Any] | None:
    """Return the commit of this package and whether its tree has changes, or None if it is unknown."""
    named = os.environ.get(COMMIT)
    if named:
        return {"hash": named.removesuffix("+"), "dirty": named.endswith("+")}
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")  # fails if installed inside some other repository
        return {"hash": _git("rev-parse", "HEAD"), "dirty": bool(_git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of the installed packages among `packages`."""
    installed = {"python": platform.python_version()}
    for package in packages:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


def device(on: str = "cpu") -> dict[str, Any]:
    """Return the CPU model and core count and, for a device such as cuda:0, the GPU model."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    description = {"cpu": model[1] if model else platform.processor() or platform.machine(), "cores": os.cpu_count()}
    if on.startswith("cuda"):
        import torch  # not at the top, so that records can be read without torch

        description["gpu"] = torch.cuda.get_device_name(on)
        description["matmul_precision"] = torch.get_float32_matmul_precision()
    return description


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an optional group into the environment of this process.

    It names the packages and not this one, whose source may be a release, a repository or a folder.
    """
    try:
        wanted = [line for line in requires("concretely") or () if re.search(rf"""extra == ['"]{extra}['"]""", line)]
        packages = [line.partition(";")[0].strip() for line in wanted]
    except PackageNotFoundError:  # imported from a source tree
        project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8"))
        packages = project["project"]["optional-dependencies"][extra]
    return pip_install(*(packages or [extra]))  # the metadata of an older installation do not know a new group


def pip_install(*packages: str) -> str:
    """Return the command that installs packages into the environment of this process."""
    python = sys.executable
    pip = [python, "-m", "pip", "install"] if _has_pip() else ["uv", "pip", "install", "--python", python]
    return shlex.join([*pip, *packages])


def _has_pip() -> bool:
    """Return whether pip is installed. Looking for its module would run a hook of setuptools, which may warn."""
    try:
        return bool(version("pip"))
    except PackageNotFoundError:
        return False


def _git(*arguments: str) -> str:
    command, package = ("git", *arguments), Path(__file__).parent
    return subprocess.run(command, cwd=package, check=True, capture_output=True, text=True).stdout.strip()
