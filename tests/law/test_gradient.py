"""The pathwise gradient is that of the definition, at every logit and in every dtype."""

import pytest
import torch

import concretely as c
from tests.cases import DTYPES, TEMPERATURES, Case, each, named, sweep

BINARY = Case("Logistic", named(c.Logistic), has_categories=False)
CATEGORICAL = Case("ExpConcrete", named(c.ExpConcrete), has_categories=True)


def tolerance(dtype: torch.dtype) -> float:
    """A few roundings."""
    return 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_logistic_node_moves_with_its_logit_at_rate_one_over_the_temperature(
    temperature: float, dtype: torch.dtype
) -> None:
    logits = sweep(BINARY, 2, dtype=dtype, temperature=temperature).requires_grad_()
    (gradient,) = torch.autograd.grad(c.Logistic(logits=logits, temperature=temperature).rsample().sum(), logits)
    torch.testing.assert_close(gradient, torch.full_like(logits, 1 / temperature), rtol=tolerance(dtype), atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_binary_concrete_moves_with_the_slope_of_the_sigmoid(temperature: float, dtype: torch.dtype) -> None:
    logits = sweep(BINARY, 2, dtype=dtype, temperature=temperature).requires_grad_()
    variable = c.BinaryConcrete(logits=logits, temperature=temperature)
    noise = variable.noise()
    (gradient,) = torch.autograd.grad(variable.push(noise).sum(), logits)
    node = (logits.detach().double() + noise.double()) / temperature
    slope = torch.exp(torch.nn.functional.logsigmoid(node) + torch.nn.functional.logsigmoid(-node)) / temperature
    # the slope multiplies the rounding of a node by its size
    error = tolerance(dtype) + torch.finfo(torch.promote_types(dtype, torch.float32)).eps * node.abs()
    floor = torch.finfo(dtype).tiny
    assert ((gradient.double() - slope).abs() <= slope * error * 4 + floor).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("n", [2, 3, 8, 64])
def test_exp_concrete_moves_as_the_log_softmax(n: int, temperature: float, dtype: torch.dtype) -> None:
    logits = sweep(CATEGORICAL, n, dtype=dtype, temperature=temperature).requires_grad_()
    variable = c.ExpConcrete(logits=logits, temperature=temperature)
    noise, cotangent = variable.noise(), torch.randn(logits.shape, dtype=dtype)
    (gradient,) = torch.autograd.grad(variable.push(noise), logits, cotangent)
    exact = logits.detach().double().requires_grad_()
    shifted = (exact - exact.detach().amax(-1, keepdim=True) + noise.double()) / temperature
    (expected,) = torch.autograd.grad(shifted.log_softmax(-1), exact, cotangent.double())
    working = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    size = cotangent.double().abs().sum(-1, keepdim=True) / temperature
    error = size * (tolerance(dtype) + 64 * working * (1 + 1 / temperature))
    assert ((gradient.double() - expected).abs() <= error).all()


@pytest.mark.parametrize("noise", ["logistic", "normal", "laplace", "cauchy"])
def test_location_of_a_circuit_is_differentiated_right(noise: str) -> None:
    logits = torch.tensor([-30.0, -3.0, -1e-6, 0.0, 0.5, 8.0, 40.0], dtype=torch.float64, requires_grad=True)

    def location(logits: torch.Tensor) -> torch.Tensor:
        return c.CircuitNode(logits=logits, temperature=1.0, noise=noise, validate_args=False).push(
            torch.zeros_like(logits)
        )

    (gradient,) = torch.autograd.grad(location(logits).sum(), logits)
    step = 1e-5
    with torch.no_grad():
        difference = (location(logits + step) - location(logits - step)) / (2 * step)
    torch.testing.assert_close(gradient, difference, rtol=1e-5, atol=1e-9)
    smooth = torch.tensor([-3.0, 0.5, 8.0], dtype=torch.float64, requires_grad=True)  # that of Laplace is not at 0
    assert torch.autograd.gradgradcheck(location, smooth, atol=1e-4)


@each(
    Case("Logistic", named(c.Logistic), has_categories=False),
    Case("ExpConcrete", named(c.ExpConcrete), has_categories=True),
    Case("ExpLogisticNormal", named(c.ExpLogisticNormal), has_categories=True),
)
def test_total_derivative_of_an_own_log_density_in_the_logits_is_zero(case: Case) -> None:
    logits = case.logits(8, batch=(5,)).requires_grad_()
    variable = case.build(logits, 0.5)
    (gradient,) = torch.autograd.grad(variable.log_prob(variable.rsample((100,))).sum(), logits)
    torch.testing.assert_close(gradient, torch.zeros_like(logits), rtol=0, atol=1e-10)


def test_log_density_is_differentiated_right_in_everything() -> None:
    for build, shape in (
        (named(c.Logistic), (3,)),
        (named(c.ExpConcrete), (3, 4)),
        (named(c.ExpLogisticNormal), (3, 4)),
    ):
        logits = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        temperature = torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
        value = build(logits, temperature).sample().requires_grad_()

        def density(logits, temperature, value, build=build):  # type: ignore[no-untyped-def]
            return build(logits, temperature, validate_args=False).log_prob(value)

        assert torch.autograd.gradcheck(density, (logits, temperature, value))
        assert torch.autograd.gradgradcheck(density, (logits, temperature, value))
