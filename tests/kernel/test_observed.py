"""Likelihoods without logits are those with, on either path, batched, and as models use them."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import concretely as c
from concretely.kernel import affine, observed
from concretely.kernel.observed import naive
from concretely.model import layer
from tests.kernel import DEVICE, fast, kernel

SHAPES = pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 1), (2, 3, 5, 7, 9), (1, 50, 3, 150, 40), (1, 129, 1, 300, 33)], ids=str
)
"""Members, samples, data points, units and inputs: one, odd ones, more than a block of each."""


def given(members: int, samples: int, batch: int, units: int, inputs: int) -> tuple[Tensor, ...]:
    """States, a map and bits."""
    shapes = [(members, samples, batch, inputs), (members, units, inputs), (members, units)]
    state, weight, bias = (torch.randn(shape, device=DEVICE) for shape in shapes)
    return state, weight, bias, torch.rand(members, batch, units, device=DEVICE) < 0.3


@SHAPES
def test_the_definition_is_the_variable_of_the_library(shape: tuple[int, ...]) -> None:
    state, weight, bias, bits = given(*shape)
    logits = torch.einsum("rmbi,rui->rmbu", state.double(), weight.double()) + bias.double()[:, None, None]
    expected = c.Bernoulli(logits).log_prob(bits.double().unsqueeze(1).expand_as(logits)).sum(-1)
    torch.testing.assert_close(naive.log_likelihood(state, weight, bias, bits).double(), expected, rtol=1e-5, atol=1e-4)


@kernel
@SHAPES
def test_kernel_is_its_definition(shape: tuple[int, ...]) -> None:
    state, weight, bias, bits = given(*shape)
    found = fast("observed").log_likelihood(state, weight, bias, bits, "ieee")
    expected = naive.log_likelihood(state.double(), weight.double(), bias.double(), bits)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-4)
    shared = fast("observed").log_likelihood(state[:1].expand(2, -1, -1, -1), *(
        each[:1].expand(2, *each.shape[1:]) for each in (weight, bias, bits)
    ), "ieee")  # fmt: skip
    assert shared[1].equal(shared[0])
    torch.testing.assert_close(shared[:1], found[:1])


@kernel
def test_what_is_no_number_stays_so() -> None:
    state, weight, bias, bits = given(1, 2, 3, 4, 5)
    bias[0, 2] = math.nan
    assert fast("observed").log_likelihood(state, weight, bias, bits, "ieee").isnan().all()


def test_a_batch_of_programs_is_a_loop() -> None:
    arguments = [torch.stack([each, each.flip(-1)]) for each in given(1, 2, 3, 4, 5)]
    found = vmap(observed.log_likelihood)(*arguments)
    expected = torch.stack([observed.log_likelihood(*each) for each in zip(*arguments, strict=True)])
    torch.testing.assert_close(found, expected)


def test_rules_of_the_operator_hold() -> None:
    torch.library.opcheck(observed._log_likelihood, given(2, 3, 4, 5, 6))


@pytest.mark.parametrize("notation", ["4H~12V", "4H-4H-12V", "12V-4H-6V"])
def test_models_are_scored_alike_with_logits_and_without(notation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = c.parse(notation)
    make: Any = c.density if architecture.context is None else c.prediction
    model = make(notation, generator=torch.Generator().manual_seed(0))
    x = torch.randint(2, (7, 12))
    inputs = (x,) if architecture.context is None else (x, x[:, :6])
    plain = c.evaluate(model, *inputs, samples=50, generator=torch.Generator().manual_seed(1))
    always = SimpleNamespace(suits=lambda x, weight: True, affine=affine.affine)
    monkeypatch.setattr(layer, "affine", always)
    found = c.evaluate(model, *inputs, samples=50, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(found.log_likelihood, plain.log_likelihood, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        sampled = model.sample(3, *inputs[:-1], generator=torch.Generator().manual_seed(2))
    assert set(sampled.unique().tolist()) <= {0.0, 1.0}
