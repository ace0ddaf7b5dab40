"""The exact objective is the sum over all states, written out by hand."""

from itertools import pairwise

import pytest
import torch

import concretely as c
from tests.estimator.expectation import assert_same, average, bound, gradient_of, truth
from tests.estimator.target import MODELS, ONE_LAYER, PROGRAM, TARGETS, UNIT, Target, each


def test_exact_bounds_of_one_and_two_samples_are_the_double_loop_over_states() -> None:
    # nothing of the library but its parameters: sigmoids, products and loops
    model, x = ONE_LAYER.made(), ONE_LAYER.inputs[0]
    top, decoder, encoder = model.p.top.logits, model.p.visible.network[0], model.q.layers[0].network[0]
    for samples in (1, 2):
        values = []
        for point in x:
            on = torch.sigmoid(encoder.weight @ (2 * point - 1) + encoder.bias)
            q, w = [], []
            for a in (-1.0, 1.0):
                for b in (-1.0, 1.0):
                    prior = torch.sigmoid(a * top[0, 0]) * torch.sigmoid(b * top[1, 0])
                    pixel = torch.sigmoid(decoder.weight @ torch.tensor([a, b], dtype=x.dtype) + decoder.bias)
                    likelihood = torch.where(point == 1, pixel, 1 - pixel).prod()
                    q.append((on[0] if a > 0 else 1 - on[0]) * (on[1] if b > 0 else 1 - on[1]))
                    w.append(prior * likelihood / q[-1])
            if samples == 1:
                values.append(sum(q[i] * w[i].log() for i in range(4)))
            else:
                values.append(sum(q[i] * q[j] * ((w[i] + w[j]) / 2).log() for i in range(4) for j in range(4)))
        value = torch.stack(values)
        estimate = c.estimate(model, x, estimator=c.Exact(), samples=samples)
        torch.testing.assert_close(estimate.bound, value.detach(), rtol=1e-12, atol=1e-12)
        assert_same(gradient_of(estimate.loss, model), gradient_of(-value.mean(), model))


@each(*TARGETS)
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_exact_bound_is_the_sum_over_all_states_of_all_samples(target: Target, samples: int) -> None:
    module = target.made()
    value, gradient = truth(target, module, samples=samples, objective=bound)
    estimate = c.estimate(module, *target.inputs, estimator=c.Exact(), samples=samples, objective=c.bound)
    torch.testing.assert_close(estimate.bound, value, rtol=1e-12, atol=1e-12)
    assert_same(gradient_of(estimate.loss, module), gradient)


@each(*TARGETS)
@pytest.mark.parametrize("samples", [1, 3])
def test_exact_average_is_the_expectation_at_any_number_of_samples(target: Target, samples: int) -> None:
    module = target.made()
    value, gradient = truth(target, module, samples=1, objective=average)
    estimate = c.estimate(module, *target.inputs, estimator=c.Exact(), samples=samples, objective=c.average)
    torch.testing.assert_close(estimate.bound, value, rtol=1e-12, atol=1e-12)
    assert_same(gradient_of(estimate.loss, module), gradient)


def test_exact_takes_any_objective_of_the_log_weights() -> None:
    def best(log_w: torch.Tensor) -> torch.Tensor:
        return log_w.amax(0)

    module = PROGRAM.made()
    value, gradient = truth(PROGRAM, module, samples=2, objective=best)
    estimate = c.estimate(module, *PROGRAM.inputs, estimator=c.Exact(), samples=2, objective=best)
    torch.testing.assert_close(estimate.bound, value, rtol=1e-12, atol=1e-12)
    assert_same(gradient_of(estimate.loss, module), gradient)


def log_likelihood(target: Target, module: c.Model) -> torch.Tensor:
    """The log of the sum, over all states, of what they make of the data."""
    totals = []
    for states in target.listed(module):
        totals.append(torch.stack([state.log_prob + state.log_w for state in states]).exp().sum().log())
    return torch.stack(totals).detach()


@each(*MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_bound_increases_with_samples_and_stays_below_the_log_likelihood(target: Target, seed: int) -> None:
    module = target.made(seed)
    bounds = [
        c.estimate(module, *target.inputs, estimator=c.Exact(), samples=samples).bound for samples in (1, 2, 3, 4)
    ]
    for fewer, more in pairwise([*bounds, log_likelihood(target, module)]):
        assert (fewer < more).all()


@pytest.mark.parametrize("seed", [1, 2])
def test_gap_to_the_log_likelihood_closes_as_fast_as_samples_are_added(seed: int) -> None:
    module = UNIT.made(seed)
    exact = log_likelihood(UNIT, module)
    gaps = {
        samples: exact - c.estimate(module, *UNIT.inputs, estimator=c.Exact(), samples=samples).bound
        for samples in (1, 8, 16)
    }
    assert (gaps[16] < gaps[1] / 6).all()
    torch.testing.assert_close(gaps[8] / gaps[16], torch.full_like(exact, 2.0), rtol=0.2, atol=0)


def test_state_that_cannot_happen_adds_nothing_to_the_expectation_or_its_gradient() -> None:
    price = torch.tensor([1.0, 2.0, torch.inf], dtype=torch.float64)
    logits = torch.tensor([0.3, -0.4], dtype=torch.float64, requires_grad=True)
    never = torch.full((1,), -torch.inf, dtype=torch.float64)

    def program(draw: c.Draw) -> torch.Tensor:
        code = draw("code", c.OneHotCategorical(logits=torch.cat([logits, never])))
        return torch.where(code > 0, price, 0).sum(-1)

    estimate = c.estimate(program, estimator=c.Exact())
    probs = logits.softmax(-1)
    expected = probs @ price[:2]
    torch.testing.assert_close(estimate.loss, expected)
    torch.testing.assert_close(torch.autograd.grad(estimate.loss, logits), torch.autograd.grad(expected, logits))
