"""The two propositions of the paper: reparameterisation, rounding, zero temperature, eventual log-convexity."""

from unittest import mock

import pytest
import torch
from torch import Tensor

import concretely as c
from concretely.functional.edge import near_one, near_zero
from tests.budget import assert_frequency, assert_mean, assert_uniform
from tests.cases import DTYPES, named

DRAWS = 100_000


@pytest.mark.parametrize("temperature", [0.1, 2 / 3, 2.0])
@pytest.mark.parametrize("logit", [-10.0, -1.0, 0.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_draws_on_the_line_follow_the_distribution_function(
    logit: float, temperature: float, dtype: torch.dtype
) -> None:
    logits = torch.tensor(logit, dtype=dtype)
    for variable in (
        c.Logistic(logits=logits, temperature=temperature),
        *(
            c.CircuitNode(logits=logits, temperature=temperature, noise=noise)
            for noise in ("normal", "laplace", "cauchy")
        ),
    ):
        assert_uniform(variable.cdf(variable.sample((DRAWS,))), f"{variable} {logit}")
    for variable in (
        c.BinaryConcrete(logits=logits, temperature=temperature),
        *(
            c.BinaryCircuit(logits=logits, temperature=temperature, noise=noise)
            for noise in ("normal", "laplace", "cauchy")
        ),
    ):
        # draws on the edge have a cell in common, of which only the probability is known
        value, low, high = variable.sample((DRAWS,)), near_zero(dtype), near_one(dtype)
        lower, upper = value.double() <= low.last, value.double() >= 1 - high.last
        wide = variable.node.cdf(torch.tensor([low.border, 1 - high.border], dtype=torch.float64).logit())
        assert_frequency(int(lower.sum()), of=DRAWS, probability=wide[0].item())
        assert_frequency(int(upper.sum()), of=DRAWS, probability=1 - wide[1].item())
        for threshold in (1e-6, 0.01, 0.3, 0.5, 0.9):
            below = variable.cdf(torch.tensor(threshold, dtype=dtype)).item()
            assert_frequency(int((value <= threshold).sum()), of=DRAWS, probability=below)
    gumbel = c.Gumbel(logits)
    assert_uniform(gumbel.cdf(gumbel.sample((DRAWS,))), "Gumbel")


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0, 2.0])
def test_draws_on_the_simplex_follow_the_density(temperature: float) -> None:
    # for independent values of p and q the mean of q/p under p is 1, and of any function times it the mean under q
    logits = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64).log()
    for build in (named(c.ExpConcrete), named(c.ExpLogisticNormal)):
        p, q = build(logits, temperature), build(logits + torch.tensor([0.3, 0.0, -0.2]).double(), temperature)
        value = p.sample((DRAWS,))
        weight = (q.log_prob(value) - p.log_prob(value)).exp()
        assert_mean(weight, 1, f"{build.__name__}")


@pytest.mark.parametrize("noise", ["logistic", "normal", "laplace", "cauchy"])
@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
def test_rounding_a_binary_relaxation_gives_its_bernoulli(noise: str, temperature: float) -> None:
    logits = torch.tensor([-700.0, -50.0, -3.0, 0.0, 3.0, 50.0], dtype=torch.float64)
    logits = logits[1:] if noise == "cauchy" else logits
    below = c.BinaryCircuit(logits=logits, temperature=temperature, noise=noise).cdf(torch.full_like(logits, 0.5))
    torch.testing.assert_close(below, torch.sigmoid(-logits), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1e-3, 0.1, 1.0, 10.0])
def test_relaxed_and_discrete_draws_of_shared_noise_agree(temperature: float, dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0, 0.5], [50.0, -50.0, 0.0, 49.0], [1e3, 999.0, 1e3, -1e3]], dtype=dtype)
    for mass in (c.OneHotCategorical(logits=logits), c.Bernoulli(logits=logits)):
        noise = mass.noise((1000,))
        hard, soft = mass.push(noise), mass.relax(temperature).push(noise)
        if isinstance(mass, c.Bernoulli):
            # rounding may end in the middle, but never on the other side
            assert ((soft - 0.5) * (hard - 0.5) >= 0).all()
        else:
            # and the largest entry stays alone in being so
            assert torch.equal(hard.argmax(-1), soft.argmax(-1))
    cube = c.Hypercube(logits=logits)
    noise = cube.noise((1000,))
    hard, soft = cube.push(noise), cube.relax(min(temperature, 1e-3)).push(noise)
    assert (hard * soft >= 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cold", [0.0, torch.tensor(0.0)], ids=["number", "tensor"])
def test_temperature_zero_is_the_discrete_limit(cold: float | Tensor, dtype: torch.dtype) -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=dtype, requires_grad=True)
    for mass in (
        c.Bernoulli(logits=logits),
        c.OneHotCategorical(logits=logits),
        c.Hypercube(logits=logits),
        c.Hypercube(logits=logits.unsqueeze(-1)),
    ):
        noise = mass.noise((100,))
        limit = mass.relax(cold).push(noise)
        assert torch.equal(limit, mass.push(noise))
        if limit.requires_grad:
            (gradient,) = torch.autograd.grad(limit.sum(), logits)
            assert (gradient == 0).all()


def test_nodes_at_temperature_zero_are_infinite_with_the_sign_of_their_noise() -> None:
    node = c.Logistic(logits=torch.zeros(3), temperature=0.0).push(torch.tensor([-1.0, 0.0, 1.0]))
    assert node.tolist() == [-torch.inf, torch.inf, torch.inf]
    node = c.ExpConcrete(logits=torch.zeros(3), temperature=0.0).push(torch.tensor([-1.0, 0.0, 1.0]))
    assert node.tolist() == [-torch.inf, -torch.inf, 0.0]


def test_some_members_of_a_batch_may_be_at_temperature_zero() -> None:
    variable = c.Concrete(logits=torch.zeros(2, 3), temperature=torch.tensor([0.0, 1.0]))
    value = variable.rsample((50,))
    assert ((value[:, 0] == 0) | (value[:, 0] == 1)).all()
    assert ((value[:, 1] > 0) & (value[:, 1] < 1)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_categories_are_drawn_with_their_probabilities_among_a_thousand(dtype: torch.dtype) -> None:
    logits = torch.zeros(1024, dtype=dtype)
    logits[0] = 7
    probability = c.OneHotCategorical(logits=logits.double()).probs[0].item()
    draws = 4000
    for variable in (
        c.OneHotCategorical(logits=logits),
        c.ExpConcrete(logits=logits, temperature=10.0),
        c.Concrete(logits=logits, temperature=0.5),
    ):
        hits = int((variable.sample((draws,)).argmax(-1) == 0).sum())
        assert_frequency(hits, of=draws, probability=probability, what=f"{variable}")
    corner = c.Hypercube(logits=logits).sample((draws,))
    assert_frequency(int((corner == -1).all(-1).sum()), of=draws, probability=probability, what="Hypercube")


def test_rare_events_are_within_reach_of_float32_noise() -> None:
    # once in 6e8 and in 3e9: noise of 24 bits, which ends at 16.6, never gets there
    words = torch.tensor([-1, -1, 0, 0], dtype=torch.int32).view(torch.int64)
    with mock.patch.object(torch, "randint", return_value=words):
        logits = torch.full((4,), -20.0)
        assert c.Bernoulli(logits=logits).sample().tolist() == [0, 0, 1, 1]
    with mock.patch.object(torch, "randint", return_value=torch.tensor([2**31, 0]).int().view(torch.int64)):
        assert c.OneHotCategorical(logits=torch.tensor([0.0, -20.0])).sample().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("noise", ["logistic", "normal", "laplace", "cauchy"])
def test_both_tails_of_the_noise_of_a_circuit_are_alike(noise: str) -> None:
    extremes = torch.tensor([-(2**63), 2**63 - 1])
    with mock.patch.object(torch, "randint", return_value=extremes):
        low, high = c.CircuitNode(logits=torch.zeros(2), temperature=1.0, noise=noise).noise().tolist()
    assert low == pytest.approx(-high, rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_logits_that_a_narrow_dtype_cannot_subtract_make_no_difference(dtype: torch.dtype) -> None:
    logits = torch.full((64,), 0.0156, dtype=dtype)
    logits[0] = 4.16
    mass = c.OneHotCategorical(logits=logits)
    noise = mass.noise((20_000,))
    hard, soft = mass.push(noise), mass.relax(0.5).push(noise)
    assert torch.equal(hard.argmax(-1), soft.argmax(-1))
    probability = c.OneHotCategorical(logits=logits.double()).probs[0].item()
    assert_frequency(int(hard[:, 0].sum()), of=20_000, probability=probability)


def curvature(variable: c.Concrete, x: Tensor, direction: Tensor) -> Tensor:
    """The second derivative of the log density along directions within the simplex."""

    step = torch.zeros(x.shape[0], dtype=x.dtype, requires_grad=True)
    log_prob = variable.log_prob(x + step.unsqueeze(-1) * direction)
    (slope,) = torch.autograd.grad(log_prob.sum(), step, create_graph=True)
    return torch.autograd.grad(slope.sum(), step)[0]


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_density_is_log_convex_up_to_the_temperature_of_the_proposition(n: int) -> None:
    x = torch.distributions.Dirichlet(torch.full((n,), 0.5, dtype=torch.float64)).sample((2000,)).clamp(min=1e-6)
    x = x / x.sum(-1, keepdim=True)
    direction = torch.randn(2000, n, dtype=torch.float64) * x
    direction = direction - x * direction.sum(-1, keepdim=True)
    for temperature in (0.05 / (n - 1), 0.5 / (n - 1), 1 / (n - 1)):
        logits = 3 * torch.randn(2000, n, dtype=torch.float64)
        second = curvature(c.Concrete(logits=logits, temperature=temperature, validate_args=False), x, direction)
        assert (second >= -1e-9).all()


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_threshold_of_log_convexity_is_tight(n: int) -> None:
    # with one category far more probable than the rest and its entry small, the density is log-concave along it
    temperature = 1.01 / (n - 1)
    logits = torch.zeros(1, n, dtype=torch.float64)
    logits[0, 0] = 60
    x = torch.full((1, n), 1 / (n - 1), dtype=torch.float64)
    x[0, 0] = 1e-6
    x[0, 1:] = (1 - 1e-6) / (n - 1)
    direction = torch.full((1, n), -1 / (n - 1), dtype=torch.float64)
    direction[0, 0] = 1
    assert curvature(c.Concrete(logits=logits, temperature=temperature, validate_args=False), x, direction).item() < 0
    at = curvature(c.Concrete(logits=logits, temperature=1 / (n - 1), validate_args=False), x, direction).item()
    assert at >= -1  # rounding, of terms as large as 1/x² or 1e12


def test_binary_density_is_log_convex_up_to_temperature_one_and_no_further() -> None:
    x = torch.linspace(0.001, 0.999, 999, dtype=torch.float64).unsqueeze(-1)
    x = torch.cat([x, 1 - x], -1)
    direction = torch.tensor([1.0, -1.0], dtype=torch.float64).expand_as(x)
    for logit in (-5.0, 0.0, 2.0):
        logits = torch.tensor([logit, 0.0], dtype=torch.float64)
        assert (curvature(c.Concrete(logits=logits, temperature=1.0, validate_args=False), x, direction) >= -1e-9).all()
        assert (curvature(c.Concrete(logits=logits, temperature=1.01, validate_args=False), x, direction) < 0).any()
