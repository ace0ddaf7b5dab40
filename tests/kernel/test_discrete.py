"""The discrete kernel is its definition, which is the distribution."""

import math
from collections.abc import Callable

import pytest
import torch
from concretely.kernel.discrete import Squash, naive
from torch import Tensor
from torch.func import vmap
from torch.testing import assert_close

from concretely.distribution import Hypercube, OneHotCategorical
from concretely.kernel import discrete
from tests.kernel import opcheck
from tests.kernel.test_exp_concrete import DEVICE, SIZES, given, needs_triton, noise, typed

SQUASHES: tuple[Squash, ...] = ("one-hot", "corner")
CASES = [(*size, squash) for size in SIZES for squash in SQUASHES if squash != "corner" or not size[3] & (size[3] - 1)]


@pytest.mark.parametrize(("members", "samples", "units", "n", "squash"), CASES)
def test_the_definition_is_the_distribution(members: int, samples: int, units: int, n: int, squash: Squash) -> None:
    logits, _, key = given(members, units, n)
    value, log_mass = naive.draw(logits, key, samples, squash)
    if squash == "corner" and n == 2:  # the one log-odds they amount to, which has noise of another kind
        truth = value
        scored = Hypercube(logits.unsqueeze(1)).log_prob(value)
    else:
        law = (Hypercube if squash == "corner" else OneHotCategorical)(logits.unsqueeze(1))
        truth, scored = law.push(noise(key, samples, units, n).float()), law.log_prob(value)
    assert torch.equal(value, truth)
    assert_close(log_mass, scored, rtol=1e-5, atol=1e-5)
    assert torch.equal(naive.score(value, logits, squash), log_mass)


@needs_triton
@pytest.mark.parametrize(("members", "samples", "units", "n", "squash", "dtype"), typed(CASES))
def test_the_kernel_is_its_definition(
    members: int, samples: int, units: int, n: int, squash: Squash, dtype: torch.dtype
) -> None:
    triton = pytest.importorskip("concretely.kernel.discrete.triton")
    logits, _, key = given(members, units, n, dtype)
    value, log_mass = triton.draw(logits, key, samples, squash)
    truth = naive.draw(logits, key, samples, squash)
    assert torch.equal(value, truth[0])
    assert_close(log_mass, truth[1], rtol=1e-6, atol=1e-6)
    for narrow in value, value.to(dtype):
        assert_close(triton.score(narrow, logits, squash), truth[1], rtol=1e-6, atol=1e-6)
    by = torch.randn_like(log_mass)
    for each in by, by[:, :, :1].expand_as(by):
        pulled, definition = (kernel.score_backward(each, value, logits, squash) for kernel in (triton, naive))
        assert_close(pulled, definition, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=2e-6)


@needs_triton
def test_the_kernel_rules_categories_out() -> None:
    triton = pytest.importorskip("concretely.kernel.discrete.triton")
    _, _, key = given(1, 1, 1)
    logits = torch.tensor([0.0, -math.inf, 1.0, -math.inf], device=DEVICE).view(1, 1, 4)
    for kernel in naive, triton:
        value, log_mass = kernel.draw(logits, key, 50, "one-hot")
        assert (value.sum((0, 1, 2)) > 0).tolist() == [True, False, True, False]
        assert log_mass.isfinite().all()
        pulled = kernel.score_backward(torch.ones_like(log_mass), value, logits, "one-hot")
        assert pulled[..., 1::2].eq(0).all()
        assert pulled.isfinite().all()
        excluded = torch.eye(4, device=DEVICE)[1].view(1, 1, 1, 4)
        assert kernel.score(excluded, logits, "one-hot").item() == -math.inf


@needs_triton
def test_of_equals_the_first_is_chosen() -> None:
    triton = pytest.importorskip("concretely.kernel.discrete.triton")
    value = torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]], device=DEVICE).view(1, 1, 2, 3)
    logits = torch.randn(1, 2, 3, device=DEVICE)
    assert_close(triton.score(value, logits, "one-hot"), naive.score(value, logits, "one-hot"))


@pytest.mark.parametrize(("members", "samples", "units", "n", "squash"), CASES)
def test_gradients_are_those_of_the_definition(members: int, samples: int, units: int, n: int, squash: Squash) -> None:
    logits, _, key = given(members, units, n)
    logits.requires_grad_()
    by = torch.randn(members, samples, units, device=DEVICE)
    value, log_mass = discrete.draw(logits, key, samples, squash)
    assert not value.requires_grad
    definition = naive.draw(logits, key, samples, squash)[1]
    scored = discrete.score(value, logits, squash)
    truth, *found = (torch.autograd.grad((by * each).sum(), logits)[0] for each in (definition, log_mass, scored))
    for each in found:
        assert_close(each, truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("squash", SQUASHES)
def test_gradients_have_gradients(squash: Squash) -> None:
    logits, _, key = given(2, 3, 4)
    logits.requires_grad_()

    def second(log_mass: Tensor) -> Tensor:
        first = torch.autograd.grad(log_mass.square().sum(), logits, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), logits)[0]

    value, log_mass = discrete.draw(logits, key, 2, squash)
    truth = second(naive.draw(logits, key, 2, squash)[1])
    for each in log_mass, discrete.score(value, logits, squash):
        assert_close(second(each), truth, rtol=1e-3, atol=1e-4)


def batch(squash: Squash) -> Callable[..., Tensor]:
    def loss(logits: Tensor, prior: Tensor, key: Tensor) -> Tensor:
        value, log_mass = discrete.draw(logits, key, 3, squash)
        return (discrete.score(value, prior, squash) - log_mass.square()).sum()

    return loss


@pytest.mark.parametrize("squash", SQUASHES)
def test_a_batch_of_programs_is_a_loop(squash: Squash) -> None:
    logits, _, key = (each.unsqueeze(1) for each in given(4, 3, 4))
    prior = torch.randn(1, 3, 4, device=DEVICE)
    logits.requires_grad_(), prior.requires_grad_()
    loss = batch(squash)
    found = vmap(loss, in_dims=(0, None, 0))(logits, prior, key)
    looped = torch.stack([loss(logits[k], prior, key[k]) for k in range(4)])
    assert_close(found, looped)
    pairs = (torch.autograd.grad(each.sum(), (logits, prior)) for each in (found, looped))
    for each, other in zip(*pairs, strict=True):
        assert_close(each, other)


@pytest.mark.unchecked
def test_programs_compile() -> None:
    logits, _, key = (each.unsqueeze(1) for each in given(2, 3, 4))
    prior = torch.randn(1, 3, 4, device=DEVICE)
    logits.requires_grad_(), prior.requires_grad_()
    program = vmap(batch("corner"), in_dims=(0, None, 0))
    found, eager = (each(logits, prior, key) for each in (torch.compile(program, fullgraph=True), program))
    assert_close(found, eager)
    pairs = (torch.autograd.grad(each.sum(), (logits, prior)) for each in (found, eager))
    for each, other in zip(*pairs, strict=True):
        assert_close(each, other)


@pytest.mark.unchecked
@pytest.mark.parametrize("squash", SQUASHES)
def test_operators_keep_the_rules_of_operators(squash: Squash) -> None:
    logits, _, key = given(2, 3, 4)
    opcheck(discrete._draw, (logits.requires_grad_(), key, 2, squash, 1))
    value = naive.draw(logits.detach(), key, 2, squash)[0]
    opcheck(discrete._score, (value, logits, squash, 1))
