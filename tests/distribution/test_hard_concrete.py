"""A hard Concrete variable has atoms at 0 and 1, whose probabilities, density and moments agree with quadrature."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

import concretely as c
from concretely.functional import hard_concrete, logistic
from tests.budget import assert_frequency, assert_mean
from tests.cases import DTYPES

LOGITS = torch.tensor([-8.0, -2.0, 0.0, 0.5, 3.0], dtype=torch.float64)
TEMPERATURES = (0.05, 2 / 3, 1.0, 3.0, 12.0)
STRETCHES = ((-0.1, 1.1), (-0.01, 1.5))


def gate(temperature: Any = 2 / 3, stretch: tuple[float, float] = (-0.1, 1.1), logits: Tensor = LOGITS) -> Any:
    return c.HardConcrete(logits=logits, temperature=temperature, stretch=stretch)


@pytest.mark.parametrize("stretch", STRETCHES)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_atoms_and_density_sum_to_one_and_give_the_moments(temperature: float, stretch: tuple[float, float]) -> None:
    variable = gate(temperature, stretch)
    # the trapezoidal rule over the node, in which the density is smooth
    low, high = stretch
    ends = [math.log((value - low) / (high - value)) for value in (0.0, 1.0)]
    node = torch.linspace(*ends, 40_001, dtype=torch.float64)
    value = (low + (high - low) * torch.sigmoid(node)).clamp(1e-15, 1 - 1e-15).unsqueeze(-1)
    slope = (value - low) * (high - value) / (high - low)
    density = variable.log_prob(value).exp() * slope
    zero, one = (variable.log_prob(torch.full_like(LOGITS, end)).exp() for end in (0.0, 1.0))
    assert ((zero + torch.trapezoid(density, node, dim=0) + one - 1).abs() < 1e-6).all()
    mean = torch.trapezoid(value * density, node, dim=0) + one
    square = torch.trapezoid(value.square() * density, node, dim=0) + one
    torch.testing.assert_close(variable.mean, mean, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(variable.variance, square - mean**2, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(variable.nonzero_probs, 1 - zero, rtol=1e-9, atol=1e-12)


def test_moments_at_a_tensor_of_temperatures_are_those_at_each() -> None:
    temperatures = torch.tensor([0.05, 2 / 3, 1.0, 3.0, 12.0], dtype=torch.float64)
    together = gate(temperatures)
    for place, temperature in enumerate(temperatures.tolist()):
        own = gate(temperature)
        torch.testing.assert_close(together.mean[place], own.mean[place], rtol=1e-12, atol=1e-14)


def test_probability_of_an_open_gate_is_the_formula_of_the_paper() -> None:
    log_odds = LOGITS - 2 / 3 * math.log(0.1 / 1.1)
    torch.testing.assert_close(gate().nonzero_probs, torch.sigmoid(log_odds))
    torch.testing.assert_close(gate().nonzero_log_probs, torch.nn.functional.logsigmoid(log_odds))
    far = gate(logits=torch.tensor([-1e4, 1e4]))
    assert far.nonzero_log_probs.tolist() == pytest.approx([-1e4 + 1.5986, 0.0])


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_cdf_and_its_inverse_agree_with_the_atoms_and_the_median(temperature: float) -> None:
    variable = gate(temperature)
    torch.testing.assert_close(
        variable.cdf(torch.zeros_like(LOGITS)), variable.log_prob(torch.zeros_like(LOGITS)).exp()
    )
    assert (variable.cdf(torch.ones_like(LOGITS)) == 1).all()
    torch.testing.assert_close(variable.median, variable.icdf(torch.full_like(LOGITS, 0.5)))
    assert torch.equal(variable.median > 0, variable.nonzero_probs > 0.5)
    fraction = torch.linspace(0.01, 0.99, 50, dtype=torch.float64).unsqueeze(-1)
    value = variable.icdf(fraction)
    inner = (value > 0) & (value < 1)
    torch.testing.assert_close(variable.cdf(value)[inner], fraction.expand_as(value)[inner])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_draws_are_open_as_often_as_stated_and_scored_as_they_were_drawn(dtype: torch.dtype) -> None:
    variable = gate(logits=torch.tensor([-2.0, 0.0, 2.0], dtype=dtype))
    value, log_prob = variable.rsample_and_log_prob((20_000,))
    assert value.dtype == log_prob.dtype == dtype
    exact = gate(logits=torch.tensor([-2.0, 0.0, 2.0], dtype=torch.float64))
    for place in range(3):
        opened, mean = exact.nonzero_probs[place].item(), exact.mean[place].item()
        assert_frequency(int((value[:, place] != 0).sum()), of=20_000, probability=opened)
        if dtype.itemsize > 2:
            assert_mean(value[:, place], mean)
    atoms = (value == 0) | (value == 1)
    assert 0.3 < atoms.double().mean() < 0.9
    scored = variable.log_prob(value)
    torch.testing.assert_close(
        scored, log_prob, rtol=4 * torch.finfo(dtype).eps, atol=0.05 if dtype.itemsize < 4 else 1e-4
    )


def test_a_clipped_value_has_no_gradient_and_others_that_of_the_definition() -> None:
    logits = LOGITS.clone().requires_grad_()
    variable = gate(logits=logits)
    noise = torch.linspace(-6, 6, 25, dtype=torch.float64).unsqueeze(-1).expand(25, 5)
    value = variable.push(noise)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    sigmoid = torch.sigmoid((LOGITS + noise) * 1.5)
    inner = (value > 0) & (value < 1)
    torch.testing.assert_close(gradient, torch.where(inner, 1.2 * 1.5 * sigmoid * (1 - sigmoid), 0).sum(0).detach())
    rows = LOGITS[1:].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: gate(logits=rows).mean, rows)
    inside = torch.linspace(0.1, 0.9, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda rows: gate(logits=rows).log_prob(inside), rows)


def test_divergence_is_the_mean_log_ratio_of_both_atoms_and_the_density() -> None:
    p, q = gate(0.6), gate(1.3, logits=LOGITS.flip(0))
    value = p.icdf((torch.arange(200_000, dtype=torch.float64).unsqueeze(-1) + 0.5) / 200_000)
    ratio = (p.log_prob(value) - q.log_prob(value)).mean(0)
    torch.testing.assert_close(kl_divergence(p, q), ratio, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"^p and q must have the same stretch to be compared, got "):
        kl_divergence(p, gate(stretch=(-0.2, 1.2)))


def test_temperature_zero_is_a_bernoulli_variable() -> None:
    for zero in (0.0, torch.tensor(0.0)):
        variable = gate(zero)
        noise = variable.noise((20,))
        assert torch.equal(variable.push(noise), variable.discretize().push(noise))
        torch.testing.assert_close(variable.nonzero_probs, torch.sigmoid(LOGITS))
        torch.testing.assert_close(variable.mean, torch.sigmoid(LOGITS))
        assert torch.equal(variable.median, (LOGITS >= 0).double())


@pytest.mark.unchecked
@pytest.mark.parametrize("bad", [(-0.1, 0.9), (0.1, 1.1), (1.1, -0.1), (-math.inf, 1.1), (-0.1, math.nan)])
def test_a_stretch_that_does_not_contain_the_unit_interval_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^stretch must begin below 0 and end above 1, got \("):
        gate(stretch=bad)


@pytest.mark.unchecked
@pytest.mark.parametrize("bad", [0.1, (0.1,), ("-0.1", "1.1"), None])
def test_a_stretch_that_is_no_pair_is_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"^stretch must be a pair of numbers, such as \(-0.1, 1.1\), got "):
        gate(stretch=bad)


@pytest.mark.parametrize("stretch", [(-0.1, 1.1), (-1e-6, 1 + 1e-6)])
def test_a_draw_as_one_node_is_that_of_its_parts(stretch: tuple[float, float]) -> None:
    logits = torch.linspace(-3, 3, 40, requires_grad=True)
    by = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    made = []
    for is_fused in (True, False):
        generator = torch.Generator().manual_seed(0)
        noise = c.Logistic(logits=logits, temperature=0.5).noise((5,), generator=generator)
        if is_fused:
            generator.manual_seed(0)
            value = hard_concrete.draw(logits, 0.5, stretch, sample_shape=(5,), generator=generator)
        else:
            value = hard_concrete.squash(logistic.push(logits, 0.5, noise), stretch, logits.dtype)
        made.append((value, *torch.autograd.grad(value, logits, by)))
    torch.testing.assert_close(made[0], made[1])
    assert torch.equal(made[0][0] == 0, made[1][0] == 0)
    assert torch.equal(made[0][0] == 1, made[1][0] == 1)
