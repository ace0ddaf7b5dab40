"""The kernels of polynomials are their definitions, and with them a subset is what it is without."""

import pytest
import torch
from torch.func import vmap

from concretely.functional import subset
from concretely.functional.polynomial import correlation, product
from tests.kernel import DEVICE, PATHS, assert_precise, kernel, on, opcheck

SHAPES = [(1, 1, 1, 1, 1), (2, 3, 5, 4, 131), (1, 18, 17, 34, 3), (1, 5, 20, 40, 2)]
"""Members, the coefficients of both factors and of the result, and columns."""


def given(members: int, one: int, other: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Two factors with entries of one sign, as probabilities have."""
    return tuple(torch.rand(members, size, columns, dtype=dtype).to(DEVICE).requires_grad_() for size in (one, other))


@kernel
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("operation", [product, correlation], ids=lambda operation: operation.name)
def test_kernel_is_its_definition_in_value_and_gradient(operation, shape, dtype) -> None:  # type: ignore[no-untyped-def]
    members, one, other, width, columns = shape
    factors = given(members, one, other, columns, dtype)
    by = torch.rand(members, width, columns, dtype=dtype, device=DEVICE)
    with on("fast", "polynomial"):
        assert operation.runs_kernel(*factors, width)
        found = operation(*factors, width)
        pulled = torch.autograd.grad(found, factors, by)
    defined = operation.definition(*factors, width)
    exact = [each.detach().double().requires_grad_() for each in factors]
    truth = operation.definition(*exact, width)
    assert_precise(found.detach(), defined.detach(), truth.detach())
    expected, true = torch.autograd.grad(defined, factors, by), torch.autograd.grad(truth, exact, by.double())
    for a, b, c in zip(pulled, expected, true, strict=True):
        assert_precise(a, b, c)


@PATHS
@pytest.mark.parametrize("operation", [product, correlation], ids=lambda operation: operation.name)
def test_a_batch_of_programs_is_a_loop(operation, path: str) -> None:  # type: ignore[no-untyped-def]
    left, right = (each.detach() for each in given(6, 3, 2, 5, torch.float64))
    left, right = left.view(3, 2, 3, 5), right.view(3, 2, 2, 5)
    with on(path, "polynomial"):
        found = vmap(lambda left, right: operation(left, right, 3))(left, right)
        expected = torch.stack([operation(*pair, 3) for pair in zip(left, right, strict=True)])
    torch.testing.assert_close(found, expected)


@kernel
@pytest.mark.parametrize("path", ["plain", "fast"])
@pytest.mark.parametrize("operation", [product, correlation], ids=lambda operation: operation.name)
def test_rules_of_the_operators_hold(operation, path: str) -> None:  # type: ignore[no-untyped-def]
    with on(path, "polynomial"):
        opcheck(operation, (*given(2, 3, 2, 4, torch.float64), 3))


@kernel
@pytest.mark.parametrize(("n", "k"), [(3, 1), (11, 4), (20, 18)])
def test_a_subset_is_the_same_by_kernels_with_first_and_second_derivatives(n: int, k: int) -> None:
    logits = (2 * torch.randn(3, n, dtype=torch.float64)).to(DEVICE).requires_grad_()
    noise, by = torch.rand(3, 2, n, device=DEVICE), torch.randn(3, n, dtype=torch.float64, device=DEVICE)

    def everything() -> tuple[torch.Tensor, ...]:
        value, mean = subset.push(logits, k, noise), subset.marginals(logits, k)
        mass = subset.log_mass(value, logits, k)
        (slope,) = torch.autograd.grad((mean * by).sum() + mass.sum(), logits, create_graph=True)
        return value, mean, mass, slope, torch.autograd.grad((slope * by).sum(), logits)[0]

    with on("fast", "polynomial"):
        found = everything()
    torch.testing.assert_close(found, everything(), rtol=1e-12, atol=1e-12)
