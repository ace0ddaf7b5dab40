"""The kernels of codes against their definition, on the same noise."""

from contextlib import AbstractContextManager, ExitStack
from unittest import mock

import pytest
import torch
from torch import Tensor

from concretely.functional import codebook
from concretely.functional.noise import Keys, gumbel_of, uniform_of
from concretely.functional.philox import row_fractions
from tests.kernel import DEVICE, assert_precise, drift, fast, kernel, key, launched

SHAPES = [(1, 1, 2), (1, 7, 3), (2, 9, 8), (1, 5, 130), (1, 3, 5_000)]


def noise(own: Tensor, first: int, groups: int, tokens: int, n: int) -> Tensor:
    """The definition of the noise of tokens."""
    fractions = row_fractions(own, first * groups * -(-n // 4), tokens * groups, n)
    return gumbel_of(uniform_of(fractions)).view(tokens, groups, n)


@kernel
@pytest.mark.parametrize("first", [0, 2**31 + 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_draw_and_pull_their_definition(shape: tuple[int, int, int], first: int) -> None:
    logits, own, kernels = 3 * torch.randn(shape, device=DEVICE), key(1), fast("codebook")
    drawn = noise(own, first, *shape)
    torch.testing.assert_close(kernels.noise(own, first, *shape), drawn, rtol=1e-5, atol=1e-5)
    noisy = logits.double() - logits.double().amax(-1, keepdim=True) + drawn.transpose(0, 1).double()
    soft, by = (noisy / 0.7).softmax(-1), torch.randn(shape, device=DEVICE)
    numbers = tuple(own.flatten().tolist())
    for temperature, given in ((0.7, own), (torch.tensor(0.7, device=DEVICE), own), (0.7, numbers)):
        for keeps in (True, False):
            found = logits.clone()
            assert torch.equal(kernels.draw(found, given, first, temperature, keeps=keeps)[0], noisy.argmax(-1))
            torch.testing.assert_close(found.double(), soft if keeps else logits.double(), rtol=2e-4, atol=2e-6)
        expected = soft * (by.double() - (soft * by.double()).sum(-1, keepdim=True)) / 0.7
        pulled, total = kernels.pull(by.clone(), soft.float(), temperature)
        torch.testing.assert_close(pulled.double(), expected, rtol=2e-4, atol=2e-6)
        torch.testing.assert_close(total.double(), expected.sum(1), rtol=2e-4, atol=2e-5)


@kernel
@pytest.mark.parametrize(("high", "deep", "wide"), [(1, 1, 1), (130, 70, 67), (64, 600, 130)])
def test_products_are_those_of_float32(high: int, deep: int, wide: int) -> None:
    kernels, a, b = fast("codebook"), torch.randn(high, deep, device=DEVICE), torch.randn(deep, wide, device=DEVICE)
    bias, onto = torch.randn(wide, device=DEVICE), torch.randn(high, wide, device=DEVICE)
    truth, off = a.double() @ b.double(), drift(a, b)
    for left in (a, a.mT.contiguous().mT):
        for right in (b, b.mT.contiguous().mT):
            assert_precise(kernels.product(left, right), a @ b, truth, off)
            assert_precise(kernels.product(left, right, bias), a @ b + bias, truth + bias.double(), off)
            added = kernels.product(left, right, None, onto.clone(), adds=True)
            assert_precise(added, onto + a @ b, truth + onto.double(), off)


def by_kernels() -> AbstractContextManager[None]:
    """Run the kernels wherever tensors are, in small chunks."""
    stack = ExitStack()
    stack.enter_context(mock.patch.dict(codebook.CHUNK, cpu=100, cuda=100))
    stack.enter_context(mock.patch.object(codebook, "_noise", _noise))
    stack.enter_context(mock.patch.object(codebook, "is_enabled", return_value=True))
    stack.enter_context(mock.patch.object(codebook, "_multiplies", return_value=True))
    stack.enter_context(launched("codebook"))
    return stack


def _noise(key: Tensor, first: int, shape: tuple[int, int, int], like: Tensor) -> Tensor:
    return noise(key, first, *shape).transpose(0, 1)


@kernel
@pytest.mark.parametrize("kept", [0, 2**20])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("hard", [True, False])
def test_chunks_by_kernels_equal_the_definition(groups: int, hard: bool, kept: int) -> None:
    shapes = (23, 5), (groups, 7, 5), (groups, 7), (groups, 7, 3)
    tensors = [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]
    own, weight_of = key(1), torch.ones(23, device=DEVICE)
    with by_kernels(), mock.patch.dict(codebook.KEPT, cpu=kept, cuda=kept):
        for scored in (False, True):
            source = Keys(own)
            ours = codebook.look_up(*tensors, 0.7, weight_of=weight_of, hard=hard, scored=scored, generator=source)
            defined = codebook.definition(*tensors, 0.7, own, weight_of, hard, scored)
            found = []
            for each in (ours, defined):
                heads = [head for head in (each.value, each.entropy, each.share) if head is not None]
                by = [torch.ones_like(head).cumsum(-1) for head in heads]
                found.append((*heads, each.indices, *torch.autograd.grad(heads, tensors, by)))
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@kernel
def test_few_codes_are_drawn_in_few_operations_as_in_chunks() -> None:
    shapes = (23, 5), (1, 7, 5), (1, 7), (1, 7, 13)  # rows longer than a quarter of the codes
    tensors = [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]
    own = key(1)
    with by_kernels(), mock.patch.object(codebook, "_key", return_value=tuple(own.flatten().tolist())):
        for temperature in (0.7, torch.tensor(0.7, device=DEVICE)):
            counts = torch.ones(1, 7, device=DEVICE)
            ours = codebook.look_up(*tensors, temperature, counts=counts)
            assert ours.is_counted
            assert counts.flatten().tolist() == [1 + (ours.indices == code).sum().item() for code in range(7)]
            defined = codebook.definition(*tensors, temperature, own, None, True, False)
            by = torch.randn_like(ours.value)
            found = [(*each[:2], *torch.autograd.grad(each.value, tensors, by)) for each in (ours, defined)]
            assert type(ours.value.grad_fn).__name__ == "_LookUpFewBackward"
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
