"""A variable without a batch has derivatives in its own dtype, and a log density that can be differentiated alone."""

import pytest
import torch
from torch import Tensor

from tests.cases import CONTINUOUS, EDGE, MASSES, TEMPERED, Case, each

pytestmark = EDGE


@each(*CONTINUOUS)
def test_forward_derivatives_of_a_single_variable_have_its_dtype(case: Case) -> None:
    logits = case.logits(case.determined, dtype=torch.float32)
    noise = case.build(logits, 0.5).noise()
    value = case.build(logits, 0.5).push(noise)

    def score(value: Tensor, logits: Tensor) -> Tensor:
        return case.build(logits, 0.5, validate_args=False).log_prob(value)

    def push(logits: Tensor) -> Tensor:
        return case.build(logits, 0.5, validate_args=False).push(noise)

    for found in (
        torch.func.jacfwd(score, 0)(value, logits),
        torch.func.jacfwd(score, 1)(value, logits),
        torch.func.jacfwd(push)(logits),
    ):
        assert found.dtype == torch.float32
        assert found.isfinite().all()


@each(*MASSES)
def test_forward_derivatives_of_a_single_mass_have_its_dtype(case: Case) -> None:
    logits = case.logits(4, dtype=torch.float32)
    value = case.build(logits).sample()
    found = torch.func.jacfwd(lambda logits: case.build(logits, validate_args=False).log_prob(value))(logits)
    assert found.dtype == torch.float32


@each(*CONTINUOUS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_log_density_of_a_draw_can_be_differentiated_alone(case: Case, batch: tuple[int, ...]) -> None:
    logits = case.logits(case.determined, batch=batch).requires_grad_()
    variable = case.build(logits, 4.0)  # no draw is rounded to the edge
    value, log_prob = variable.rsample_and_log_prob((4,), generator=torch.Generator().manual_seed(0))
    log_prob.sum().backward(retain_graph=True)
    (expected,) = torch.autograd.grad(variable.log_prob(value).sum(), logits)
    torch.testing.assert_close(logits.grad, expected, rtol=1e-6, atol=1e-6)


@each(*TEMPERED)
def test_log_density_of_a_draw_of_constants_needs_no_gradient(case: Case) -> None:
    variable = case.build(case.logits(case.determined), 0.5)
    assert not any(found.requires_grad for found in variable.rsample_and_log_prob())
