"""Biased estimators: what their expected gradient, an integral over the noise of one unit, tends to in the cold."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

import concretely as c
from tests.estimator.expectation import (
    Gradient,
    Loss,
    flat,
    forced_noise,
    gradient_of,
    logistic_quadrature,
    mean_gradient,
)
from tests.estimator.target import BITS, DOUBLE, UNIT, log_sign, network, randomised

TEMPERATURES = (1.0, 1 / 4, 1 / 16, 1 / 32, 1 / 64)
LOGIT = 0.7
COSTS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda b: 3 * b + 1,
    "quadratic": lambda b: (b - 0.45).square(),
    "cubic": lambda b: (b - 0.45) ** 3,
    "exponential": lambda b: (1.5 * b).exp(),
}


class Toss(nn.Module):
    """A program with one binary unit, or with one of two categories, and a cost of its being on."""

    def __init__(self, cost: Callable[[Tensor], Tensor], *, categories: bool = False) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor([LOGIT], dtype=DOUBLE))
        self.cost, self.categories = cost, categories

    def forward(self, draw: c.Draw) -> Tensor:
        """The cost."""
        if self.categories:
            code = draw("b", c.OneHotCategorical(logits=torch.cat([self.logit, torch.zeros_like(self.logit)])))
            return self.cost(code[..., 0])
        return self.cost(draw("b", c.Bernoulli(logits=self.logit))).sum(-1)


def over_noise(
    target: nn.Module, estimator: c.Estimator, *inputs: Tensor, logit: float = LOGIT, temperature: float = 1.0
) -> Gradient:
    """The gradient that an estimator gives on average over the noise of one unit."""
    points, weights = logistic_quadrature(-logit, temperature)
    loss = Loss(target, estimator, samples=1, objective=None)
    return mean_gradient(loss, inputs, forced_noise, points, weights)


def bias(actual: Gradient, expected: Gradient) -> float:
    """The size of the difference of two gradients, in that of the one expected."""
    return ((flat(actual) - flat(expected)).norm() / flat(expected).norm()).item()


def assert_vanishes(biases: Sequence[float]) -> None:
    """Fail unless a bias at last falls in proportion to the temperature or faster.

    In the warm it may rise, or change its sign on the way.
    """
    assert all(colder < 0.7 * warmer for warmer, colder in pairwise(biases[-3:])), biases
    assert biases[-1] < 0.1 * max(biases), biases


def exact(target: nn.Module, *inputs: Tensor) -> Gradient:
    """The exact gradient of the discrete graph."""
    return gradient_of(c.estimate(target, *inputs, estimator=c.Exact()).loss, target)


def test_quadrature_over_logistic_noise_has_its_probability_and_variance() -> None:
    for threshold, width in ((-LOGIT, 1.0), (3.0, 1 / 16)):
        points, weights = logistic_quadrature(threshold, width)
        torch.testing.assert_close(weights.sum(), torch.ones((), dtype=DOUBLE), rtol=1e-13, atol=0)
        torch.testing.assert_close(
            weights @ points.square(), torch.tensor(torch.pi**2 / 3, dtype=DOUBLE), rtol=1e-12, atol=0
        )
        on = weights[points > threshold].sum()
        torch.testing.assert_close(on, torch.sigmoid(torch.tensor(-threshold, dtype=DOUBLE)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("cost", ["quadratic", "cubic", "exponential"])
@pytest.mark.parametrize("categories", [False, True])
def test_bias_of_the_relaxed_gradient_of_a_cost_falls_to_zero_with_the_temperature(cost: str, categories: bool) -> None:
    program = Toss(COSTS[cost], categories=categories)
    assert_vanishes(
        [
            bias(over_noise(program, c.Pathwise(temperature), temperature=temperature), exact(program))
            for temperature in TEMPERATURES
        ]
    )


def test_bias_of_the_relaxed_gradient_of_a_prediction_falls_to_zero_with_the_temperature() -> None:
    model, context, x = randomised(c.prediction("2V-1H-2V")), BITS[:1, :2], BITS[:1, 1:]
    logit = network(model.p.layers[0], 2 * context[0] - 1).item()
    biases = []
    for temperature in TEMPERATURES:
        estimator = c.Pathwise(temperature)
        actual = over_noise(model, estimator, context, x, logit=logit, temperature=temperature)
        biases.append(bias(actual, exact(model, context, x)))
    assert_vanishes(biases)


def unit(seed: int) -> tuple[c.Model, Tensor, float]:
    """A model with one binary unit, a data point, and the logit of its posterior."""
    model, x = UNIT.made(seed), UNIT.inputs[0][:1]
    return model, x, network(model.q.layers[0], 2 * x[0] - 1).item()


@pytest.mark.parametrize("kl", ["mass", "analytic"])
@pytest.mark.parametrize("seed", range(3))
def test_bias_of_gumbel_softmax_falls_to_zero_with_the_temperature(kl: str, seed: int) -> None:
    model, x, logit = unit(seed)
    biases = []
    for temperature in TEMPERATURES:
        actual = over_noise(model, c.GumbelSoftmax(temperature, kl=kl), x, logit=logit, temperature=temperature)
        biases.append(bias(actual, exact(model, x)))
    assert_vanishes(biases)


def node_divergence(model: c.Model, x: Tensor) -> Tensor:
    """The divergence of the logistic nodes of q and p at one temperature, which cancels in it."""
    points, weights = logistic_quadrature(0.0, 1.0)
    shift = network(model.q.layers[0], 2 * x[0] - 1) - model.p.top.logits[0]
    log_density = [logsigmoid(noise) + logsigmoid(-noise) for noise in (points, points + shift)]
    return weights @ (log_density[0] - log_density[1])


def discrete_divergence(model: c.Model, x: Tensor) -> Tensor:
    """The divergence of the units of q and p."""
    posterior, prior = network(model.q.layers[0], 2 * x[0] - 1), model.p.top.logits[0]
    sign = torch.tensor([-1.0, 1.0], dtype=DOUBLE)
    log_q, log_p = logsigmoid(sign * posterior), logsigmoid(sign * prior)
    return log_q.exp() @ (log_q - log_p)


@pytest.mark.parametrize("seed", range(3))
def test_relaxed_bound_tends_to_the_discrete_one_with_the_divergence_of_the_nodes_in_place_of_that_of_the_units(
    seed: int,
) -> None:
    model, x, logit = unit(seed)
    extra = node_divergence(model, x) - discrete_divergence(model, x)
    assert extra > 0  # the node knows more than its rounding
    discrete = exact(model, x)
    limit = gradient_of(c.estimate(model, x, estimator=c.Exact()).loss + extra, model)
    relaxed = [
        over_noise(model, c.Pathwise(temperature), x, logit=logit, temperature=temperature)
        for temperature in TEMPERATURES
    ]
    assert_vanishes([bias(gradient, limit) for gradient in relaxed])
    # so that the bias against the discrete bound remains
    remaining = bias(limit, discrete)
    assert remaining > 0.1
    assert bias(relaxed[-1], discrete) == pytest.approx(remaining, rel=0.3)


def slopes(cost: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """The derivative of a cost at 0 and at 1."""
    at = torch.tensor([0.0, 1.0], dtype=DOUBLE, requires_grad=True)
    (gradient,) = torch.autograd.grad(cost(at).sum(), at)
    return gradient[0].item(), gradient[1].item()


@pytest.mark.parametrize("categories", [False, True])
@pytest.mark.parametrize("cost", list(COSTS))
def test_straight_through_gumbel_softmax_tends_to_the_trapezoidal_rule(cost: str, categories: bool) -> None:
    # at the threshold, where alone a cold relaxation moves, the draw is on half of the time
    program = Toss(COSTS[cost], categories=categories)
    variance = torch.sigmoid(program.logit) * torch.sigmoid(-program.logit)
    limit = {"target.logit": (variance * sum(slopes(COSTS[cost])) / 2).detach()}
    estimates = [
        over_noise(program, c.StraightThroughGumbelSoftmax(temperature), temperature=temperature)
        for temperature in TEMPERATURES
    ]
    assert_vanishes([bias(estimate, limit) for estimate in estimates])
    if cost in ("linear", "quadratic"):  # which the rule integrates exactly
        assert bias(limit, exact(program)) < 1e-12
    else:
        assert bias(estimates[-1], exact(program)) > 0.1


@pytest.mark.parametrize("cost", list(COSTS))
def test_straight_through_gives_the_mean_slope_in_place_of_the_rise(cost: str) -> None:
    program = Toss(COSTS[cost])
    on = torch.sigmoid(program.logit)
    low, high = slopes(COSTS[cost])
    expected = {"target.logit": (on * (1 - on) * (on * high + (1 - on) * low)).detach()}
    actual = over_noise(program, c.StraightThrough())
    assert bias(actual, expected) < 1e-10


def test_straight_through_is_exact_for_a_linear_cost_and_biased_for_a_quadratic_one() -> None:
    linear, quadratic = Toss(COSTS["linear"]), Toss(COSTS["quadratic"])
    assert bias(over_noise(linear, c.StraightThrough()), exact(linear)) < 1e-10
    on = torch.sigmoid(quadratic.logit)
    difference = flat(over_noise(quadratic, c.StraightThrough())) - flat(exact(quadratic))
    torch.testing.assert_close(difference, (on * (1 - on) * (2 * on - 1)).detach())


@pytest.mark.parametrize("kl", ["mass", "analytic"])
@pytest.mark.parametrize("build", [c.StraightThrough, lambda kl: c.StraightThroughGumbelSoftmax(1 / 16, kl)])
def test_straight_through_has_the_exact_gradient_of_the_likelihood_in_what_follows_the_draw(
    build: Callable[..., c.Estimator], kl: str
) -> None:
    model, x, logit = unit(0)
    actual = over_noise(model, build(kl), x, logit=logit, temperature=1 / 16)
    expected = exact(model, x)
    for name in ("target.p.visible.network.0.weight", "target.p.visible.network.0.bias", "target.p.top.logits"):
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-9, atol=1e-9)


def test_exact_gradient_of_one_unit_is_its_rise_times_its_variance() -> None:
    for name, cost in COSTS.items():
        program = Toss(cost)
        on = torch.sigmoid(program.logit).detach()
        rise = cost(torch.ones((), dtype=DOUBLE)) - cost(torch.zeros((), dtype=DOUBLE))
        torch.testing.assert_close(exact(program)["target.logit"], on * (1 - on) * rise, msg=name)


def test_divergences_by_hand_are_those_of_the_exact_bound() -> None:
    model, x, logit = unit(0)
    on = torch.sigmoid(torch.tensor(logit, dtype=DOUBLE))
    fit = [log_sign(2 * x[0] - 1, network(model.p.visible, torch.tensor([z], dtype=DOUBLE))) for z in (-1.0, 1.0)]
    expected = (1 - on) * fit[0] + on * fit[1] - discrete_divergence(model, x)
    torch.testing.assert_close(c.estimate(model, x, estimator=c.Exact()).bound[0], expected.detach())
