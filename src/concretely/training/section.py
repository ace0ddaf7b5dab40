"""Sections of a recipe's file: what is so for some models alone, such as `[when.linear]` or `[when.nvil.m5]`."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ..spelling import nearest

WHEN = "when"
"""Under what a file has its sections."""
DECIDING = ("notation", "arity", "estimator", "samples", WHEN)
"""What decides which sections hold, and so is in none of them."""


def sections(given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All the sections of a file, and those within them.

    >>> list(sections({"lr": 1.0, "when": {"nvil": {"lr": 2.0, "m5": {"lr": 3.0}}}}))
    [{'lr': 2.0, 'm5': {'lr': 3.0}}, {'lr': 3.0}]
    """
    for section in given.get(WHEN, {}).values():
        yield section
        yield from sections({WHEN: {name: value for name, value in section.items() if isinstance(value, dict)}})


def said(within: Mapping[str, Any], kinds: Collection[str]) -> dict[str, Any]:
    """What sections say of something that is of all these kinds, later ones and those within others overruling.

    >>> said({"linear": {"lr": 1.0, "batch": 8, "m5": {"lr": 2.0}}, "nvil": {"lr": 3.0}}, ("linear", "m5"))
    {'lr': 2.0, 'batch': 8}
    """
    found: dict[str, Any] = {}
    for section in (within[kind] for kind in kinds if kind in within):
        found |= {name: value for name, value in section.items() if not isinstance(value, dict)}
        found |= said(section, kinds)
    return found


def without(within: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """What sections say of anything but these."""
    kept = {name: value for name, value in within.items() if name not in names}
    return {name: without(value, names) if isinstance(value, dict) else value for name, value in kept.items()}


def require(
    within: Any, kinds: Collection[str], check: Callable[[str, Any], object], *, place: str = WHEN
) -> dict[str, Any]:
    """Sections of these kinds or of numbers of samples, if they say nothing that fails a check."""
    if not isinstance(within, dict) or (place == WHEN and not all(isinstance(each, dict) for each in within.values())):
        raise ValueError(f"{WHEN} must be sections such as [{WHEN}.linear], got {within!r}")
    for name, value in within.items():
        if isinstance(value, dict):
            if name not in kinds and not re.fullmatch("m[1-9][0-9]*", name):
                raise ValueError(f"unknown section {f'{place}.{name}'!r}{nearest(name, [*kinds, 'm5'])}")
            require(value, kinds, check, place=f"{place}.{name}")
        elif name in DECIDING:
            raise ValueError(f"{name} must not be in [{place}], got {value!r}")
        else:
            try:
                check(name, value)
            except ValueError as error:
                raise ValueError(f"in [{place}]: {error}") from None
    return within
