"""Densities integrate to one, agree with the paper's formulas, and lose nothing in float32."""

import math

import pytest
import torch
from torch import Tensor

import concretely as c
from tests.cases import CATEGORIES, LOG_SPACE, TEMPERATURES, Case, each, named, sweep


def plane(low: float, high: float, step: float) -> tuple[Tensor, float]:
    """Points of the simplex by their two log-ratios to the last entry, and the area each stands for there."""
    axis = torch.arange(low, high, step, dtype=torch.float64)
    ratios = torch.cartesian_prod(axis, axis)
    return torch.cat([ratios, torch.zeros(len(ratios), 1, dtype=torch.float64)], -1).log_softmax(-1), step * step


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2 / 3, 1.0, 2.0])
@pytest.mark.parametrize("logit", [-8.0, 0.0, 3.0])
def test_density_of_a_node_on_the_line_integrates_to_one(logit: float, temperature: float) -> None:
    variables = [c.Gumbel(torch.tensor(logit, dtype=torch.float64))]
    for build in (named(c.Logistic), named(c.CircuitNode)):
        variables.append(build(torch.tensor(logit, dtype=torch.float64), temperature))
    variables.append(
        c.CircuitNode(logits=torch.tensor(logit, dtype=torch.float64), temperature=temperature, noise="laplace")
    )
    for variable in variables:
        value = torch.arange(-500, 500, 0.002, dtype=torch.float64)
        assert abs(variable.log_prob(value).exp().sum().item() * 0.002 - 1) < 1e-5, variable


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("logit", [-3.0, 0.0, 2.0])
@pytest.mark.parametrize("noise", ["logistic", "normal", "laplace"])
def test_density_on_the_unit_interval_integrates_to_one(noise: str, logit: float, temperature: float) -> None:
    variable = c.BinaryCircuit(logits=torch.tensor(logit, dtype=torch.float64), temperature=temperature, noise=noise)
    node = torch.arange(-20, 20, 0.001, dtype=torch.float64)
    value = torch.sigmoid(node)
    weight = value * torch.sigmoid(-node) * 0.001
    low, high = variable.cdf(value[0]).item(), variable.cdf(value[-1]).item()
    assert abs((variable.log_prob(value).exp() * weight).sum().item() - (high - low)) < 1e-4


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_density_on_the_simplex_integrates_to_one(temperature: float) -> None:
    logits = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64).log()
    node, area = plane(-90 / temperature, 90 / temperature, 0.25 / temperature)
    for build in (named(c.Concrete), named(c.LogisticNormal)):
        variable = build(logits, temperature, validate_args=False)
        # in the plane of log-ratios an area of the simplex is the product of the three entries
        log_weight = node.sum(-1)
        total = (variable.log_prob(node.exp()) + log_weight).exp()
        assert abs(total.nansum().item() * area - 1) < 1e-9, build


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_density_of_the_logarithm_integrates_to_one_in_the_measure_carried_over_from_the_simplex(
    temperature: float,
) -> None:
    logits = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64).log()
    node, area = plane(-90 / temperature, 90 / temperature, 0.25 / temperature)
    # dy1 dy2 = x3 times the area in the plane of log-ratios, and the measure divides by x3 again
    for build in (named(c.ExpConcrete), named(c.ExpLogisticNormal)):
        variable = build(logits, temperature, validate_args=False)
        assert abs(variable.log_prob(node).exp().sum().item() * area - 1) < 1e-9, build


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("temperature", [0.1, 2 / 3, 2.0])
def test_concrete_density_is_the_formula_of_the_paper(n: int, temperature: float) -> None:
    logits = torch.randn(n, dtype=torch.float64)
    x = torch.distributions.Dirichlet(torch.ones(n, dtype=torch.float64)).sample((50,))
    alpha = logits.exp()
    weights = alpha * x**-temperature
    product = (alpha * x ** (-temperature - 1) / weights.sum(-1, keepdim=True)).prod(-1)
    formula = math.factorial(n - 1) * temperature ** (n - 1) * product
    torch.testing.assert_close(
        c.Concrete(logits=logits, temperature=temperature).log_prob(x).exp(), formula, rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("temperature", [0.1, 2 / 3, 2.0])
def test_binary_concrete_density_is_the_formula_of_the_paper(temperature: float) -> None:
    x, alpha = torch.linspace(0.01, 0.99, 99, dtype=torch.float64), 1.7
    top = temperature * alpha * (x * (1 - x)) ** (-temperature - 1)
    formula = top / (alpha * x**-temperature + (1 - x) ** -temperature) ** 2
    variable = c.BinaryConcrete(logits=torch.tensor(alpha, dtype=torch.float64).log(), temperature=temperature)
    torch.testing.assert_close(variable.log_prob(x).exp(), formula, rtol=1e-9, atol=0)


def test_binary_is_the_case_of_two_categories() -> None:
    logits, temperature = torch.randn(20, 2, dtype=torch.float64), 0.7
    value = c.Concrete(logits=logits, temperature=temperature).sample().clone()
    binary = c.BinaryConcrete(logits=logits[:, 0] - logits[:, 1], temperature=temperature)
    torch.testing.assert_close(
        c.Concrete(logits=logits, temperature=temperature).log_prob(value), binary.log_prob(value[:, 0])
    )


@each(*LOG_SPACE)
def test_float32_log_density_is_within_a_millionth_of_float64(case: Case) -> None:
    for n in CATEGORIES if case.has_categories else (2,):
        for temperature in TEMPERATURES:
            logits = sweep(case, n, dtype=torch.float32, temperature=temperature)
            value = case.build(logits, temperature).sample((32,))
            other = torch.roll(logits, 1, 0)  # also where the value is no draw of the variable
            for scored in (logits, other):
                narrow = case.build(scored, temperature).log_prob(value).double()
                exact = case.build(scored.double(), temperature, validate_args=False).log_prob(value.double())
                torch.testing.assert_close(narrow, exact, rtol=1e-6, atol=0)


@each(*LOG_SPACE)
def test_log_density_drawn_with_the_value_is_that_of_the_noise_in_float64(case: Case) -> None:
    for n in CATEGORIES if case.has_categories else (2,):
        for temperature in TEMPERATURES:
            logits = sweep(case, n, dtype=torch.float32, temperature=temperature)
            variable = case.build(logits, temperature)
            noise = variable.noise((8,))
            narrow, exact = (
                variable._log_density_of_noise(noise.to(d, copy=True)) for d in (torch.float32, torch.float64)
            )
            # its terms are of order n, and may cancel
            torch.testing.assert_close(narrow.double(), exact, rtol=1e-6, atol=1e-6 * n)
