"""Names and numbers as people write them: what a misspelt name may have meant, fractions."""

import math
from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence that refuses a name: the nearest known one, or all of them if none is near.

    >>> nearest("vimcoo", ["nvil", "vimco"])
    "; did you mean 'vimco'?"
    >>> nearest("x", ["h1", "h2"])
    "; known are 'h1', 'h2'"
    """
    names = sorted(names)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(map(repr, names))}" if names else "; there are none"


def number(text: str) -> float:
    """The number that a text stands for, which may be a fraction; NaN if it stands for none.

    >>> number("2/3"), number("1e-4"), number("cold")
    (0.6666666666666666, 0.0001, nan)
    """
    above, slash, below = text.partition("/")
    try:
        return float(above) / float(below if slash else 1)
    except (ValueError, ZeroDivisionError):
        return math.nan
