"""Objectives are their definitions, at any spread of the weights."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import concretely as c
from concretely.functional.bound import effective_sample_size

log_weights = st.lists(st.floats(-50, 50), min_size=1, max_size=20)


@given(log_w=log_weights)
def test_bound_is_the_log_of_the_mean_weight(log_w: list[float]) -> None:
    expected = math.log(sum(math.exp(entry) for entry in log_w) / len(log_w))
    assert c.bound(torch.tensor(log_w, dtype=torch.float64)).item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(log_w=log_weights)
def test_average_is_the_mean_log_weight(log_w: list[float]) -> None:
    expected = math.fsum(log_w) / len(log_w)
    assert c.average(torch.tensor(log_w, dtype=torch.float64)).item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(log_w=log_weights)
def test_effective_sample_size_is_the_square_of_the_sum_over_the_sum_of_squares(log_w: list[float]) -> None:
    weights = [math.exp(entry) for entry in log_w]
    expected = sum(weights) ** 2 / sum(weight**2 for weight in weights)
    actual = effective_sample_size(torch.tensor(log_w, dtype=torch.float64)).item()
    assert actual == pytest.approx(expected, rel=1e-10)
    assert 1 - 1e-10 <= actual <= len(log_w) * (1 + 1e-10)


@given(log_w=log_weights, shift=st.floats(-1e3, 1e3))
def test_bound_moves_with_the_log_weights_and_lies_between_their_average_and_their_largest(
    log_w: list[float], shift: float
) -> None:
    weights = torch.tensor(log_w, dtype=torch.float64)
    assert (c.bound(weights + shift) - c.bound(weights)).item() == pytest.approx(shift, rel=1e-9, abs=1e-9)
    assert c.average(weights) - 1e-9 <= c.bound(weights) <= weights.max() + 1e-9


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_objectives_of_weights_far_apart_are_finite_and_so_are_their_gradients(dtype: torch.dtype) -> None:
    log_w = torch.tensor([[-1e4, 1e4], [0.0, 0.0], [-2e4, 1e4]], dtype=dtype, requires_grad=True)
    bound, average, size = c.bound(log_w), c.average(log_w), effective_sample_size(log_w)
    torch.testing.assert_close(bound, torch.tensor([-math.log(3), 1e4 + math.log(2 / 3)], dtype=dtype))
    torch.testing.assert_close(average, torch.tensor([-1e4, 2e4 / 3], dtype=dtype))
    torch.testing.assert_close(size, torch.tensor([1.0, 2.0], dtype=dtype))
    (gradient,) = torch.autograd.grad(bound.sum(), log_w)
    weights = torch.tensor([[0.0, 0.5], [1.0, 0.0], [0.0, 0.5]], dtype=dtype)
    torch.testing.assert_close(gradient, weights, rtol=0, atol=1e4 * torch.finfo(dtype).eps)
    (gradient,) = torch.autograd.grad(size.sum() + c.average(log_w).sum(), log_w)
    assert gradient.isfinite().all()


def test_effective_sample_size_loses_nothing_to_the_size_of_the_log_weights() -> None:
    log_w = 2 * torch.randn(50, 200) - 1e4
    expected = effective_sample_size(log_w.double())
    torch.testing.assert_close(effective_sample_size(log_w).double(), expected, rtol=1e-5, atol=0)
