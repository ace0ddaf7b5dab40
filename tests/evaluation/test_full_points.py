"""With `full_points` some data points get all samples, and the others are corrected by the mean difference."""

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
def test_the_other_points_are_corrected_by_the_mean_difference(
    build: Callable[[], c.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihood, "FEW", 3)
    model, generator = spread(build()), seeded()
    data = data_of(model, 11)
    result = evaluate(model, *data, samples=50, full_points=4, chunk=20, generator=seeded())
    chosen = torch.randperm(11, generator=generator)[:4].sort().values
    few = evaluate(model, *data, samples=3, chunk=20, generator=generator)
    many = evaluate(model, *(tensor[chosen] for tensor in data), samples=50, chunk=20, generator=generator)
    missed = (many.log_likelihood - few.log_likelihood[chosen]).mean()
    expected = few.log_likelihood + missed
    expected[chosen] = many.log_likelihood
    torch.testing.assert_close(result.log_likelihood, expected, rtol=1e-12, atol=1e-12)
    assert result.mean == pytest.approx(few.mean + missed.item(), rel=1e-12)
    assert result.effective_sample_size.equal(many.effective_sample_size)
    assert (result.samples, result.full_points) == (50, 4)
    missed = many.log_likelihood - few.log_likelihood[chosen]
    assert result.correction_se**2 == pytest.approx(missed.var().item() * (1 / 4 - 1 / 11))
    assert result.standard_error**2 == pytest.approx(expected.var().item() / 11 + result.correction_se**2)


def test_the_mean_is_in_expectation_that_of_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "FEW", 1)
    model = spread(c.density("3H-5V"))
    (x,) = data_of(model, 100)
    generator = seeded()
    excess, errors = [], []
    for _ in range(100):
        survey = evaluate(model, x, samples=20, full_points=10, generator=generator)
        excess.append(survey.mean - evaluate(model, x, samples=20, generator=generator).mean)
        errors.append(survey.correction_se)
    assert_mean(torch.tensor(excess), 0, "beyond that of all samples")
    assert 0.5 < np.std(excess) / np.mean(errors) < 2


def test_one_full_point_leaves_the_standard_error_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "FEW", 3)
    result = evaluate(spread(c.density("3H-5V")), torch.zeros(9, 5), samples=20, full_points=1)
    assert result.standard_error == result.correction_se == math.inf


@pytest.mark.parametrize("number", [0, 1])
def test_impossible_data_have_no_average_to_add(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "FEW", 3)

    def p(draw: c.Draw, x: Tensor) -> Tensor:
        z = draw("z", c.Bernoulli(logits=torch.zeros(len(x), 1)))
        return draw("x", c.Bernoulli(logits=0 * z - math.inf), observed=x)

    x = torch.zeros(10, 1)
    x[number] = 1
    result = evaluate(c.Model(p), x, samples=5, full_points=5)
    assert (result.mean, result.full_points) == (-math.inf, 10)
    assert result.log_likelihood.isfinite().sum() == 9


@pytest.mark.parametrize(
    "given",
    [
        {"samples": 50, "full_points": 11},
        {"samples": 50, "full_points": 99},
        {"samples": 3},
        {"samples": 4, "full_points": 3},  # more work than all samples for all points
    ],
)
def test_all_points_get_all_samples_where_that_is_less_work(
    given: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihood, "FEW", 3)
    model = spread(c.density("3H-5V"))
    data = data_of(model, 11)
    result = evaluate(model, *data, **{"full_points": 2, **given}, generator=seeded())
    plain = evaluate(model, *data, samples=given["samples"], generator=seeded())
    assert result.log_likelihood.equal(plain.log_likelihood)
    assert result.full_points == 11
