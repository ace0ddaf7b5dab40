"""What temperatures do to training: both objectives, the gap between them, and where it grows."""

import math

import pytest
import torch

import concretely as c
from concretely.data import Bits, Dataset, load
from concretely.report.temperature import GAP, Point, interior, point, relaxed, temperature
from concretely.training.recipe import resolve


def test_the_interior_begins_where_the_gap_grows_past_the_limit_for_good() -> None:
    low, mid, high = Point(1.0, 50.0, 50.0), Point(2.0, 50.0, 50.0 + 2 * GAP), Point(4.0, 50.0, 50.0 + 3 * GAP)
    assert interior([low, mid, high]) == 1.5
    assert interior([mid, high]) == 2.0
    assert interior([low]) is None
    assert interior([mid, low._replace(temperature=3.0), high]) == pytest.approx(3 + 1 / 3)


def test_a_figure_shades_the_interior_and_only_that() -> None:
    points = [Point(2.0, 50.0, 50 + 8 * GAP), Point(0.5, 50.0, 50.0)]
    (axes,) = temperature(points).axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[0.5, 2.0]] * 2
    assert [list(line.get_ydata()) for line in axes.lines] == [[50.0, 50 + 8 * GAP], [50.0, 50.0]]
    (shade,) = axes.patches
    assert shade.get_x() == pytest.approx(0.6875)
    assert not temperature(points[1:]).axes[0].patches
    with pytest.raises(ValueError, match=r"^points must hold at least one temperature, got none$"):
        temperature([])


def test_a_record_is_a_point_only_with_both_objectives() -> None:
    metrics = {"train_nll": {"value": 3.0}, "train_relaxed": {"value": 2.0}}
    assert point({"recipe": {"temperature": 0.5}, "metrics": metrics}, part="train") == (0.5, 2.0, 3.0)
    for missing in ({"train_nll": {"value": 3.0}}, {**metrics, "train_relaxed": {"value": None}}):
        assert point({"recipe": {"temperature": 0.5}, "metrics": missing}, part="train") is None


def test_the_relaxed_objective_nears_the_discrete_one_as_the_temperature_falls() -> None:
    model, data = c.prediction("32V-6H-32V"), load("digits")
    bits = data.test[:].float()
    exact = -c.exact_log_likelihood(model, bits[:, :32], bits[:, 32:]).mean().item()
    recipe = resolve(notation="32V-6H-32V", temperature=0.001)
    found = relaxed(recipe, model, data, part="test", samples=400, step=0)
    assert found["points"] == len(data.test)
    assert found["value"] == pytest.approx(exact, abs=0.01 + 0.05)
    again = relaxed(recipe, model, data, part="test", samples=400, step=0)
    assert again == found
    bound = c.evaluate(model, bits[:, :32], bits[:, 32:], samples=400, generator=torch.Generator().manual_seed(1))
    assert math.isclose(found["standard_error"], bound.standard_error, rel_tol=0.1)


def test_every_relaxation_has_its_own_objective() -> None:
    data, found = load("digits"), []
    model = c.density("6H-64V", generator=torch.Generator().manual_seed(0))
    for estimator in ("concrete", "logistic-normal", "gumbel-softmax"):
        for warmth in (c.Annealing(4.0, 1.0, 10)(5), "4:1:10"):  # that of the step, to which it has fallen
            wished = resolve(notation="6H-64V", estimator=estimator, temperature=warmth, steps=10)
            found.append(relaxed(wished, model, data, part="test", samples=3, step=5)["value"])
        assert found[-1] == found[-2]
    assert len(set(found)) == 3


def test_chunks_are_pairs_and_every_point_has_all_samples() -> None:
    bits = load("digits").test[:]
    few = Dataset("few", *(Bits.pack(bits[:points]) for points in (1, 1, 7)), source="some.")
    model, wished = c.density("6H-64V"), resolve(notation="6H-64V")
    for chunk in (1, 11, 100):
        found = relaxed(wished, model, few, part="test", samples=5, step=0, chunk=chunk)
        assert (found["samples"], found["points"]) == (5, 7)


def test_a_graph_that_was_not_relaxed_is_refused() -> None:
    model, wished = c.density("6H-64V"), resolve(notation="6H-64V", estimator="vimco")
    with pytest.raises(
        ValueError, match=r"^a relaxed graph must be trained by an estimator that relaxes, got 'vimco'$"
    ):
        relaxed(wished, model, load("digits"), part="test", samples=1, step=0)
