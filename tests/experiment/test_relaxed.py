"""The objective of the relaxed graph is scored as it was trained."""

import math

import pytest
import torch

import concretely as c
from concretely.data import Bits, Dataset, load_data
from concretely.experiment.scoring import relaxed_objective
from concretely.training.recipe import resolve


def test_the_relaxed_objective_nears_the_discrete_one_as_the_temperature_falls() -> None:
    model, data = c.prediction("32V-6H-32V"), load_data("digits")
    bits = data.test[:].float()
    exact = -c.exact_log_likelihood(model, bits[:, :32], bits[:, 32:]).mean().item()
    recipe = resolve(notation="32V-6H-32V", temperature=0.001)
    found = relaxed_objective(recipe, model, data, split="test", samples=400, step=0)
    assert found["points"] == len(data.test)
    assert found["value"] == pytest.approx(exact, abs=0.01 + 0.05)
    again = relaxed_objective(recipe, model, data, split="test", samples=400, step=0)
    assert again == found
    bound = c.evaluate(model, bits[:, :32], bits[:, 32:], samples=400, generator=torch.Generator().manual_seed(1))
    assert math.isclose(found["standard_error"], bound.standard_error, rel_tol=0.1)


def test_every_relaxation_has_its_own_objective() -> None:
    data, found = load_data("digits"), []
    model = c.density("6H-64V", generator=torch.Generator().manual_seed(0))
    for estimator in ("concrete", "logistic-normal", "gumbel-softmax"):
        for temperature in (c.Annealing(4.0, 1.0, 10)(5), "4:1:10"):  # that of the step, to which it has fallen
            wished = resolve(notation="6H-64V", estimator=estimator, temperature=temperature, steps=10)
            found.append(relaxed_objective(wished, model, data, split="test", samples=3, step=5)["value"])
        assert found[-1] == found[-2]
    assert len(set(found)) == 3


def test_chunks_are_pairs_and_every_point_has_all_samples() -> None:
    bits = load_data("digits").test[:]
    few = Dataset("few", *(Bits.pack(bits[:points]) for points in (1, 1, 7)), source="some.")
    model, wished = c.density("6H-64V"), resolve(notation="6H-64V")
    for chunk in (1, 11, 100):
        found = relaxed_objective(wished, model, few, split="test", samples=5, step=0, chunk=chunk)
        assert (found["samples"], found["points"]) == (5, 7)


def test_a_graph_that_was_not_relaxed_is_refused() -> None:
    model, wished = c.density("6H-64V"), resolve(notation="6H-64V", estimator="vimco")
    with pytest.raises(ValueError, match=r"^estimator must be one that trains a relaxed graph, got 'vimco'$"):
        relaxed_objective(wished, model, load_data("digits"), split="test", samples=1, step=0)
