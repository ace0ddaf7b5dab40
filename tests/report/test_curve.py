"""A curve shows what the rows say, the gap where there is one, and the whole of training but its first steps."""

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from concretely.experiment.claim import GAP, TemperaturePoint
from concretely.report.curve import draw_curve, temperature_curve
from concretely.report.style import save_figure


def row(
    step: int, objective: float | None = None, discrete: float | None = None, valid: float | None = None
) -> dict[str, Any]:
    return {"step": step, "seconds": 0.1, "lr": 1e-3, "objective": objective, "discrete": discrete, "valid": valid}


RELAXED = [
    row(step, -20 - 500 / step, -22 - 500 / step, 21.5 if step % 500 == 0 else None) for step in range(10, 1001, 10)
]
DISCRETE = [row(step, -20 - 500 / step, -20 - 500 / step) for step in range(10, 1001, 10)]


def drawn(rows: Sequence[dict[str, Any]]) -> Axes:
    (axes,) = draw_curve(rows).axes
    return axes


def lines(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    return {str(line.get_label()): list(zip(*line.get_data(), strict=True)) for line in axes.lines}


def test_lines_are_the_bounds_and_circles_what_validation_found_with_its_sign_changed() -> None:
    assert lines(drawn(RELAXED)) == {
        "training bound": [(row["step"], row["objective"]) for row in RELAXED],
        "discrete bound": [(row["step"], row["discrete"]) for row in RELAXED],
        "validation, − NLL": [(500, -21.5), (1000, -21.5)],
    }


def test_rows_of_an_earlier_version_are_drawn() -> None:
    rows = [{"bound" if name == "objective" else name: value for name, value in row.items()} for row in RELAXED]
    assert lines(drawn(rows)) == lines(drawn(RELAXED))


def test_curves_of_a_program_are_minus_its_cost() -> None:
    (axes,) = draw_curve(RELAXED, objective="cost").axes
    assert list(lines(axes)) == ["training, − cost", "discrete graph, − cost", "validation, − cost"]
    assert axes.get_ylabel() == "− cost per data point"


def test_the_shade_between_the_bounds_is_the_integrality_gap() -> None:
    (shade,) = drawn(RELAXED).collections
    assert shade.get_label() == "integrality gap, 2 in the last tenth"
    x, y = shade.get_paths()[0].vertices.T
    area = abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2
    assert area == pytest.approx(2 * (1000 - 10))


def test_the_gap_is_that_of_the_last_tenth_of_the_rows() -> None:
    gaps = [9.0] * 18 + [2.0, 3.0]
    (shade,) = drawn([row(step, -20.0, -20.0 - gap) for step, gap in enumerate(gaps)]).collections
    assert shade.get_label() == "integrality gap, 2.5 in the last tenth"


def test_a_gap_below_zero_has_its_sign() -> None:
    (shade,) = drawn([row(1, -22.5, -20.0), row(2, -21.5, -20.0)]).collections
    assert shade.get_label() == "integrality gap, −1.5 in the last tenth"


@pytest.mark.parametrize(
    "rows", [DISCRETE, [{**row, "discrete": None} for row in DISCRETE], [*DISCRETE, row(2000, -20.0)]]
)
def test_bounds_that_do_not_differ_have_one_line_and_no_gap(rows: list[dict[str, Any]]) -> None:
    axes = drawn(rows)
    assert list(lines(axes)) == ["training bound"]
    assert not axes.collections


def test_the_first_steps_do_not_squeeze_the_rest() -> None:
    low, high = drawn(RELAXED).get_ylim()
    seen = [height for row in RELAXED[10:] for height in (row["objective"], row["discrete"])]
    assert low < min(seen) < max(seen) < high
    assert low > RELAXED[0]["objective"]
    assert high - low < 1.2 * (max(seen) - min(seen))


def test_what_is_best_is_always_on_the_page() -> None:
    rows = [row(1, 50.0), row(2, valid=-60.0), *(row(step, -1.0 * step) for step in range(3, 40))]
    assert drawn(rows).get_ylim()[1] > 60
    assert drawn(rows).get_xlim()[1] >= 39


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf, -math.inf])
def test_what_is_not_known_is_passed_over(unknown: float | None) -> None:
    rows = [row(1, -3.0, -4.0, unknown), row(2, unknown, unknown, 3.5), row(3, -2.0, unknown), row(4, -1.0, -2.0)]
    axes = drawn(rows)
    assert lines(axes) == {
        "training bound": [(1, -3.0), (3, -2.0), (4, -1.0)],
        "discrete bound": [(1, -4.0), (4, -2.0)],
        "validation, − NLL": [(2, -3.5)],
    }
    assert np.isfinite(axes.get_ylim()).all()


@pytest.mark.parametrize("rows", [[row(1, -3.0, -4.0)], [row(0, -3.0)], [row(7, valid=3.0)], [row(1, -3.0, -4.0)] * 2])
def test_a_single_row_is_seen(rows: list[dict[str, Any]]) -> None:
    axes = drawn(rows)
    low, high = axes.get_ylim()
    points = [(line, point) for line in axes.lines for point in zip(*line.get_data(), strict=True)]
    assert points
    for line, (step, height) in points:
        assert line.get_marker() not in ("", "None")
        assert low < height < high
        assert axes.get_xlim()[0] <= step <= axes.get_xlim()[1]


@pytest.mark.parametrize("rows", [[], [row(1)], [row(1, math.nan, math.nan)]])
def test_where_nothing_is_known_a_sentence_says_so(rows: list[dict[str, Any]]) -> None:
    figure = draw_curve(rows)
    assert not figure.axes
    assert [text.get_text() for text in figure.texts] == ["Nothing has been recorded yet."]


def test_axes_have_units_and_all_words_are_on_the_page_and_apart() -> None:
    figure = draw_curve([{**row, "step": 10_000 * row["step"]} for row in RELAXED])
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "nats per data point")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    low, high = axes.get_xlim()
    ticks = [label for label, at in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True) if low <= at <= high]
    assert "10,000,000" in [tick.get_text() for tick in ticks]
    words = [*figure.legends[0].get_texts(), *ticks, axes.xaxis.label, axes.yaxis.label]
    boxes = [word.get_window_extent(canvas.get_renderer()) for word in words]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    for box in boxes:
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1


def test_the_same_rows_are_saved_as_the_same_bytes(tmp_path: Path) -> None:
    first, second = ([file.read_bytes() for file in save_figure(draw_curve(RELAXED), tmp_path / name)] for name in "ab")
    assert first == second


def test_a_large_gap_is_shaded() -> None:
    points = [TemperaturePoint(2.0, 50.0, 50 + 8 * GAP), TemperaturePoint(0.5, 50.0, 50.0)]
    (axes,) = temperature_curve(points).axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[0.5, 2.0]] * 2
    assert [list(line.get_ydata()) for line in axes.lines] == [[50.0, 50 + 8 * GAP], [50.0, 50.0]]
    (shade,) = axes.patches
    assert shade.get_x() == pytest.approx(0.6875)
    assert not temperature_curve(points[1:]).axes[0].patches
    with pytest.raises(ValueError, match=r"^points must hold at least one temperature, got none$"):
        temperature_curve([])
