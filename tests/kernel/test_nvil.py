"""NVIL's normalised signal is that of its definition on either path, batched, and as the estimator uses it."""

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from concretely.functional.signal import normalize
from tests.kernel import DEVICE, PATHS, assert_precise, drift, kernel, opcheck, running

SHAPES = pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 33), (2, 50, 100), (1, 1, 5000)], ids=str)
HOW = [(True, True), (True, False), (False, True), (False, False)]
RATE = 0.8


def given(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """A signal whose mean is large beside its deviation, and what is known of both."""
    signal = 30 + 5 * torch.randn(shape, device=DEVICE)
    return signal, torch.randn(shape[0], device=DEVICE), torch.rand(shape[0], device=DEVICE) * 40


@kernel
@SHAPES
def test_kernel_is_its_definition(shape: tuple[int, int, int]) -> None:
    signal, mean, variance = given(*shape)
    for each in (signal, signal[:1].expand(shape)):
        size = each[0].numel()
        slack = drift(each.reshape(shape[0], 1, size).abs() / size, torch.ones(shape[0], size, 1, device=DEVICE)).max()
        for how in HOW:
            truth = normalize(each.double(), mean.double(), variance.double(), RATE, *how, 1)
            defined = normalize(each, mean, variance, RATE, *how, 1)
            with running("fast", "nvil"):
                found = normalize(each, mean, variance, RATE, *how, 1)
            for one, other, true in zip(found, defined, truth, strict=True):
                assert_precise(one, other, true, slack)


@PATHS
@SHAPES
def test_running_numbers_are_updated_before_they_are_used(shape: tuple[int, int, int], path: str) -> None:
    signal, mean, variance = given(*shape)
    with running(path, "nvil"):
        found, middle, spread = normalize(signal, mean, variance, RATE, axis=1)
    torch.testing.assert_close(middle, RATE * mean + (1 - RATE) * signal.mean((1, 2)))
    torch.testing.assert_close(spread, RATE * variance + (1 - RATE) * signal.var((1, 2), correction=0))
    torch.testing.assert_close(
        found, (signal - middle.view(-1, 1, 1)) / spread.sqrt().clamp(min=1).view(-1, 1, 1), rtol=1e-4, atol=1e-5
    )


@PATHS
def test_a_batch_of_programs_is_a_loop_over_them(path: str) -> None:
    programs = [each.view(4, 1, *each.shape[1:]) for each in given(4, 3, 7)]
    with running(path, "nvil"):
        found = vmap(lambda *each: normalize(*each, RATE, axis=1))(*programs)
        alone = [normalize(*each, RATE, axis=1) for each in zip(*programs, strict=True)]
    torch.testing.assert_close(found, tuple(torch.stack(each) for each in zip(*alone, strict=True)))


@kernel
@pytest.mark.parametrize("path", ["plain", "fast"])
def test_it_is_an_operator(path: str) -> None:
    with running(path, "nvil"):
        opcheck(normalize, (*given(2, 3, 4), RATE, True, True, 1))


@PATHS
def test_one_program_needs_no_axis_of_members(path: str) -> None:
    signal, mean, variance = given(1, 3, 7)
    with running(path, "nvil"):
        found = normalize(signal[0], mean[0], variance[0], RATE)
        members = normalize(signal, mean, variance, RATE, axis=1)
    torch.testing.assert_close(found, tuple(each[0] for each in members))
