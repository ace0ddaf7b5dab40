"""Suggestions for misspelt names, checks, parsing, formatting and meaning of numbers, and text safe to print."""

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fractions import Fraction
from typing import Any

LOOSE = 10
"""The mean effective sample size below which an estimated likelihood counts as loose."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the closest valid name, or all of them if none is close.

    >>> did_you_mean("vimcoo", ["nvil", "vimco"])
    "; did you mean 'vimco'?"
    >>> did_you_mean("x", ["h1", "h2"])
    "; choose from 'h1', 'h2'"
    """
    names = sorted(names)
    close = get_close_matches(name, names, n=1) if isinstance(name, str) else []
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; choose from {', '.join(map(repr, names))}" if names else "; there are none"


def require_one_of(name: str, value: object, *allowed: str) -> None:
    """Raise unless the value of a setting is one of the allowed ones.

    >>> require_one_of("noise", "gauss", "gumbel", "normal")
    Traceback (most recent call last):
    ValueError: noise must be one of 'gumbel', 'normal', got 'gauss'
    """
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {shown(value)}")


def shown(value: object) -> str:
    """Return a value as text for an error of one sentence: its type if the value itself is long.

    >>> shown("gauss"), shown([0.0] * 100)
    ("'gauss'", 'list')
    """
    text = repr(value)
    return text if len(text) <= 60 and text.isprintable() else type(value).__name__


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return names in one line, at most some of them.

    >>> listed(["a", "b", "c"], most=2)
    'a, b, …'
    """
    return ", ".join(names[:most]) + ", …" * (len(names) > most)


def first_line(error: BaseException) -> str:
    r"""Return the first line of the text of an error, or its type if it has no text.

    >>> first_line(ValueError("no model\nhere")), first_line(AssertionError())
    ('no model', 'AssertionError')
    """
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def number(text: str) -> float:
    """Parse a number or a fraction; return NaN if the text is neither.

    >>> number("2/3"), number("1e-4"), number("cold")
    (0.6666666666666666, 0.0001, nan)
    """
    above, slash, below = text.partition("/")
    try:
        return float(above) / float(below if slash else 1)
    except (ValueError, ZeroDivisionError):
        return math.nan


def format_number(value: float) -> str:
    """Format a number, as a fraction if it is a simple one.

    >>> format_number(0.5), format_number(0.37)
    ('1/2', '0.37')
    """
    simple = Fraction(value).limit_denominator(12)
    return str(simple) if simple.numerator <= 12 and math.isclose(simple, value) else f"{value:g}"


def format_setting(value: Any) -> str:
    """Format a setting in few characters.

    >>> format_setting(1e-3), format_setting("relu")
    ('0.001', 'relu')
    """
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_difference(value: float) -> str:
    """Format a difference with its sign.

    >>> format_difference(-1.234)
    '−1.23'
    """
    return f"{value:+z.2f}".replace("-", "−")


def is_number(value: Any) -> bool:
    """Return whether a value that was read from a file is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Return whether a value that was read from a file is a whole number that is not negative."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def printable(text: str) -> str:
    r"""Escape all characters that a terminal might not show as they are, except line breaks.

    These are control characters, such as the start of an escape sequence, and halves of surrogate pairs, which cannot
    be encoded.

    >>> print(printable("red: \x1b[31m, half: \ud800, λ ± 1"))
    red: \x1b[31m, half: \ud800, λ ± 1
    """
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign == "\n" else sign.encode("unicode_escape").decode("ascii") for sign in text
    )


def is_loose(effective_sample_size: float | None, samples: int) -> bool:
    """Return whether a likelihood is loose, given its mean effective sample size; False if that is unknown.

    It is not loose if nearly all samples count, however few there are.
    """
    return effective_sample_size is not None and effective_sample_size < min(LOOSE, 0.9 * samples)


def format_effective(effective_sample_size: float) -> str:
    """Format a mean effective sample size.

    >>> format_effective(3.24), format_effective(1124.2)
    ('3.2', '1,124')
    """
    return f"{effective_sample_size:,.{0 if effective_sample_size >= LOOSE else 1}f}"


def explain_loose(effective_sample_size: float | None, samples: int) -> str:
    """Return a sentence about a likelihood if it is loose, else nothing.

    >>> explain_loose(3.2, 50), explain_loose(10, 50), explain_loose(4.9, 5)
    ('The NLL would fall with more samples: the mean effective sample size is below 10.', '', '')
    """
    sentence = f"The NLL would fall with more samples: the mean effective sample size is below {LOOSE}."
    return sentence if is_loose(effective_sample_size, samples) else ""
