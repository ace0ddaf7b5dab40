"""Nothing is NaN or infinite, at any logit, temperature, number of categories or dtype."""

import pytest
import torch

from concretely.distribution.check import LEAST
from tests.cases import CONTINUOUS, DEVICES, DTYPES, EDGE, NODES, RELAXATIONS, TEMPERATURES, TEMPERED, Case, each, sweep

pytestmark = EDGE

DRAWS = 16


def draws(n: int) -> int:
    """Fewer draws of many categories: the rows of a sweep have enough entries without."""
    return 1 if n > 64 else 4 if n == 64 else DRAWS


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each(*CONTINUOUS)
def test_own_draws_their_densities_and_gradients_are_finite_and_valid(
    case: Case, dtype: torch.dtype, device: str
) -> None:
    for n in case.sizes():
        for temperature in TEMPERATURES:
            where = f"n {n}, temperature {temperature}"
            logits = sweep(case, n, dtype=dtype, temperature=temperature, device=device).requires_grad_()
            variable = case.build(logits, temperature, validate_args=True)
            value = variable.rsample((draws(n),))
            assert value.dtype == dtype
            assert value.isfinite().all(), where
            assert variable.support.check(value).all(), where
            cotangent = torch.randn_like(value)
            (pathwise,) = torch.autograd.grad((value * cotangent).mean(0).sum(), logits, retain_graph=True)
            assert pathwise.isfinite().all(), where
            if n > case.determined == 2:
                continue
            if case.name == "LogisticNormal" and n > 64 and (dtype != torch.float32 or temperature > 0.01):
                continue  # on the edge its score is an integral, which takes long for many categories
            log_prob = variable.log_prob(value)
            assert log_prob.dtype == dtype
            assert log_prob.isfinite().all(), where
            (score,) = torch.autograd.grad(log_prob.mean(0).sum(), logits)
            assert score.isfinite().all(), where


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each(*CONTINUOUS)
def test_values_and_densities_drawn_together_are_finite(case: Case, dtype: torch.dtype, device: str) -> None:
    for n in case.sizes():
        for temperature in TEMPERATURES:
            logits = sweep(case, n, dtype=dtype, temperature=temperature, device=device).requires_grad_()
            variable = case.build(logits, temperature)
            value, log_prob = variable.rsample_and_log_prob((draws(n),))
            assert value.isfinite().all()
            assert log_prob.isfinite().all()
            assert log_prob.shape == (draws(n), *variable.batch_shape)
            (gradient,) = torch.autograd.grad(value.mean(0).sum() + log_prob.mean(0).sum(), logits)
            assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each(*(case for case in CONTINUOUS if "Hypercube" not in case.name))
def test_gradient_in_the_value_is_finite(case: Case, dtype: torch.dtype) -> None:
    for temperature in TEMPERATURES:
        variable = case.build(sweep(case, 8, dtype=dtype, temperature=temperature), temperature)
        value = variable.sample((DRAWS,)).requires_grad_()
        (gradient,) = torch.autograd.grad(variable.log_prob(value).sum(), value)
        assert gradient.isfinite().all(), temperature


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each(*TEMPERED)
def test_gradient_in_the_temperature_is_finite(case: Case, dtype: torch.dtype) -> None:
    logits = sweep(case, 8, dtype=dtype, temperature=0.1)
    temperature = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    value, log_prob = case.build(logits, temperature).rsample_and_log_prob((DRAWS,))
    (gradient,) = torch.autograd.grad(value.sum() + log_prob.sum(), temperature)
    assert gradient.isfinite()


@pytest.mark.parametrize("as_tensor", [False, True], ids=["float", "tensor"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each(*TEMPERED)
def test_cold_draws_and_their_densities_are_finite_or_refused(case: Case, dtype: torch.dtype, as_tensor: bool) -> None:
    logits = case.logits(4, batch=(20,), dtype=dtype).requires_grad_()
    for cold in (1e-300, 1e-45, 1e-10):
        temperature = torch.tensor(cold, dtype=torch.float64) if as_tensor else cold
        if cold < LEAST[torch.promote_types(dtype, torch.float32)]:
            must = r"^temperature must be at least [\d.e-]+ for logits in \w+, or 0 for the discrete limit, got 1e-\d+$"
            with pytest.raises(ValueError, match=must):
                case.build(logits, temperature)
            continue
        value, log_prob = case.build(logits, temperature).rsample_and_log_prob((8,))
        (gradient,) = torch.autograd.grad(value.mean() + log_prob.mean(), logits)
        for found in (value, log_prob, gradient):
            assert found.isfinite().all()


@pytest.mark.parametrize("as_tensor", [False, True], ids=["float", "tensor"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each(*RELAXATIONS)
def test_relaxed_values_at_temperature_zero_are_discrete(case: Case, dtype: torch.dtype, as_tensor: bool) -> None:
    logits = case.logits(4, batch=(20,), dtype=dtype)
    variable = case.build(logits, torch.zeros((), dtype=dtype) if as_tensor else 0.0)
    value = variable.sample((8,))
    assert value.dtype == dtype
    assert variable.discretize().support.check(value).all()


@pytest.mark.parametrize("as_tensor", [False, True], ids=["float", "tensor"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each(*NODES)
def test_nodes_at_temperature_zero_are_the_logs_of_discrete_values(
    case: Case, dtype: torch.dtype, as_tensor: bool
) -> None:
    variable = case.build(case.logits(4, batch=(20,), dtype=dtype), torch.zeros((), dtype=dtype) if as_tensor else 0.0)
    value = variable.sample((8,))
    if case.has_categories:
        assert (value.exp().sum(-1) == 1).all()
        assert ((value == 0) | (value == -torch.inf)).all()
    else:
        assert value.isinf().all()
