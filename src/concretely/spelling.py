"""Suggestions for misspelt names, and numbers written as fractions."""

import math
from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the closest known name, or all of them if none is close.

    >>> did_you_mean("vimcoo", ["nvil", "vimco"])
    "; did you mean 'vimco'?"
    >>> did_you_mean("x", ["h1", "h2"])
    "; known are 'h1', 'h2'"
    """
    names = sorted(names)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(map(repr, names))}" if names else "; there are none"


def number(text: str) -> float:
    """Parse a number, which may be a fraction; NaN if the text is not a number.

    >>> number("2/3"), number("1e-4"), number("cold")
    (0.6666666666666666, 0.0001, nan)
    """
    above, slash, below = text.partition("/")
    try:
        return float(above) / float(below if slash else 1)
    except (ValueError, ZeroDivisionError):
        return math.nan
