"""Relaxed permutations are doubly stochastic at every temperature, and their best matching is the discrete draw."""

import math
import sys
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

import concretely as c
from concretely.functional.sinkhorn import log_sinkhorn, matching
from tests.budget import assert_frequency, assert_mean
from tests.cases import DTYPES, TEMPERATURES


def random_logits(n: int, *batch: int) -> Tensor:
    return 2 * torch.randn(*batch, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 2, 3, 10])
@pytest.mark.parametrize("temperature", [1e-4, *TEMPERATURES])
def test_rows_and_columns_sum_to_one_at_every_temperature(n: int, temperature: float) -> None:
    scores = random_logits(n, 8)
    scores[0] = scores[0].round()  # with ties
    scores[1] = 0
    value = log_sinkhorn(scores / temperature).exp()
    tolerance = 2e-10 + 1e-14 / temperature
    assert ((value.sum(-1) - 1).abs() <= tolerance).all()
    assert ((value.sum(-2) - 1).abs() <= tolerance).all()


def test_at_low_temperature_it_is_the_best_matching() -> None:
    scores = random_logits(6, 5)
    torch.testing.assert_close(log_sinkhorn(scores / 1e-4).exp(), matching(scores))
    states = c.Permutation(logits=scores).enumerate_support()
    best = (states * scores).sum((-1, -2)).argmax(0)
    assert torch.equal(matching(scores), states[best, torch.arange(5)])


def test_two_items_have_a_closed_form() -> None:
    scores = random_logits(2, 20)
    difference = scores[:, 0, 0] + scores[:, 1, 1] - scores[:, 0, 1] - scores[:, 1, 0]
    value = log_sinkhorn(scores).exp()
    torch.testing.assert_close(value[:, 0, 0], torch.sigmoid(difference / 2), rtol=1e-9, atol=1e-9)
    one = c.Permutation(logits=torch.zeros(4, 1, 1))
    assert (one.sample() == 1).all()
    assert (one.relax(0.3).rsample() == 1).all()


def test_solution_can_be_differentiated_twice_and_forwards() -> None:
    scores = random_logits(3, 2).requires_grad_()
    assert torch.autograd.gradcheck(log_sinkhorn, scores, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(log_sinkhorn, scores)


def test_gradient_is_that_of_many_plain_iterations() -> None:
    scores, cotangent = random_logits(5, 3).requires_grad_(), random_logits(5, 3)
    (gradient,) = torch.autograd.grad(log_sinkhorn(scores).exp(), scores, cotangent)
    plain = scores
    for _ in range(2000):
        plain = plain.log_softmax(-2).log_softmax(-1)
    torch.testing.assert_close(log_sinkhorn(scores), plain, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(gradient, torch.autograd.grad(plain.exp(), scores, cotangent)[0], rtol=1e-6, atol=1e-8)


def test_too_few_steps_raise_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"^Sinkhorn's iteration must bring all sums within .* after 1 steps: use a"):
        log_sinkhorn(random_logits(8), steps=1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matching_of_a_relaxed_draw_is_the_discrete_draw_on_the_same_noise(dtype: torch.dtype) -> None:
    logits = random_logits(5, 4).to(dtype).requires_grad_()
    variable = c.Permutation(logits=logits)
    for temperature in (0.05, 0.5, 3.0):
        relaxed = variable.relax(temperature)
        noise = relaxed.noise((6,))
        hard, soft = variable.push(noise), relaxed.push(noise)
        assert hard.dtype == soft.dtype == dtype
        assert variable.support.check(hard).all()
        assert relaxed.support.check(soft).all()
        if dtype.itemsize > 2 and temperature >= 0.5:  # nothing is rounded to zero
            assert torch.equal(matching(soft.log()), hard)
        (gradient,) = torch.autograd.grad((soft * torch.randn_like(soft)).sum(), logits)
        assert gradient.isfinite().all()
    for zero in (0.0, torch.zeros(4)):
        assert torch.equal(variable.relax(zero).push(noise), hard)


def test_draws_of_two_items_follow_the_law_of_the_noise() -> None:
    logits = torch.tensor([[1.0, 0.0], [0.5, 0.2]])
    drawn = c.Permutation(logits=logits).sample((4000,), generator=torch.Generator().manual_seed(0))
    # the sum of two logistic variables exceeds -d with probability e^d (e^d - 1 - d) / (e^d - 1)²
    odds = math.exp(0.7)
    probability = odds * (odds - 1 - 0.7) / (odds - 1) ** 2
    assert_frequency(int(drawn[:, 0, 0].sum()), of=4000, probability=probability)


def test_nodes_follow_their_density() -> None:
    relaxed = c.Permutation(logits=random_logits(2)).relax(0.7)
    drawn = relaxed.drawn((20_000,))
    assert drawn.node is not None
    own = drawn.score()
    torch.testing.assert_close(own, relaxed.node_log_prob(drawn.value, node=drawn.node))
    other = c.Permutation(logits=random_logits(2) + 0.1).relax(0.7)
    scored = other.node_log_prob(drawn.value, node=drawn.node)
    assert_mean((scored - own).exp(), 1.0)
    exact = kl_divergence(relaxed, other).item()
    assert_mean(own - scored, exact)
    estimate = c.monte_carlo_kl(relaxed.expand((2000,)), other.expand((2000,)), samples=2)
    assert_mean(estimate, exact)


def test_pathwise_estimators_train_a_permutation() -> None:
    target, logits = torch.eye(3).flip(0), torch.zeros(3, 3, requires_grad=True)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        order = draw("order", c.Permutation(logits=logits.expand(len(x), 3, 3)))
        return (order - target).square().sum((-1, -2))

    torch.manual_seed(0)
    for estimator in (c.Pathwise(temperature=0.5), c.StraightThroughGumbelSoftmax(temperature=0.5)):
        loss = c.estimate(program, torch.zeros(64, 1), estimator=estimator).loss
        (gradient,) = torch.autograd.grad(loss, logits)
        assert (gradient[target == 1] < 0).all()
    for estimator in (c.RLOO(), c.StraightThrough(), c.Exact()):
        with pytest.raises(NotImplementedError, match=r"^Permutation has no .* in closed form: draw it in a program"):
            c.estimate(program, torch.zeros(2, 1), estimator=estimator, samples=1 if estimator == c.Exact() else 2)


def test_a_model_of_permutations_has_only_the_kl_between_densities() -> None:
    logits = torch.nn.Parameter(torch.zeros(3, 3))

    def p(draw: c.Draw, x: Tensor) -> None:
        order = draw("order", c.Permutation(logits=torch.zeros(len(x), 3, 3)))
        draw("x", c.Bernoulli(logits=order.sum(-1)), observed=x)

    model = c.Model(p, lambda draw, x: draw("order", c.Permutation(logits=logits.expand(len(x), 3, 3))))
    estimate = c.estimate(model, torch.ones(4, 3), estimator=c.Pathwise(temperature=0.5), samples=2)
    q, p_trace = estimate.posterior["order"], estimate.trace["order"]
    torch.testing.assert_close(estimate.kl["order"], (q.log_prob - p_trace.log_prob).detach().mean(0))
    with pytest.raises(NotImplementedError, match=r"^no KL between Permutation variables is known .* Pathwise\(temp"):
        c.estimate(model, torch.ones(4, 3), estimator=c.Pathwise())


@pytest.mark.unchecked
def test_transforms_and_compilation_change_nothing() -> None:
    logits, noise = random_logits(4, 3), torch.randn(3, 4, 4, dtype=torch.float64)

    def program(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        variable = c.Permutation(logits=logits)
        return variable.push(noise), variable.relax(0.5).push(noise)

    expected = program(logits, noise)
    torch.testing.assert_close(torch.func.vmap(program)(logits, noise), expected)
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits, noise), expected)
    one, other = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    cotangent = torch.randn_like(logits)
    gradients = [
        torch.autograd.grad(call(rows, noise)[1], rows, cotangent)[0]
        for call, rows in ((program, one), (compiled, other))
    ]
    torch.testing.assert_close(*gradients)


@pytest.mark.unchecked
@pytest.mark.parametrize("bad", [torch.zeros(3), torch.zeros(2, 3), torch.zeros(0, 0)])
def test_logits_that_are_no_square_matrix_are_refused(bad: Any) -> None:
    for family in (c.Permutation, lambda **given: c.GumbelSinkhorn(**given, temperature=1.0)):
        with pytest.raises(ValueError, match=r"^logits must have two last axes of n rows and n columns, got shape "):
            family(logits=bad)


def test_infinite_logits_and_values_without_a_node_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^logits must be finite, got -inf at index \(0, 1\)$"):
        c.Permutation(logits=torch.tensor([[0.0, -math.inf], [0.0, 0.0]]))
    relaxed = c.Permutation(logits=torch.zeros(2, 2)).relax(1.0)
    with pytest.raises(ValueError, match=r"^a relaxed permutation does not determine its node"):
        relaxed.log_prob(relaxed.sample())
    with pytest.raises(
        ValueError, match=r"^a permutation must have at most 2\^20 states to be enumerated, got 3628800$"
    ):
        c.Permutation(logits=torch.zeros(10, 10)).enumerate_support()
    with pytest.raises(NotImplementedError, match=r"^Permutation has no entropy in closed form: draw it in"):
        c.Permutation(logits=torch.zeros(2, 2)).entropy()


def test_a_missing_scipy_is_explained() -> None:
    with (
        mock.patch.dict(sys.modules, {"scipy.optimize": None}),
        pytest.raises(ImportError, match=r"^a matching needs scipy, which is not installed: run pip install scipy$"),
    ):
        c.Permutation(logits=torch.zeros(2, 2)).sample()
