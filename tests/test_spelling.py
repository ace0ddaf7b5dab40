"""Names and numbers as people write them."""

import math

import pytest

from concretely.spelling import did_you_mean, number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2/3", 2 / 3),
        ("1e-4", 1e-4),
        (" 5 ", 5.0),
        ("-1/2", -0.5),
        ("1_000", 1000.0),
        ("inf", math.inf),
        ("1/inf", 0.0),
    ],
)
def test_a_number_may_be_a_fraction(text: str, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "cold", "1/0", "1/", "/2", "1/2/3", "1,5", "0x10", "nan", "½", "1e400/1e400"])
def test_what_is_no_number_is_nan(text: str) -> None:
    assert math.isnan(number(text))


def test_a_name_is_answered_with_the_nearest_or_else_with_all() -> None:
    known = ["vimco", "nvil", "rloo"]
    assert did_you_mean("vimcoo", known) == "; did you mean 'vimco'?"
    assert did_you_mean("?", iter(known)) == "; choose from 'nvil', 'rloo', 'vimco'"
    assert did_you_mean("?", []) == "; there are none"
