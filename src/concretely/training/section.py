"""Sections of a recipe file: settings for some kinds of runs only, such as `[when.linear]` or `[when.nvil.m5]`."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..spelling import did_you_mean

WHEN = "when"
"""The table of a file that holds its sections."""
DECIDING = ("notation", "arity", "estimator", "samples", WHEN)
"""The keys that decide which sections apply. A section must not set them."""


class Section(NamedTuple):
    """Settings for runs that have all the given kinds."""

    kinds: tuple[str, ...]
    settings: dict[str, Any]


def sections(within: Mapping[str, Any], kinds: tuple[str, ...] = ()) -> Iterator[Section]:
    """Yield all sections, including those nested in others.

    >>> [section.kinds for section in sections({"nvil": {"lr": 2.0, "m5": {"lr": 3.0}}})]
    [('nvil',), ('nvil', 'm5')]
    """
    for kind, section in within.items():
        inner = {name: value for name, value in section.items() if isinstance(value, dict)}
        yield Section((*kinds, kind), {name: value for name, value in section.items() if name not in inner})
        yield from sections(inner, (*kinds, kind))


def settings_for(within: Mapping[str, Any], kinds: Sequence[str]) -> dict[str, Any]:
    """Return the settings for a run that has these kinds.

    A section of more kinds overrides one of fewer. Of two sections with equally many, the one of the later kind wins.

    >>> settings_for({"linear": {"m5": {"lr": 2.0}}, "m5": {"lr": 1.0, "batch": 8}}, ("linear", "m5"))
    {'lr': 2.0, 'batch': 8}
    """
    applying = [section for section in sections(within) if set(section.kinds) <= set(kinds)]
    applying.sort(key=lambda section: (len(section.kinds), sorted(map(kinds.index, section.kinds))))
    return {name: value for section in applying for name, value in section.settings.items()}


def without(within: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the sections without the settings of the given names."""
    kept = {name: value for name, value in within.items() if name not in names}
    return {name: without(value, names) if isinstance(value, dict) else value for name, value in kept.items()}


def require(
    within: Any,
    groups: Sequence[Collection[str]],
    check: Callable[[str, Any], object],
    *,
    keys: Collection[str],
    outer: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return sections if all are valid, else raise. A section must not combine two kinds of the same group."""
    place = ".".join((WHEN, *outer))
    if not isinstance(within, dict) or (not outer and not all(isinstance(part, dict) for part in within.values())):
        raise ValueError(f"{place} must be sections such as [{WHEN}.linear], got {within!r}")
    for name, value in within.items():
        if name in DECIDING:
            raise ValueError(f"{name} must not be in [{place}], got {value!r}")
        if isinstance(value, dict) and name not in keys:
            group = _group(name, groups)
            if group is None:
                known = [*(kind for kinds in groups for kind in kinds), "m5"]
                raise ValueError(f"unknown section {f'{place}.{name}'!r}{did_you_mean(name, known)}")
            if group in [_group(kind, groups) for kind in outer]:
                raise ValueError(f"[{place}.{name}] must apply to some run, but no run is both")
            require(value, groups, check, keys=keys, outer=(*outer, name))
            continue
        try:
            check(name, value)
        except ValueError as error:
            raise ValueError(f"in [{place}]: {error}") from None
    return within


def _group(kind: str, groups: Sequence[Collection[str]]) -> int | None:
    """Return the index of the group of a kind, or None if it is unknown. Numbers of samples are the last group."""
    if re.fullmatch("m[1-9][0-9]*", kind):
        return len(groups)
    return next((index for index, kinds in enumerate(groups) if kind in kinds), None)
