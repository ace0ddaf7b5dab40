"""Optional dependencies."""

from importlib import import_module
from typing import Any


def need(module: str, package: str, *, what: str) -> Any:
    """Import a module; if it is missing, raise an error that names the package to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {package}, which is not installed: pip install {package}") from error
