"""The learning signal of VIMCO is what a sample adds to the bound, at any spread of the weights."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from concretely.functional.signal import vimco

MEANS = ("geometric", "arithmetic")
log_weights = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=50)


def by_definition(log_w: Tensor, mean: str) -> Tensor:
    """The bound less that with one weight replaced by a mean of the others, for one sample after another."""
    m = len(log_w)
    signal = []
    for i in range(m):
        others = torch.cat([log_w[:i], log_w[i + 1 :]])
        stand_in = others.mean(0) if mean == "geometric" else others.logsumexp(0) - math.log(m - 1)
        replaced = torch.cat([others, stand_in[None]])
        signal.append(log_w.logsumexp(0) - replaced.logsumexp(0))
    return torch.stack(signal)


@pytest.mark.parametrize("mean", MEANS)
@given(log_w=log_weights)
def test_signal_in_linear_time_is_its_definition(mean: str, log_w: list[float]) -> None:
    weights = torch.tensor(log_w, dtype=torch.float64)
    torch.testing.assert_close(vimco(weights, mean), by_definition(weights, mean), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("m", [2, 3, 50])
def test_signal_of_a_batch_is_that_of_its_points(mean: str, m: int) -> None:
    log_w = 300 * torch.randn(m, 4, 3, dtype=torch.float64)
    signal = vimco(log_w, mean)
    torch.testing.assert_close(signal, by_definition(log_w, mean), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(signal[:, 1, 2], vimco(log_w[:, 1, 2], mean))


@pytest.mark.parametrize("mean", MEANS)
def test_signal_in_float32_keeps_the_precision_of_its_log_weights(mean: str) -> None:
    log_w = 30 * torch.randn(50, 64) - 90
    error = (vimco(log_w, mean).double() - by_definition(log_w.double(), mean)).abs().max()
    naive = (by_definition(log_w, mean).double() - by_definition(log_w.double(), mean)).abs().max()
    assert error <= 2 * naive


@pytest.mark.parametrize("mean", MEANS)
def test_signal_of_one_weight_that_outweighs_all_others_is_its_lead(mean: str) -> None:
    log_w = torch.tensor([0.0, -1e3, -1e3, -1e3], dtype=torch.float64)
    signal = vimco(log_w, mean)
    torch.testing.assert_close(signal[0], torch.tensor(1e3 - math.log(4), dtype=torch.float64))
    assert signal.isfinite().all()


@pytest.mark.parametrize("mean", MEANS)
def test_signal_does_not_depend_on_the_order_or_the_scale_of_the_weights(mean: str) -> None:
    log_w = 10 * torch.randn(7, dtype=torch.float64)
    order = torch.randperm(7)
    torch.testing.assert_close(vimco(log_w, mean)[order], vimco(log_w[order], mean))
    torch.testing.assert_close(vimco(log_w + 1e3, mean), vimco(log_w, mean), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mean", MEANS)
def test_an_impossible_sample_leaves_a_signal_to_all(mean: str) -> None:
    log_w = torch.tensor([0.0, -1.0, -math.inf], dtype=torch.float64)
    torch.testing.assert_close(vimco(log_w, mean), by_definition(log_w, mean))
    assert vimco(log_w, mean).isfinite().all()
