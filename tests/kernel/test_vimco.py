"""What each sample adds to the bound, against its definition; that is judged in tests/estimator/test_vimco.py."""

import math
from typing import Any

import pytest
import torch
from torch.func import vmap

from concretely.functional.signal import Mean, vimco
from tests.kernel import DEVICE, PATHS, kernel, opcheck, running

MEANS = pytest.mark.parametrize("mean", ["geometric", "arithmetic"])


def log_weights(*shape: int) -> Any:
    """Log-weights of a size that tells rounding from mistakes."""
    return 8 * torch.randn(*shape, device=DEVICE)


@kernel
@MEANS
@pytest.mark.parametrize("shape", [(1, 2, 1), (3, 5, 67), (2, 50, 9)], ids=str)
def test_kernel_is_its_definition(shape: tuple[int, ...], mean: Mean) -> None:
    log_w = log_weights(*shape)
    with running("fast", "vimco"):
        found, expected = vimco(log_w, mean, 1), vimco(log_w.double(), mean, 1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-5)


@kernel
@MEANS
def test_weights_of_zero_and_what_is_no_number_are_treated_alike(mean: Mean) -> None:
    log_w = log_weights(1, 4, 6)
    log_w[0, 0, 1] = log_w[0, :, 2] = log_w[0, 1:, 3] = -math.inf
    log_w[0, 1, 4], log_w[0, 2, 5] = math.inf, math.nan
    with running("fast", "vimco"):
        found, expected = vimco(log_w, mean, 1), vimco.definition(log_w, mean, 1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5, equal_nan=True)


@PATHS
def test_a_batch_of_programs_is_a_loop(path: str) -> None:
    log_w = log_weights(3, 1, 5, 4)
    with running(path, "vimco"):
        found = vmap(vmap(vimco))(log_w)
        expected = torch.stack([vimco(each, axis=1) for each in log_w])
    assert found.equal(expected)


@kernel
@pytest.mark.parametrize("path", ["plain", "fast"])
def test_rules_of_the_operator_hold(path: str) -> None:
    with running(path, "vimco"):
        opcheck(vimco, (log_weights(2, 3, 4), "geometric", 1))
