"""Entropies, modes, moments and distribution functions agree with the densities and masses they belong to."""

import math
from collections.abc import Callable

import pytest
import torch

import concretely as c
from tests.budget import assert_mean
from tests.cases import MASSES, NODES, Case, each, named

LINE = [
    c.Gumbel(torch.tensor(0.7, dtype=torch.float64)),
    *(
        c.Logistic(logits=torch.tensor(0.7, dtype=torch.float64), temperature=temperature)
        for temperature in (0.3, 1.0, 2.0)
    ),
    *(
        c.CircuitNode(logits=torch.tensor(0.7, dtype=torch.float64), temperature=0.6, noise=n)
        for n in ("logistic", "normal", "laplace")
    ),
]


@pytest.mark.parametrize("variable", LINE, ids=str)
def test_moments_on_the_line_are_integrals_of_the_density(variable: c.Logistic) -> None:
    value = torch.arange(-200, 200, 1e-3, dtype=torch.float64)
    log_prob = variable.log_prob(value)
    weight = log_prob.exp() * 1e-3
    mean = (weight * value).sum()
    torch.testing.assert_close(variable.mean, mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variable.variance, (weight * (value - mean).square()).sum(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variable.entropy(), -(weight * log_prob).nansum(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variable.cdf(value[200_500]), weight[:200_500].sum(), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("variable", LINE, ids=str)
def test_mode_has_the_highest_density(variable: c.Logistic) -> None:
    around = variable.mode + torch.linspace(-3, 3, 61, dtype=torch.float64)
    assert (variable.log_prob(around) <= variable.log_prob(variable.mode)).all()


@pytest.mark.parametrize("build", [named(c.ExpConcrete), named(c.ExpLogisticNormal)])
def test_mode_on_the_log_simplex_has_the_highest_density(build: Callable[..., c.ExpConcrete]) -> None:
    variable = build(torch.randn(5, dtype=torch.float64), 0.4)
    around = (variable.mode + 0.1 * torch.randn(200, 5, dtype=torch.float64)).log_softmax(-1)
    assert (variable.log_prob(around) <= variable.log_prob(variable.mode)).all()


@each(*(case for case in NODES if "cauchy" not in case.name))
def test_entropy_is_the_mean_of_minus_the_log_density(case: Case) -> None:
    for temperature in (0.1, 1.0, 3.0):
        variable = case.build(case.logits(6), temperature)
        assert_mean(-variable.rsample_and_log_prob((50_000,))[1], variable.entropy().item(), f"{variable}")


def test_entropy_of_two_categories_is_the_binary_one() -> None:
    for temperature in (0.1, 2 / 3, 5.0):
        pair, one = (
            c.ExpConcrete(logits=torch.zeros(2), temperature=temperature),
            c.Logistic(logits=torch.tensor(3.0), temperature=temperature),
        )
        torch.testing.assert_close(pair.entropy(), one.entropy())


@each(*MASSES)
def test_mass_of_all_states_is_one_and_gives_the_moments(case: Case) -> None:
    for n in (2, 4, 64) if case.has_categories else (2,):
        variable = case.build(case.logits(n, batch=(3,)))
        states = variable.enumerate_support()
        mass = variable.log_prob(states).exp()
        torch.testing.assert_close(mass.sum(0), torch.ones(3, dtype=torch.float64))
        weight = mass.reshape(mass.shape + (1,) * len(variable.event_shape))
        mean = (weight * states).sum(0)
        torch.testing.assert_close(variable.mean, mean)
        torch.testing.assert_close(variable.variance, (weight * (states - mean).square()).sum(0))
        torch.testing.assert_close(variable.entropy(), -(mass * mass.log()).sum(0))
        torch.testing.assert_close(variable.log_prob(variable.mode), mass.amax(0).log())
        assert variable.enumerate_support(expand=False).shape[1] == 1


def test_impossible_states_have_no_mass_and_add_no_entropy() -> None:
    variable = c.OneHotCategorical(logits=torch.tensor([0.0, 0.0, -math.inf]))
    assert variable.probs.tolist() == [0.5, 0.5, 0.0]
    assert variable.entropy().item() == pytest.approx(math.log(2))
    assert variable.log_prob(torch.tensor([0.0, 0.0, 1.0])).item() == -math.inf
    assert variable.sample((1000,))[:, 2].sum() == 0
    certain = c.Bernoulli(logits=torch.tensor([math.inf, -math.inf]))
    assert certain.sample().tolist() == [1, 0]
    assert certain.entropy().tolist() == [0, 0]


@pytest.mark.parametrize("noise", ["logistic", "normal", "laplace", "cauchy"])
def test_icdf_inverts_cdf(noise: str) -> None:
    for logit in (-5.0 if noise == "cauchy" else -30.0, 0.0, 5.0):  # the location of Cauchy noise is e³⁰
        node = c.CircuitNode(logits=torch.tensor(logit, dtype=torch.float64), temperature=0.3, noise=noise)
        relaxed = c.BinaryCircuit(logits=torch.tensor(logit, dtype=torch.float64), temperature=3.0, noise=noise)
        p = torch.tensor([1e-12, 1e-3, 0.2, 0.5, 0.9, 1 - 1e-9], dtype=torch.float64)
        torch.testing.assert_close(node.cdf(node.icdf(p)), p, rtol=1e-6, atol=0)
        value = relaxed.icdf(p)
        inside = (value > 1e-250) & (value < 1 - 1e-9)  # nearer to the edge a value is too coarse
        torch.testing.assert_close(relaxed.cdf(value)[inside], p[inside], rtol=1e-6, atol=0)


def test_probabilities_need_not_be_normalised_and_give_the_moments() -> None:
    probs = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    torch.testing.assert_close(c.OneHotCategorical(probs=probs / 2).probs, probs)
    torch.testing.assert_close(c.Logistic(probs=probs, temperature=0.5).cdf(torch.zeros(3).double()), 1 - probs)
    quarters = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    torch.testing.assert_close(c.Hypercube(probs=quarters).mean, torch.tensor([0.4, 0.2], dtype=torch.float64))
    torch.testing.assert_close(c.Hypercube(probs=probs.unsqueeze(-1)).mean.squeeze(-1), 2 * probs - 1)


def test_relax_and_discretize_are_inverse() -> None:
    logits = torch.randn(3, 4)
    for mass in (c.Bernoulli(logits=logits), c.OneHotCategorical(logits=logits), c.Hypercube(logits=logits)):
        back = mass.relax(0.5).discretize()
        assert type(back) is type(mass)
        assert torch.equal(back.logits, mass.logits)


def test_two_states_of_a_hypercube_are_one_log_odds() -> None:
    pair, one = c.Hypercube(logits=torch.tensor([1.0, 3.5])), c.Hypercube(logits=torch.tensor([2.5]))
    assert torch.equal(pair.logits, one.logits)
    noise = one.relax(0.5).noise((100,))
    assert torch.equal(one.push(noise), 2 * c.Bernoulli(logits=torch.tensor(2.5)).push(noise).unsqueeze(-1) - 1)
    torch.testing.assert_close(
        one.relax(0.5).push(noise),
        2 * c.BinaryConcrete(logits=torch.tensor(2.5), temperature=0.5).push(noise).unsqueeze(-1) - 1,
    )


def test_circuit_takes_any_distribution_as_its_noise() -> None:
    law = torch.distributions.Normal(torch.tensor(0.3, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64))
    logits = torch.tensor([-2.0, 0.0, 1.5], dtype=torch.float64)
    node = c.CircuitNode(logits=logits, temperature=0.7, noise=law)
    torch.testing.assert_close(node.cdf(torch.zeros(3, dtype=torch.float64)), torch.sigmoid(-logits))
    value, log_prob = node.rsample_and_log_prob((1000,))
    torch.testing.assert_close(node.log_prob(value), log_prob)
    torch.testing.assert_close(node.mode, node.mean)
    torch.testing.assert_close(node.variance, torch.full((3,), 4 / 0.49, dtype=torch.float64))
