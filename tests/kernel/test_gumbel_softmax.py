"""The kernel of relaxed and one-hot draws against its definition, on the same noise."""

from unittest import mock

import pytest
import torch
from torch import Tensor

from concretely.functional import gumbel_softmax
from concretely.functional.log_simplex import noise_of_key
from concretely.kernel.layout import partial_sums, sum_parts
from tests.kernel import DEVICE, fast, kernel

SHAPES = [(1, 2), (7, 3), (2, 35, 8), (5, 130), (3, 5_000)]


@kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_draws_its_definition(shape: tuple[int, ...], hard: bool, dtype: torch.dtype) -> None:
    logits = (3 * torch.randn(shape, device=DEVICE)).to(dtype)
    key = 2**62 + 5, 2**62 + 8
    kernels, units = fast("gumbel_softmax"), logits.numel() // shape[-1]
    noise = noise_of_key(torch.tensor([key], device=DEVICE), 1, units, shape[-1]).view(shape)
    truth = gumbel_softmax.push(logits.double(), 0.7, noise.double())
    state, soft = kernels.draw(logits, 0.7, key, hard=hard)
    precision = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 2e-4, "atol": 2e-6}
    torch.testing.assert_close(soft.double(), truth, **precision)
    assert state.dtype == soft.dtype == dtype
    if hard:
        assert torch.equal(state.double(), gumbel_softmax.push(logits.double(), 0.0, noise.double()))
    by, share = torch.randn_like(logits).double(), soft.double()
    slope = (by * share - share * (by * share).sum(-1, keepdim=True)) / 0.7
    torch.testing.assert_close(kernels.pull(by.to(dtype), soft, 0.7).double(), slope, **precision)


@kernel
def test_impossible_categories_are_never_drawn() -> None:
    logits = torch.zeros(50, 4, device=DEVICE)
    logits[:, 1] = -torch.inf
    state, soft = fast("gumbel_softmax").draw(logits, 0.5, (2**62, 2**62), hard=True)
    assert (state.sum(-1) == 1).all()
    assert (soft[:, 1] == 0).all()
    assert soft.isfinite().all()


@kernel
def test_gradients_that_float16_cannot_hold_are_its_largest_numbers() -> None:
    soft, by = torch.full((1, 2), 0.5, dtype=torch.float16, device=DEVICE), torch.tensor([[1.0, -1.0]], device=DEVICE)
    assert fast("gumbel_softmax").pull(by, soft, 1e-6).tolist() == [[65504.0, -65504.0]]


@pytest.mark.parametrize("parts", [1, 2])
def test_sums_that_float16_cannot_hold_are_its_largest_numbers(parts: int) -> None:
    sums = partial_sums(parts, (1, 2), torch.zeros(1), torch.float16)
    sums[..., 0], sums[..., 1] = 1e6, -1e6
    assert sum_parts(sums, parts, torch.float16).tolist() == [[65504.0, -65504.0]]


@kernel
@pytest.mark.parametrize("hard", [False, True])
def test_gradients_are_those_of_the_definition_and_can_be_differentiated(hard: bool) -> None:
    logits, key = torch.randn(7, 3, device=DEVICE, requires_grad=True), (2**62 + 5, 2**62 + 8)
    noise = noise_of_key(torch.tensor([key], device=DEVICE), 1, 7, 3).view(7, 3)
    by = torch.randn(7, 3, device=DEVICE, requires_grad=True)

    def gradients(value: Tensor) -> list[Tensor]:
        (slope,) = torch.autograd.grad(value, logits, by, create_graph=True)
        return [slope, *torch.autograd.grad(slope.square().sum(), (logits, by))]

    fast("gumbel_softmax")
    with mock.patch.object(gumbel_softmax, "numbers_of", return_value=key):
        found = gumbel_softmax._HARD(logits, 0.7, None)[0] if hard else gumbel_softmax._SOFT(logits, 0.7, None)
        (once,) = torch.autograd.grad(found, logits, by, retain_graph=True)
        twice = gradients(found)
    truth = gumbel_softmax.push(logits, 0.7, noise, hard=hard)
    torch.testing.assert_close(found, truth)
    torch.testing.assert_close(
        [once, *twice], [torch.autograd.grad(truth, logits, by, retain_graph=True)[0], *gradients(truth)]
    )
