"""Objectives are their definitions, at any spread of the weights."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "estimator",
    [c.Pathwise(), c.Pathwise(0.5), c.Pathwise(0.5, kl="mass"), c.StraightThrough(), c.RLOO(), c.VIMCO(), c.Exact()],
    ids=repr,
)
def test_log_weights_of_half_precision_are_summed_in_float32(estimator: Any, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    prior, posterior, x_logits = (torch.randn(size, generator=generator).to(dtype) for size in (3, 3, 800))
    x = torch.randint(2, (5, 800), generator=generator).float()

    def model(dtype: torch.dtype) -> c.Model:
        def p(draw: c.Draw, x: Tensor) -> Tensor:
            draw("z", c.Bernoulli(logits=prior.to(dtype)))
            return draw("x", c.Bernoulli(logits=x_logits.to(dtype).expand(5, -1)), observed=x)

        def q(draw: c.Draw, x: Tensor) -> None:
            draw("z", c.Bernoulli(logits=posterior.to(dtype).expand(5, -1)))

        return c.Model(p, q)

    how: dict[str, Any] = {"estimator": estimator, "samples": 2}
    narrow, wide = (
        c.estimate(model(kind), x, **how, generator=torch.Generator().manual_seed(1)) for kind in (dtype, torch.float32)
    )
    for found, expected in ((narrow.loss, wide.loss), (narrow.log_w, wide.log_w), (narrow.kl["z"], wide.kl["z"])):
        assert found.dtype == torch.float32
        # relaxed values of latents are rounded, the sum of 800 log probabilities is not
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=2e-2 if isinstance(estimator, c.Pathwise) else 1e-4)


def test_a_cost_in_half_precision_is_averaged_in_float32() -> None:
    costs = torch.arange(1000.0, 1005.0)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        z = draw("z", c.Bernoulli(logits=x))
        return (z * 0 + c.tile(x, z)).bfloat16()

    estimate = c.estimate(program, costs, estimator=c.RLOO(), samples=2)
    assert estimate.loss.dtype == torch.float32
    assert estimate.loss.item() == pytest.approx(costs.bfloat16().double().mean().item(), rel=1e-6)
