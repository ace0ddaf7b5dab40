"""Packages that only some data ask for."""

from importlib import import_module
from typing import Any


def need(module: str, package: str, *, what: str) -> Any:
    """Import a module, or say which package to install for what."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {package}, which is not installed: pip install {package}") from error
