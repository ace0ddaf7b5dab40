"""Beartype for the import hook of jaxtyping, which decorates methods apart from their class."""

from collections.abc import Callable
from typing import Any, Self

from beartype import BeartypeConf, beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the arguments and the result of a function, save for a result of type `Self`, which needs the class."""
    hints = getattr(function, "__annotations__", {})
    if hints.get("return") is Self:
        del hints["return"]
    return beartype(conf=BeartypeConf(is_pep484_tower=True))(function)
