"""A survey: the likelihood of all data points by all samples for some of them."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import concretely as c
from concretely.evaluation import likelihood
from concretely.evaluation.likelihood import evaluate
from tests.budget import assert_mean

from .example import data_of, models, seeded, spread


@models
def test_a_survey_adds_to_few_samples_what_they_miss_on_average(
    build: Callable[[], c.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihood, "FEW", 3)
    model, generator = spread(build()), seeded()
    data = data_of(model, 11)
    result = evaluate(model, *data, samples=50, thorough=4, chunk=20, generator=seeded())
    chosen = torch.randperm(11, generator=generator)[:4].sort().values
    few = evaluate(model, *data, samples=3, chunk=20, generator=generator)
    many = evaluate(model, *(tensor[chosen] for tensor in data), samples=50, chunk=20, generator=generator)
    missed = (many.log_likelihood - few.log_likelihood[chosen]).mean()
    expected = few.log_likelihood + missed
    expected[chosen] = many.log_likelihood
    torch.testing.assert_close(result.log_likelihood, expected, rtol=1e-12, atol=1e-12)
    assert result.mean == pytest.approx(few.mean + missed.item(), rel=1e-12)
    assert result.effective_sample_size.equal(many.effective_sample_size)
    assert (result.samples, result.thorough) == (50, 4)
    missed = many.log_likelihood - few.log_likelihood[chosen]
    assert result.doubt**2 == pytest.approx(missed.var().item() * (1 / 4 - 1 / 11))
    assert result.standard_error**2 == pytest.approx(expected.var().item() / 11 + result.doubt**2)


def test_the_mean_of_a_survey_is_that_of_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "FEW", 1)
    model = spread(c.density("3H-5V"))
    (x,) = data_of(model, 100)
    generator = seeded()
    excess, doubts = [], []
    for _ in range(100):
        survey = evaluate(model, x, samples=20, thorough=10, generator=generator)
        excess.append(survey.mean - evaluate(model, x, samples=20, generator=generator).mean)
        doubts.append(survey.doubt)
    assert_mean(torch.tensor(excess), 0, "beyond that of all samples")
    assert 0.5 < np.std(excess) / np.mean(doubts) < 2


def test_one_thorough_point_leaves_the_mean_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "FEW", 3)
    result = evaluate(spread(c.density("3H-5V")), torch.zeros(9, 5), samples=20, thorough=1)
    assert result.standard_error == result.doubt == math.inf


@pytest.mark.parametrize("number", [0, 1])
def test_impossible_data_have_no_average_to_add(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "FEW", 3)

    def p(draw: c.Draw, x: Tensor) -> Tensor:
        z = draw("z", c.Bernoulli(torch.zeros(len(x), 1)))
        return draw("x", c.Bernoulli(0 * z - math.inf), observed=x)

    x = torch.zeros(10, 1)
    x[number] = 1
    result = evaluate(c.Model(p), x, samples=5, thorough=5)
    assert (result.mean, result.thorough) == (-math.inf, 10)
    assert result.log_likelihood.isfinite().sum() == 9


@pytest.mark.parametrize(
    "given",
    [
        {"samples": 50, "thorough": 11},
        {"samples": 50, "thorough": 99},
        {"samples": 3},
        {"samples": 4, "thorough": 3},  # more work than all samples for all points
    ],
)
def test_where_there_is_nothing_to_survey_all_points_have_all_samples(
    given: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihood, "FEW", 3)
    model = spread(c.density("3H-5V"))
    data = data_of(model, 11)
    result = evaluate(model, *data, **{"thorough": 2, **given}, generator=seeded())
    plain = evaluate(model, *data, samples=given["samples"], generator=seeded())
    assert result.log_likelihood.equal(plain.log_likelihood)
    assert result.thorough == 11
