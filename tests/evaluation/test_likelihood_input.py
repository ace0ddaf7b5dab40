"""Bad data are refused in one sentence, before any latent is drawn."""

import math
from collections.abc import Callable
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import concretely as c
from concretely.distribution import check
from concretely.evaluation.likelihood import evaluate, exact_log_likelihood

from .test_likelihood import of_pairs

DENSITY = c.density("2H-5V")
PREDICTION = c.prediction("4V-2H-5V")
BITS = torch.zeros(6, 5)
DATA: list[tuple[Callable[..., object], type[Exception], str]] = [
    (lambda f: f(DENSITY), ValueError, "data must be one or more tensors, the inputs of the model, got none"),
    (lambda f: f(DENSITY, np.zeros((6, 5))), TypeError, "data must be tensors, got ndarray"),
    (
        lambda f: f(DENSITY, torch.tensor(0)),
        ValueError,
        "data must have a first axis that counts data points, got shape ()",
    ),
    (lambda f: f(DENSITY, BITS[:0]), ValueError, "data must have at least one data point, got shape (0, 5)"),
    (
        lambda f: f(PREDICTION, torch.zeros(4, 4), BITS),
        ValueError,
        "data must have as many data points in every input, got 4 and 6",
    ),
    (lambda f: f(DENSITY, torch.zeros(6, 4)), ValueError, "x must have a last axis of 5 bits, got shape (6, 4)"),
    (
        lambda f: f(DENSITY, torch.zeros(5)),
        ValueError,
        "x must have an axis of data points before that of bits, got shape (5,)",
    ),
    (
        lambda f: f(PREDICTION, torch.zeros(6, 3), BITS),
        ValueError,
        "context must have a last axis of 4 bits, got shape (6, 3)",
    ),
    (
        lambda f: f(PREDICTION, torch.zeros(6, 4)),
        ValueError,
        "p must have an observed node, got no call of draw with observed=: is an input missing?",
    ),
]


@pytest.mark.unchecked
@pytest.mark.parametrize("function", [evaluate, exact_log_likelihood])
@pytest.mark.parametrize(("call", "error", "sentence"), DATA)
def test_bad_data_are_refused_in_one_sentence(
    call: Callable[..., object], error: type[Exception], sentence: str, function: Callable[..., object]
) -> None:
    with pytest.raises(error) as caught:
        call(function)
    assert str(caught.value) == sentence


@pytest.mark.unchecked
def test_only_a_model_has_an_exact_likelihood() -> None:
    with pytest.raises(TypeError, match=r"as only a Model has a likelihood, got Linear$"):
        exact_log_likelihood(nn.Linear(5, 2), BITS)


@pytest.mark.unchecked
@pytest.mark.parametrize("argument", ["samples", "full_points", "chunk"])
@pytest.mark.parametrize("number", [0, -3, 2.0, True, "5"])
def test_counts_must_be_positive_whole_numbers(argument: str, number: object) -> None:
    with pytest.raises(ValueError, match=r"must be a positive whole number") as caught:
        evaluate(DENSITY, BITS, **{argument: number})
    assert str(caught.value) == f"{argument} must be a positive whole number, got {number!r}"


@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("name", ["context", "x"])
def test_wrong_bit_anywhere_is_refused_at_its_place_before_any_latent_is_drawn(name: str, chunk: int) -> None:
    inputs = {"context": torch.zeros(50, 4), "x": torch.zeros(50, 5)}
    inputs[name][41, 2] = 2
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="bits") as caught:
        evaluate(PREDICTION, *inputs.values(), samples=10, chunk=chunk)
    assert str(caught.value) == f"{name} must be bits of 0 and 1, got 2 at index (41, 2)"
    assert torch.get_rng_state().equal(state)


def test_what_a_program_of_ones_own_refuses_is_refused_before_any_latent_is_drawn() -> None:
    model, _ = of_pairs(3)
    x = torch.zeros(50, 6)
    x[41, 2] = 0.5
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="support") as caught:
        evaluate(model, x, samples=10, chunk=7)
    assert str(caught.value) == (
        "observed node 'x': value must lie in the support of Bernoulli, got 0.5 at index (41, 2): "
        "draw bits from grey values, as by torch.bernoulli(x)"
    )
    assert torch.get_rng_state().equal(state)


def test_data_on_a_gpu_are_checked_once_by_fit_and_by_evaluate(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu, validates = mock.Mock(spec=Tensor, is_cuda=True), check.validates
    monkeypatch.setattr(check, "validates", lambda given, *parameters: validates(given, on_gpu))
    model, _ = of_pairs(3)
    grey = torch.full((20, 6), 0.004)
    c.estimate(model, grey, estimator=c.RLOO(), samples=2)
    for function in (partial(evaluate, samples=2), exact_log_likelihood, partial(c.fit, steps=2)):
        with pytest.raises(ValueError, match=r"observed node 'x': .* got 0\.00\d+ at index \(0, 0\): draw bits"):
            function(model, grey)


@pytest.mark.parametrize("function", [lambda *data: evaluate(*data, samples=3, chunk=7), exact_log_likelihood])
def test_likelihood_that_is_not_a_number_is_reported_with_its_data_point(function: Callable[..., object]) -> None:
    model = c.density("2H-5V")
    with torch.no_grad():
        model.p.visible.network[0].bias[0] = math.nan
    with pytest.raises(ValueError, match="nan") as caught:
        function(model, torch.zeros(6, 5))
    assert str(caught.value) == "the log-likelihood must be a number, got nan at data point 0: is a parameter nan?"

    def p(draw: c.Draw, x: Tensor) -> Tensor:
        z = draw("z", c.Bernoulli(logits=torch.zeros(len(x), 1)))
        unknown = torch.where(x[:, :1] == 1, math.nan, 0.0)
        return draw("x", c.Bernoulli(logits=z + c.tile(unknown, z), validate_args=False), observed=x)

    x = torch.zeros(30, 2)
    x[17] = 1
    with pytest.raises(ValueError, match="nan at data point 17:"):
        function(c.Model(p), x)


def test_too_many_states_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at most 2\^20 states to be enumerated, got 2\^21 up to node 'h1'"):
        exact_log_likelihood(c.density("21H-5V"), torch.zeros(3, 5))


@pytest.mark.parametrize("function", [lambda *data: evaluate(*data, samples=2).log_likelihood, exact_log_likelihood])
def test_data_sets_of_the_library_are_evaluated_also_by_modules_of_ones_own(function: Callable[..., Tensor]) -> None:
    bits, encoder = c.load_data("digits").test, nn.Linear(64, 2)

    def p(draw: c.Draw, x: Tensor) -> Tensor:
        z = draw("z", c.Bernoulli(logits=torch.zeros(2)))
        return draw("x", c.Bernoulli(logits=z.sum(-1, keepdim=True).expand(-1, 64)), observed=x)

    def q(draw: c.Draw, x: Tensor) -> None:
        draw("z", c.Bernoulli(logits=encoder(x)))

    for model in (c.density("4H-64V"), c.Model(p, q)):
        assert function(model, bits).isfinite().all()
