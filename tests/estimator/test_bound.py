"""Which relaxed objectives are lower bounds, and of what: integrals over the noise of one unit."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

import concretely as c
from tests.estimator.expectation import forced_noise, logistic_quadrature
from tests.estimator.target import DOUBLE, UNIT, network

X = torch.tensor([1.0, 1.0], dtype=DOUBLE)


def expected_bound(model: c.Model, estimator: c.Estimator, x: Tensor, samples: int, width: float) -> float:
    """The objective of a data point, on average over the noise of all samples."""
    logit = network(model.q.layers[0], 2 * x - 1).item()
    points, weights = logistic_quadrature(-logit, width, order=16 if samples == 1 else 6)
    grid = torch.cartesian_prod(*[points] * samples).view(-1, samples)
    weight = torch.cartesian_prod(*[weights] * samples).view(-1, samples).prod(-1)
    with torch.no_grad(), forced_noise(grid.T.unsqueeze(-1)):
        bound = c.estimate(model, x.expand(len(grid), -1), estimator=estimator, samples=samples).bound
    return (weight @ bound).item()


def log_fit(model: c.Model, x: Tensor, state: Tensor) -> Tensor:
    """The log probability of a data point for every state of the unit."""
    decoder = model.p.visible.network[0]
    return logsigmoid((2 * x - 1) * (state.unsqueeze(-1) @ decoder.weight.T + decoder.bias)).sum(-1).detach()


def relaxed_log_likelihood(model: c.Model, x: Tensor, temperature: float) -> float:
    """The log of the integral of the relaxed prior times the likelihood."""
    prior = model.p.top.logits.item()
    points, weights = logistic_quadrature(-prior, temperature)
    return (weights @ log_fit(model, x, ((points + prior) / temperature / 2).tanh()).exp()).log().item()


def log_likelihood(model: c.Model, x: Tensor) -> float:
    """The log of the sum over the two states."""
    state = torch.tensor([-1.0, 1.0], dtype=DOUBLE)
    return (logsigmoid(state * model.p.top.logits.item()) + log_fit(model, x, state)).logsumexp(0).item()


def by_hand(model: c.Model, x: Tensor, temperature: float, prior_temperature: float) -> float:
    """The relaxed single-sample bound from the densities of the paper."""
    prior, posterior = model.p.top.logits.item(), network(model.q.layers[0], 2 * x - 1).item()
    points, weights = logistic_quadrature(-posterior, temperature)
    node = (points + posterior) / temperature

    def log_density(logit: float, temperature: float) -> Tensor:
        distance = logit - temperature * node
        return torch.tensor(temperature, dtype=DOUBLE).log() + logsigmoid(distance) + logsigmoid(-distance)

    fit = log_fit(model, x, 2 * torch.sigmoid(node) - 1)
    log_w = log_density(prior, prior_temperature) + fit - log_density(posterior, temperature)
    return (weights @ log_w).item()


@pytest.mark.parametrize("temperatures", [(2 / 3, 1 / 2), (1.0, 1.0), (0.2, 0.9), (2.0, 0.5)])
@pytest.mark.parametrize("seed", range(4))
def test_relaxed_bound_grows_with_samples_towards_the_relaxed_log_likelihood(
    seed: int, temperatures: tuple[float, float]
) -> None:
    model, x = UNIT.made(seed), UNIT.inputs[0][seed % 2]
    estimator = c.Pathwise(temperature=temperatures[0], prior_temperature=temperatures[1])
    one, two = (expected_bound(model, estimator, x, samples, min(temperatures)) for samples in (1, 2))
    assert one == pytest.approx(by_hand(model, x, *temperatures), rel=1e-8)
    assert one < two < relaxed_log_likelihood(model, x, temperatures[1])


def test_relaxed_bound_is_the_relaxed_log_likelihood_if_the_unit_explains_nothing() -> None:
    model = UNIT.made()
    with torch.no_grad():  # the prior is then the exact posterior
        model.p.visible.network[0].weight.zero_()
        model.q.layers[0].network[0].weight.zero_()
        model.q.layers[0].network[0].bias.copy_(model.p.top.logits[0])
    for samples in (1, 2):
        actual = expected_bound(model, c.Pathwise(0.5), X, samples, 0.5)
        assert actual == pytest.approx(relaxed_log_likelihood(model, X, 0.5), abs=1e-8)


def test_relaxed_log_likelihood_tends_to_the_discrete_one() -> None:
    for seed in range(3):
        model = UNIT.made(seed)
        gaps = [
            abs(relaxed_log_likelihood(model, X, temperature) - log_likelihood(model, X))
            for temperature in (1 / 4, 1 / 16, 1 / 64, 1 / 256)
        ]
        assert gaps == sorted(gaps, reverse=True)
        assert gaps[-1] < 0.02


def model_with(prior: float, posterior: float, weight: tuple[float, float], bias: float) -> c.Model:
    """A model of one unit whose posterior is the same for all data."""
    model = UNIT.made()
    with torch.no_grad():
        model.p.top.logits.fill_(prior)
        model.p.visible.network[0].weight.copy_(torch.tensor(weight, dtype=DOUBLE).unsqueeze(-1))
        model.p.visible.network[0].bias.fill_(bias)
        model.q.layers[0].network[0].weight.zero_()
        model.q.layers[0].network[0].bias.fill_(posterior)
    return model


def test_relaxed_mass_exceeds_the_relaxed_and_the_discrete_log_likelihood_and_even_zero() -> None:
    # a warm draw from a sure posterior is scored mostly by the state that it gives no probability
    model = model_with(prior=0.0, posterior=8.0, weight=(0.0, 0.0), bias=4.0)
    actual = expected_bound(model, c.GumbelSoftmax(8.0, kl="mass"), X, 1, 8.0)
    assert actual > 1
    assert actual > relaxed_log_likelihood(model, X, 8.0) + 1
    assert actual > log_likelihood(model, X) + 1
    density = expected_bound(model, c.Pathwise(8.0), X, 1, 8.0)
    assert density < relaxed_log_likelihood(model, X, 8.0)


def test_analytic_divergence_exceeds_the_relaxed_and_the_discrete_log_likelihood() -> None:
    # units of prior and posterior are both as good as on, their nodes lie far apart, and the fit tells the difference
    model = model_with(prior=12.0, posterior=4.0, weight=(-20.0, -20.0), bias=14.0)
    actual = expected_bound(model, c.GumbelSoftmax(4.0, kl="analytic"), X, 1, 4.0)
    assert actual > relaxed_log_likelihood(model, X, 4.0) + 1
    assert actual > log_likelihood(model, X) + 1
    density = expected_bound(model, c.Pathwise(4.0), X, 1, 4.0)
    assert density < relaxed_log_likelihood(model, X, 4.0)


def test_analytic_divergence_of_a_discrete_draw_bounds_the_log_likelihood_with_one_sample_only() -> None:
    model = model_with(prior=-2.2, posterior=0.0, weight=(3.0, 3.0), bias=2.0)
    estimator = c.StraightThrough(kl="analytic")
    one, two = (expected_bound(model, estimator, X, samples, 1.0) for samples in (1, 2))
    assert one < log_likelihood(model, X) < two
    bounds = [c.estimate(model, X[None], estimator=estimator, samples=samples).bound_target for samples in (1, 2)]
    assert bounds == ["the log-likelihood", None]


DISCRETE = "the log-likelihood"
BOUNDS = [
    (c.Exact(), DISCRETE),
    (c.Reinforce(), DISCRETE),
    (c.RLOO(), DISCRETE),
    (c.VIMCO(), DISCRETE),
    (c.StraightThrough(), DISCRETE),
    (c.StraightThroughGumbelSoftmax(0.5), DISCRETE),
    (c.Pathwise(0.5), "the relaxed log-likelihood"),
    (c.Pathwise(0.5, kl="mass"), None),
    (c.Pathwise(0.5, kl="analytic"), None),
    (c.GumbelSoftmax(0.5), None),
    (c.GumbelSoftmax(0.5, kl="analytic"), None),
    (c.StraightThroughGumbelSoftmax(0.5, kl="analytic"), None),
]


@pytest.mark.parametrize(("estimator", "target"), BOUNDS, ids=[repr(estimator) for estimator, _ in BOUNDS])
def test_estimate_says_what_it_bounds(estimator: c.Estimator, target: str | None) -> None:
    model, x = UNIT.made(), UNIT.inputs[0]
    assert c.estimate(model, x, estimator=estimator, samples=2).bound_target == target


def test_estimate_of_a_cost_bounds_nothing_and_that_of_nvil_the_log_likelihood() -> None:
    model, x = UNIT.made(), UNIT.inputs[0]

    def program(draw: c.Draw) -> Tensor:
        return draw("b", c.Bernoulli(logits=torch.zeros(2))).sum(-1)

    assert c.estimate(model, x, estimator=c.NVIL(model, x)).bound_target == DISCRETE
    for estimator in (c.Reinforce(), c.Exact(), c.Pathwise(0.5), c.StraightThrough(), c.NVIL(program)):
        assert c.estimate(program, estimator=estimator).bound_target is None


def test_relaxed_prediction_bounds_the_relaxed_log_likelihood_whatever_the_divergence() -> None:
    model = c.prediction("2V-1H-2V")
    for kl in ("density", "mass", "analytic"):
        estimate = c.estimate(model, X[None], X[None], estimator=c.Pathwise(0.5, kl=kl))
        assert estimate.bound_target == "the relaxed log-likelihood"
