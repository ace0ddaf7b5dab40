"""The kernels of codes against their definition, on the same noise."""

from unittest import mock

import pytest
import torch

from concretely.functional import codebook
from concretely.functional.log_simplex import noise_of_key, perturb
from concretely.functional.noise import Keys
from tests.kernel import DEVICE, fast, kernel, key, launched

SHAPES = [(1, 1, 2), (1, 7, 3), (2, 35, 8), (1, 5, 130), (1, 3, 5_000)]


@kernel
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_draw_and_pull_their_definition(shape: tuple[int, int, int]) -> None:
    logits, own, kernels = 3 * torch.randn(shape, device=DEVICE), key(1), fast("codebook")
    noise = noise_of_key(own, 1, shape[0] * shape[1], shape[2]).view(shape)
    noisy = perturb(logits.double(), noise.double())
    assert torch.equal(kernels.choose(logits, own), noisy.argmax(-1))
    soft, by = (noisy / 0.7).softmax(-1), torch.randn(shape, device=DEVICE)
    expected = soft * (by.double() - (soft * by.double()).sum(-1, keepdim=True)) / 0.7
    found = kernels.pull(by.clone(), logits, own, torch.tensor(0.7, device=DEVICE))
    torch.testing.assert_close(found.double(), expected, rtol=2e-4, atol=2e-6)


@kernel
def test_chunks_by_kernels_equal_the_definition() -> None:
    shapes = (23, 5), (2, 7, 5), (2, 7), (2, 7, 3)
    tensors = [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]
    own, weight_of = key(1), torch.ones(23, device=DEVICE)
    with (
        mock.patch.dict(codebook.CHUNK, cpu=100, cuda=100),
        mock.patch.object(codebook, "_noise", lambda own, shape, like: _noise(own.key, shape)),
        mock.patch.object(codebook, "is_enabled", return_value=True),
        launched("codebook"),
    ):
        ours = codebook.look_up(*tensors, 0.7, weight_of=weight_of, scored=True, generator=Keys(own))
        defined = codebook.definition(*tensors, 0.7, own, weight_of, True, True)
        by = torch.randn_like(ours.value)
        found = [(each.value, each.indices, *torch.autograd.grad(each.value, tensors, by)) for each in (ours, defined)]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def _noise(key: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
    return noise_of_key(key, 1, shape[0] * shape[1], shape[2]).view(shape)
