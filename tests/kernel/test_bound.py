"""The bound is that of the library, on either path, batched and compiled."""

import math

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from concretely import objective
from concretely.kernel import bound as operation
from concretely.kernel.bound import bound, naive
from tests.kernel import DEVICE, PATHS, assert_precise, fast, kernel, taken

SIZES = [(1, 1, 1), (3, 2, 33), (1, 50, 5), (3, 1, 70), (2, 90, 1), (1, 3, 129)]
"""Members, samples and data points."""
INF, NAN = math.inf, math.nan
WEIGHTS = [[-INF, 0.0, 1.0], [0.0, -INF, -INF], [-INF] * 3, [NAN, 0.0, 1.0], [0.0, 1.0, NAN], [-INF, NAN, -INF]]
INFINITE = [[INF, 0.0, 1.0], [0.0, INF, -INF], [INF, INF, INF], [INF, NAN, 0.0], [-INF, -INF, INF]]


def true_bound(log_w: Tensor) -> Tensor:
    """The bound of the library in float64."""
    return vmap(objective.bound)(log_w.double())


def log_weights(*shape: int) -> Tensor:
    """Log-weights that differ by much."""
    return 10 * torch.randn(shape, device=DEVICE) - 100


@kernel
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_kernel_is_its_definition(shape: tuple[int, int, int]) -> None:
    log_w = log_weights(*shape)
    for given in (log_w, log_w[:1].expand_as(log_w), log_w.mT.contiguous().mT):
        wide = given.double().requires_grad_()
        truth = true_bound(wide)
        found, defined = (each.bound(given) for each in (fast("bound"), naive))
        assert_precise(found, defined, truth.detach())
        by = torch.randn(shape[::2], device=DEVICE)
        ones = torch.ones((), device=DEVICE).expand_as(by)
        for one in (by, by[:1].expand_as(by), by.T.contiguous().T, ones):
            (true,) = torch.autograd.grad((one * truth).sum(), wide, retain_graph=True)
            assert_precise(*(each.backward(one, given, defined) for each in (fast("bound"), naive)), true)


@PATHS
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_the_bound_is_that_of_the_library(shape: tuple[int, int, int], path: str) -> None:
    log_w = log_weights(*shape).requires_grad_()
    with taken(operation, path):
        found = bound(log_w)
        (by,) = torch.autograd.grad(found.sum(), log_w)
    truth = true_bound(log_w)
    torch.testing.assert_close(found.double(), truth, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(by, torch.autograd.grad(truth.sum(), log_w)[0], rtol=1e-4, atol=1e-6)


@PATHS
def test_weights_that_are_no_numbers_are_treated_as_by_the_library(path: str) -> None:
    log_w = torch.tensor(WEIGHTS + INFINITE, device=DEVICE).T.unsqueeze(0).contiguous()
    with taken(operation, path):
        for given in (log_w, log_w[:, :1], log_w.flip(1)):
            found, truth = bound(given), true_bound(given)
            torch.testing.assert_close(found.double(), truth, equal_nan=True)
    assert found.isneginf().any()
    assert found.isposinf().any()


@PATHS
def test_a_weight_of_zero_has_no_gradient(path: str) -> None:
    log_w = torch.tensor([[[-INF, 0.0], [0.0, 0.0], [1.0, -INF]]], device=DEVICE, requires_grad=True)
    with taken(operation, path):
        (found,) = torch.autograd.grad(bound(log_w).sum(), log_w)
    torch.testing.assert_close(found, log_w.detach().softmax(1))


@kernel
@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 3, 2)], ids=str)
def test_nothing_has_a_bound(shape: tuple[int, int, int]) -> None:
    log_w = log_weights(*shape)
    for either in (naive, fast("bound")):
        found = either.bound(log_w)
        assert found.shape == shape[::2]
        assert either.backward(found, log_w, found).shape == shape


@PATHS
def test_a_batch_of_programs_is_a_loop_over_them(path: str) -> None:
    log_w = log_weights(4, 2, 5, 3).requires_grad_()
    with taken(operation, path):
        alone = torch.stack([bound(each) for each in log_w])
        for together in (vmap(bound)(log_w), vmap(bound, 3)(log_w.movedim(0, 3))):
            torch.testing.assert_close(together, alone)
            by = [torch.autograd.grad(each.sin().sum(), log_w, retain_graph=True) for each in (together, alone)]
            torch.testing.assert_close(*by)


@PATHS
def test_gradients_can_be_differentiated(path: str) -> None:
    log_w = torch.randn(2, 5, 3, device=DEVICE, requires_grad=True)

    def curvature(found: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
        (grad,) = torch.autograd.grad(found.sin().sum(), by, create_graph=True)
        return grad, torch.autograd.grad(grad.square().sum(), by)[0]

    with taken(operation, path):
        found = curvature(bound(log_w), log_w)
    wide = log_w.detach().double().requires_grad_()
    for one, other in zip(found, curvature(true_bound(wide), wide), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.unchecked
def test_the_bound_compiles() -> None:
    log_w = log_weights(2, 5, 3).requires_grad_()
    compiled = torch.compile(bound, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(*(torch.autograd.grad(each(log_w).sum(), log_w) for each in (bound, compiled)))


@kernel
@pytest.mark.parametrize("path", ["plain", "fast"])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0)], ids=str)
def test_the_bound_is_an_operator_however_its_weights_lie(order: tuple[int, int, int], path: str) -> None:
    log_w = log_weights(4, 4, 4).permute(order)
    with taken(operation, path):
        torch.library.opcheck(operation._bound, (log_w.detach().requires_grad_(),))
        torch.library.opcheck(operation._backward, (torch.randn(4, 4, device=DEVICE), log_w, bound(log_w)))
