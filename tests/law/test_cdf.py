"""The CDF has the density as its gradient by the value, and its inverse undoes it."""

import pytest
import torch

from tests.cases import CONTINUOUS, EDGE, Case, each

pytestmark = EDGE
ORDERED = [case for case in CONTINUOUS if not case.has_categories]


@each(*ORDERED)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_gradient_of_the_cdf_by_the_value_is_the_density(case: Case, temperature: float) -> None:
    variable = case.build(case.logits(2, batch=(7,)), temperature)
    bounded = variable.support.check(torch.tensor(2.0)).item() is False
    points = torch.linspace(0.02, 0.98, 25, dtype=torch.float64)
    value = (points if bounded else 6 * points - 3).unsqueeze(-1).expand(-1, 7).clone().requires_grad_()
    (slope,) = torch.autograd.grad(variable.cdf(value).sum(), value, create_graph=True)
    torch.testing.assert_close(slope, variable.log_prob(value).exp(), rtol=1e-9, atol=1e-12)
    assert slope.requires_grad


@each(*ORDERED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_cdf_and_its_gradient_are_finite_up_to_the_edge(case: Case, dtype: torch.dtype) -> None:
    variable = case.build(case.logits(2, batch=(7,), dtype=dtype), 0.5)
    value = torch.tensor([0.0, 0.5, 1.0], dtype=dtype).unsqueeze(-1).expand(-1, 7).clone().requires_grad_()
    probability = variable.cdf(value)
    (slope,) = torch.autograd.grad(probability.sum(), value)
    assert slope.isfinite().all()
    assert slope[1].gt(0).all()
    if type(variable).__name__.startswith("Binary"):
        assert torch.equal(probability[::2].detach(), value[::2].detach())


@each(*ORDERED)
def test_inverse_of_the_cdf_undoes_it(case: Case) -> None:
    variable = case.build(case.logits(2, batch=(7,)), 0.8)
    value = variable.sample((50,))
    probability = variable.cdf(value)
    precise = (probability > 1e-8) & (probability < 1 - 1e-8)
    precise &= variable.support.check(value + 1e-6) & variable.support.check(value - 1e-6)
    torch.testing.assert_close(variable.icdf(probability)[precise], value[precise], rtol=1e-6, atol=1e-6)
    even = torch.linspace(0.01, 0.99, 50, dtype=torch.float64).unsqueeze(-1).expand(-1, 7)
    value = variable.icdf(even)
    assert (value.diff(dim=0) >= 0).all()
    precise = variable.support.check(value + 1e-6) & variable.support.check(value - 1e-6)
    torch.testing.assert_close(variable.cdf(value)[precise], even[precise], rtol=1e-6, atol=1e-6)
