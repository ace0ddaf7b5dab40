"""What is drawn of a study is what it found, and can be read whatever the number of estimators."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from concretely import bound
from concretely.evaluation.finding import Finding, GradientStudy
from concretely.evaluation.reference import Aim, Reference
from concretely.evaluation.tally import Measure
from concretely.report.dotplot import draw_study
from concretely.report.style import DARK, save_figure


def finding(
    squared_bias: tuple[float, float] = (0.0, 0.02),
    variance: tuple[float, float] = (25.0, 1.0),
    *,
    seconds: float = 0.002,
    length: float = 5.0,
    biased: bool = False,
) -> Finding:
    gradient = (torch.tensor([length], dtype=torch.float64),)
    reference = Reference(Aim(bound, 2), gradient, "Exact", repeats=1, error=0.0)
    p_value = 1e-5 if biased else 0.5
    return Finding(2, reference, gradient, Measure(*squared_bias), p_value, Measure(*variance), seconds)


EXAMPLE = GradientStudy({"vimco": finding(), "concrete": finding((1.0, 0.1), (6.25, 0.5), seconds=0.003, biased=True)})


def dots(axes: Axes) -> list[Line2D]:
    return [line for line in axes.lines if line.get_marker() not in ("None", "", None)]


def whiskers(axes: Axes) -> list[list[float]]:
    return [list(line.get_xdata()) for line in axes.lines if line.get_linewidth() == 1.4 and len(line.get_xdata()) == 2]


def test_the_dots_are_bias_noise_and_time_in_lengths_of_the_reference() -> None:
    biases, noises, times = draw_study(EXAMPLE).axes
    assert [float(dot.get_xdata()[0]) for dot in dots(biases)] == pytest.approx([math.sqrt(0.04) / 5, 1 / 5])
    assert [float(dot.get_xdata()[0]) for dot in dots(noises)] == pytest.approx([1.0, 0.5])
    assert [float(dot.get_xdata()[0]) for dot in dots(times)] == pytest.approx([0.002, 0.003 / 4])
    for axes in (biases, noises, times):
        assert [float(dot.get_ydata()[0]) for dot in dots(axes)] == [0, 1]


def test_the_whiskers_are_two_standard_errors() -> None:
    biases, noises, times = draw_study(EXAMPLE).axes
    assert whiskers(biases)[1] == pytest.approx([math.sqrt(0.8) / 5, math.sqrt(1.2) / 5])
    assert whiskers(noises)[0] == pytest.approx([math.sqrt(23) / 5, math.sqrt(27) / 5])
    assert whiskers(times)[0] == pytest.approx([0.002 * 23 / 25, 0.002 * 27 / 25])


def test_a_bias_is_open_and_its_absence_points_to_what_it_is_below() -> None:
    biases, noises, times = draw_study(EXAMPLE).axes
    assert [dot.get_marker() for dot in dots(biases)] == ["<", "o"]
    for axes in (biases, noises, times):
        assert [dot.get_markerfacecolor() for dot in dots(axes)] == [DARK, "white"]


def test_what_a_logarithm_cannot_show_is_written_at_the_edge() -> None:
    exact = finding((0.0, 0.0), (0.0, 0.0))
    still = finding((0.0, 0.1), length=0.0)
    broken = finding((math.nan, math.nan), (math.nan, math.nan), biased=True)
    study = GradientStudy({"exact": exact, "still": still, "broken": broken, "vimco": finding()})
    for axes in draw_study(study).axes:
        assert [text.get_text() for text in axes.texts] == ["0", "∞", "?"]
        assert len(dots(axes)) == 1
    assert len(draw_study(GradientStudy({"exact": exact})).axes) == 3


@pytest.mark.parametrize("count", [2, 5, 12])
def test_names_and_ticks_are_on_the_page_and_apart(count: int) -> None:
    rows = {
        f"{'straight-through gumbel-softmax ' if row == 1 else '$estimator_'}{row}": finding(seconds=10.0**-row)
        for row in range(count)
    }
    drawn = draw_study(GradientStudy(rows))
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    renderer, page = canvas.get_renderer(), drawn.bbox
    names = [label for label in drawn.axes[0].get_yticklabels() if label.get_text()]
    assert [name.get_text() for name in names] == [f"{name}, m = 2" for name in rows]
    boxes = [name.get_window_extent(renderer) for name in names]
    assert all(upper.y0 > lower.y1 for upper, lower in pairwise(boxes))
    ticks = []
    for axes in drawn.axes:
        low, high = axes.get_xlim()
        labels = [
            label
            for label, place in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)
            if low <= place <= high and label.get_text()
        ]
        assert len(labels) >= 2
        ticks += [label.get_window_extent(renderer) for label in labels]
    assert all(left.x1 < right.x0 for left, right in pairwise(ticks))
    titles = [axes.xaxis.label.get_window_extent(renderer) for axes in drawn.axes]
    assert all(left.x1 < right.x0 for left, right in pairwise(titles))
    for box in (*boxes, *ticks, *titles, drawn.legends[0].get_window_extent(renderer)):
        assert page.x0 <= box.x0 <= box.x1 <= page.x1
        assert page.y0 <= box.y0 <= box.y1 <= page.y1
    assert drawn.legends[0].get_window_extent(renderer).y0 > boxes[0].y1


def test_the_same_study_is_saved_as_the_same_bytes(tmp_path: Path) -> None:
    def saved(name: str) -> list[bytes]:
        drawn: Figure = draw_study(EXAMPLE)
        return [file.read_bytes() for file in save_figure(drawn, tmp_path / name)]

    assert saved("a") == saved("b")
