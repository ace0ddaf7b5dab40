"""Annealing of temperatures."""

import re
from typing import Any

import pytest

import concretely as c


def test_annealing_falls_by_the_same_factor_and_then_stays() -> None:
    temperature = c.Annealing(start=2.0, end=0.5, steps=4)
    values = [temperature(step) for step in range(7)]
    assert values == pytest.approx([2.0, 2**0.5, 1.0, 2**-0.5, 0.5, 0.5, 0.5])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ((0.0, 0.5, 10), "start must be positive, got 0"),
        ((1.0, -0.5, 10), "end must be positive, got -0.5"),
        ((1.0, 0.5, 0), "steps must be positive, got 0"),
        ((float("nan"), 0.5, 1), "start must be positive, got nan"),
        (("1", 0.5, 10), "start must be a number, got str"),
        ((1.0, 0.5, "10"), "steps must be a number, got str"),
    ],
)
@pytest.mark.unchecked
def test_bad_schedules_are_refused_with_one_sentence(values: tuple[Any, Any, Any], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(sentence)}$"):
        c.Annealing(*values)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ((0,), "steps must be positive, got 0"),
        (("10",), "steps must be a number, got str"),
        ((10, None), "start must be a number, got NoneType"),
        ((10, 0.0, -1.0), "end must not be negative, got -1"),
    ],
)
@pytest.mark.unchecked
def test_bad_warm_ups_are_refused_with_one_sentence(values: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(sentence)}$"):
        c.Warmup(*values)
