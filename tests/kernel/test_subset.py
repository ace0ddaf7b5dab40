"""The kernels of subsets are their definitions, on the same noise."""

import math

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import concretely as c
from concretely.functional import subset
from concretely.functional.subset import choose, include
from concretely.functional.subset_concrete import draw, push, relax, squash
from tests.kernel import DEVICE, PATHS, fast, kernel, on, opcheck

KERNELS = "subset", "subset_concrete", "subset_marginal"
SHAPES = [(1, 1, 1, 2, 1), (2, 2, 3, 7, 3), (1, 1, 1, 70, 20), (1, 2, 1, 33, 32), (1, 1, 1, 600, 5)]
"""Members, samples, units, items and how many of them are chosen."""
SCALES = [1.0, 30.0, 1e5]


def given(
    members: int, samples: int, units: int, n: int, scale: float = 2.0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Logits, of which some are alike, and noise."""
    logits = scale * torch.randn(members, units, n)
    logits[..., n // 2 :] = logits[..., n // 2 :].round()
    noise = subset.noise(torch.Size((members, samples, units, n)), torch.float32, device=torch.device("cpu"))
    return logits.to(DEVICE, dtype).requires_grad_(), noise.to(DEVICE)


@kernel
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_draws_the_subsets_of_its_definition(shape: tuple[int, ...], scale: float) -> None:
    *sizes, k = shape
    logits, noise = given(*sizes, scale)
    with on("fast", *KERNELS):
        assert choose.runs_kernel(logits, noise, k)
        found = choose(logits, noise, k)
    assert torch.equal(found, choose.definition(logits, noise, k))
    assert (found.sum(-1) == k).all()


@kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_relaxes_as_its_definition_does(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    *sizes, k = shape
    logits, noise = given(*sizes, dtype=dtype)
    by = torch.randn(*noise.shape[:-2], noise.shape[-1]).to(DEVICE, dtype)
    for temperature in (0.05, 0.5, 3.0):
        warm = torch.full((len(logits),), temperature, dtype=torch.float64, device=DEVICE)
        with on("fast", *KERNELS):
            assert relax.runs_kernel(logits, warm, noise, k)
            value, slope = relax(logits, warm, noise, k)
            (found,) = torch.autograd.grad(value, logits, by)
        exact = logits.detach().double().requires_grad_()
        expected, steep = relax.definition(exact, warm, noise, k)
        (true,) = torch.autograd.grad(expected, exact, by.double())
        eps, least = torch.finfo(dtype).eps, torch.finfo(dtype).smallest_normal
        torch.testing.assert_close(value.double(), expected, rtol=eps, atol=1e-7)
        torch.testing.assert_close(slope, steep, rtol=1e-5, atol=1e-30)
        near = max(2e-6 * true.abs().max().item(), least * eps)  # float16 has few small numbers
        torch.testing.assert_close(found.double(), true, rtol=2 * eps, atol=near)
        largest = value.topk(k, -1).indices.sort(-1).values
        chosen = choose.definition(logits, noise, k).topk(k, -1).indices.sort(-1).values
        assert torch.equal(largest, chosen)


@kernel
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_has_the_marginals_of_its_definition(shape: tuple[int, ...], scale: float) -> None:
    members, _, units, n, k = shape
    logits, _ = given(members, 1, units, n, scale)
    by = torch.randn(logits.shape, dtype=torch.float64, device=DEVICE)
    with on("fast", *KERNELS):
        assert include.runs_kernel(logits, k)
        found = include(logits, k)
        (pulled,) = torch.autograd.grad(found, logits, by)
    exact = logits.detach().double().requires_grad_()
    expected = include.definition(exact, k)
    (true,) = torch.autograd.grad(expected, exact, by)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(pulled.double(), true, rtol=1e-6, atol=1e-10)


@kernel
def test_programs_take_several_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast("tree"), "PROGRAMS", 2)
    logits, noise = given(1, 1, 5, 6)
    warm = torch.full((1,), 0.5, dtype=torch.float64, device=DEVICE)
    by = torch.randn(1, 5, 6, dtype=torch.float64, device=DEVICE)
    with on("fast", *KERNELS):
        found = choose(logits, noise, 2), relax(logits, warm, noise, 2)[0], include(logits, 2)
        (pulled,) = torch.autograd.grad(found[2], logits, by)
    expected = [operation.definition for operation in (choose, relax, include)]
    mean = expected[2](logits, 2)
    torch.testing.assert_close(found, (expected[0](logits, noise, 2), expected[1](logits, warm, noise, 2)[0], mean))
    torch.testing.assert_close(pulled, torch.autograd.grad(mean, logits, by)[0])


@kernel
def test_extreme_logits_and_temperatures_are_those_of_the_definition() -> None:
    numbers = torch.tensor([-1e30, -1e4, -90.0, -1.0, -0.0, 0.0, 1e-40, 1.0, 1.0, 90.0, 1e4, 1e30])
    logits = torch.stack([numbers, numbers[torch.randperm(12)], -numbers.abs()])
    logits = logits.to(DEVICE).unsqueeze(0).requires_grad_()
    noise = torch.rand(1, 1, 3, 2, 12).to(DEVICE)
    for k in (1, 5, 11):
        for temperature in (0.0, 1e-20, 1.0, 1e6):
            warm = torch.tensor([temperature], dtype=torch.float64, device=DEVICE)
            with on("fast", *KERNELS):
                value, _ = relax(logits, warm, noise, k)
                (found,) = torch.autograd.grad(value.sum(), logits)
            expected, _ = relax.definition(logits.detach(), warm, noise, k)
            torch.testing.assert_close(value.detach(), expected)
            assert found.isfinite().all()
        with on("fast", *KERNELS):
            mean = include(logits, k)
            (found,) = torch.autograd.grad(mean[..., 0].sum(), logits)
        torch.testing.assert_close(mean, include.definition(logits, k), rtol=1e-12, atol=1e-13)
        assert found.isfinite().all()


@kernel
def test_items_of_no_probability_are_never_chosen() -> None:
    logits = torch.tensor([[[-math.inf, 0.0, 1.0, -math.inf, 2.0]]], device=DEVICE)
    for k in (1, 2, 3):
        noise = torch.rand(1, 8, 1, 2, 5).to(DEVICE)
        with on("fast", *KERNELS):
            found = choose(logits, noise, k)
        assert torch.equal(found, choose.definition(logits, noise, k))
        assert (found[..., [0, 3]] == 0).all()


@kernel
def test_variables_of_any_shape_are_drawn_by_the_kernels() -> None:
    logits = torch.randn(2, 1, 6).to(DEVICE).requires_grad_()
    noise = c.Subset(logits=logits, k=2).noise((3,))
    by = torch.randn(3, 2, 1, 6, device=DEVICE)
    hard = choose.definition(logits.view(1, 2, 6), noise.view(1, 3, 2, 2, 6), 2).view(3, 2, 1, 6)
    for temperature in (0.5, torch.tensor(0.5, device=DEVICE)):
        with on("fast", *KERNELS):
            variable = c.Subset(logits=logits, k=2)
            assert torch.equal(variable.push(noise), hard)
            soft = variable.relax(temperature).push(noise)
            (found,) = torch.autograd.grad(soft, logits, by, create_graph=True)
            (second,) = torch.autograd.grad(found.square().sum(), logits)
            expected = squash(push(logits, 2, 0.5, noise), 2, 0.5, logits.dtype)
            (true,) = torch.autograd.grad(expected, logits, by, create_graph=True)
        torch.testing.assert_close(soft, expected)
        torch.testing.assert_close(found, true)
        torch.testing.assert_close(second, torch.autograd.grad(true.square().sum(), logits)[0])


@PATHS
def test_a_batch_of_programs_is_a_loop(path: str) -> None:
    logits, noise = given(4, 2, 1, 5)
    logits, noise = logits.detach().view(2, 2, 1, 5), noise.view(2, 2, 2, 1, 2, 5)
    warm = torch.tensor([0.5, 2.0], dtype=torch.float64, device=DEVICE)
    with on(path, *KERNELS):

        def program(logits: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
            return choose(logits, noise, 2), relax(logits, warm, noise, 2)[0], include(logits, 2)

        found = vmap(program)(logits, noise)
        expected = [program(*pair) for pair in zip(logits, noise, strict=True)]
    torch.testing.assert_close(found, tuple(map(torch.stack, zip(*expected, strict=True))))


@kernel
@pytest.mark.parametrize("path", ["plain", "fast"])
def test_rules_of_the_operators_hold(path: str) -> None:
    logits, noise = given(2, 1, 1, 2)  # torch traces the definitions, whose operations grow with the number of items
    warm = torch.tensor([0.5, 2.0], dtype=torch.float64, device=DEVICE)
    with on(path, *KERNELS):
        opcheck(choose, (logits.detach(), noise, 1))
        opcheck(relax, (logits, warm, noise, 1))
        opcheck(include, (logits, 1))


@kernel
def test_a_compiled_draw_is_that_of_the_kernel() -> None:
    logits, noise = given(1, 1, 3, 5)
    logits, noise = logits.detach()[0].requires_grad_(), noise[0, 0]

    def program(logits: Tensor, noise: Tensor) -> Tensor:
        return draw(logits, 2, 0.5, noise).square().sum()

    with on("fast", *KERNELS):
        compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
        value, expected = compiled(logits, noise), program(logits, noise)
        gradients = [torch.autograd.grad(each, logits)[0] for each in (value, expected)]
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(*gradients)
