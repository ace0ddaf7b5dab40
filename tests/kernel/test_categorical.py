"""The categorical kernel is its definition, which is the distribution."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.testing import assert_close

from concretely.distribution import Hypercube, OneHotCategorical
from concretely.functional import categorical
from tests.kernel import DEVICE, PATHS, kernel, launched, on, opcheck
from tests.kernel.test_exp_concrete import SIZES, given, noise, typed

SQUASHES = ("one-hot", "corner")
CASES = [(*size, squash) for size in SIZES for squash in SQUASHES if squash != "corner" or not size[3] & (size[3] - 1)]


@pytest.mark.parametrize(("members", "samples", "units", "n", "squash"), CASES)
def test_the_definition_is_the_distribution(members: int, samples: int, units: int, n: int, squash: str) -> None:
    logits, _, key = given(members, units, n)
    value, log_mass = categorical.draw.definition(logits, key, samples, squash)
    if squash == "corner" and n == 2:  # the one log-odds they amount to, which has noise of another kind
        truth = value
        scored = Hypercube(logits=logits.unsqueeze(1)).log_prob(value)
    else:
        law = (Hypercube if squash == "corner" else OneHotCategorical)(logits=logits.unsqueeze(1))
        truth, scored = law.push(noise(key, samples, units, n).float()), law.log_prob(value)
    assert torch.equal(value, truth)
    assert_close(log_mass, scored, rtol=1e-5, atol=1e-5)
    assert torch.equal(categorical.score.definition(value, logits, squash), log_mass)


@kernel
@pytest.mark.parametrize(("members", "samples", "units", "n", "squash", "dtype"), typed(CASES))
def test_the_kernel_is_its_definition(
    members: int, samples: int, units: int, n: int, squash: str, dtype: torch.dtype
) -> None:
    logits, _, key = given(members, units, n, dtype)
    arguments = logits.requires_grad_(), key, samples, squash
    by = torch.randn(members, samples, units, device=DEVICE)
    with launched("categorical"):
        (value, log_mass), truth = categorical.draw(*arguments), categorical.draw.definition(*arguments)
        assert torch.equal(value, truth[0])
        assert not value.requires_grad
        assert not truth[0].requires_grad
        for each in log_mass, *(categorical.score(narrow, logits, squash) for narrow in (value, value.to(dtype))):
            assert_close(each, truth[1], rtol=1e-6, atol=1e-6)
            for slope in by, by[:, :, :1].expand_as(by):
                found, true = (torch.autograd.grad(of, logits, slope, retain_graph=True)[0] for of in (each, truth[1]))
                assert_close(found, true, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=2e-6)


@PATHS
def test_impossible_categories_are_ruled_out(path: str) -> None:
    _, _, key = given(1, 1, 1)
    logits = torch.tensor([0.0, -math.inf, 1.0, -math.inf], device=DEVICE).view(1, 1, 4).requires_grad_()
    excluded = torch.eye(4, device=DEVICE)[1].view(1, 1, 1, 4)
    with on(path, "categorical"):
        value, log_mass = categorical.draw(logits, key, 50, "one-hot")
        assert (value.sum((0, 1, 2)) > 0).tolist() == [True, False, True, False]
        assert log_mass.isfinite().all()
        (slope,) = torch.autograd.grad(log_mass.sum(), logits)
        assert slope[..., 1::2].eq(0).all()
        assert slope.isfinite().all()
        assert categorical.score(excluded, logits, "one-hot").item() == -math.inf


@kernel
def test_of_equals_the_first_is_chosen() -> None:
    value = torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]], device=DEVICE).view(1, 1, 2, 3)
    logits = torch.randn(1, 2, 3, device=DEVICE)
    with launched("categorical"):
        found = categorical.score(value, logits, "one-hot")
    assert_close(found, categorical.score.definition(value, logits, "one-hot"))


@PATHS
@pytest.mark.parametrize("squash", SQUASHES)
def test_gradients_have_gradients(squash: str, path: str) -> None:
    logits, _, key = given(2, 3, 4)
    logits.requires_grad_()

    def second(log_mass: Tensor) -> Tensor:
        first = torch.autograd.grad(log_mass.square().sum(), logits, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), logits)[0]

    with on(path, "categorical"):
        value, log_mass = categorical.draw(logits, key, 2, squash)
        found = [second(each) for each in (log_mass, categorical.score(value, logits, squash))]
    wide = logits.double().log_softmax(-1).unsqueeze(1)
    law = (Hypercube if squash == "corner" else OneHotCategorical)(logits=wide)
    truth = second(law.log_prob(value.double()))
    for each in found:
        assert_close(each, truth, rtol=1e-3, atol=1e-4)


def batch(squash: str) -> Callable[..., Tensor]:
    def loss(logits: Tensor, prior: Tensor, key: Tensor) -> Tensor:
        value, log_mass = categorical.draw(logits, key, 3, squash)
        return (categorical.score(value, prior, squash) - log_mass.square()).sum()

    return loss


@PATHS
@pytest.mark.parametrize("squash", SQUASHES)
def test_a_batch_of_programs_is_a_loop(squash: str, path: str) -> None:
    logits, _, key = (each.unsqueeze(1) for each in given(2, 3, 4))
    prior = torch.randn(1, 3, 4, device=DEVICE)
    logits.requires_grad_(), prior.requires_grad_()
    loss = batch(squash)
    with on(path, "categorical"):
        found = vmap(loss, in_dims=(0, None, 0))(logits, prior, key)
        looped = torch.stack([loss(logits[k], prior, key[k]) for k in range(2)])
        assert_close(found, looped)
        pairs = [torch.autograd.grad(each.sum(), (logits, prior)) for each in (found, looped)]
    assert_close(*pairs)


@kernel
@pytest.mark.parametrize("path", [pytest.param("plain", marks=pytest.mark.exhaustive), "fast"])
def test_programs_compile(path: str) -> None:
    logits, _, key = (each.unsqueeze(1) for each in given(2, 3, 4))
    prior = torch.randn(1, 3, 4, device=DEVICE)
    logits.requires_grad_(), prior.requires_grad_()
    program = vmap(batch("corner"), in_dims=(0, None, 0))
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    with on(path, "categorical"):
        found, eager = (each(logits, prior, key) for each in (compiled, program))
        assert_close(found, eager)
        pairs = [torch.autograd.grad(each.sum(), (logits, prior)) for each in (found, eager)]
    assert_close(*pairs)


@kernel
@pytest.mark.parametrize("squash", ["corner", pytest.param("one-hot", marks=pytest.mark.exhaustive)])
def test_operators_keep_the_rules_of_operators(squash: str) -> None:
    logits, _, key = given(2, 3, 4)
    logits.requires_grad_()
    with launched("categorical"):
        opcheck(categorical.draw, (logits, key, 2, squash, 1))
        value = categorical.draw(logits.detach(), key, 2, squash)[0]
        opcheck(categorical.score, (value, logits, squash, 1))
