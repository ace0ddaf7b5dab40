"""A Bernoulli variable whose logits are an affine map is one like any other, before they are computed and after."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence
from torch.utils._pytree import tree_leaves

import concretely as c

USES: dict[str, Callable[[c.Bernoulli], Any]] = {
    "repr": repr,
    "type": type,
    "logits": lambda bits: bits.logits,
    "sample": lambda bits: bits.sample((2,), generator=torch.Generator().manual_seed(0)),
    "sample_and_log_prob": lambda bits: bits.sample_and_log_prob(generator=torch.Generator().manual_seed(0)),
    "expand": lambda bits: (repr(bits.expand((2, 3, 5))), bits.expand((2, 3, 5)).logits),
    "enumerate_support": lambda bits: bits.enumerate_support(),
    "relax": lambda bits: (repr(bits.relax(0.5)), bits.relax(0.5).logits),
    "mean": lambda bits: (bits.mean, bits.mode, bits.variance, bits.entropy()),
    "log_prob": lambda bits: bits.log_prob(torch.ones(3, 5)),
    "summed": lambda bits: bits.summed_log_prob(torch.ones(3, 5), 1),
    "summed over all": lambda bits: bits.summed_log_prob(torch.ones(3, 5), 2),
    "summed over none": lambda bits: bits.summed_log_prob(torch.ones(3, 5), 0),
    "of more samples": lambda bits: bits.summed_log_prob(torch.ones(4, 3, 5), 1),
    "shapes": lambda bits: (bits.batch_shape, bits.event_shape),
    "kl_divergence": lambda bits: kl_divergence(bits, c.Bernoulli(logits=torch.zeros(5))),
    "kl_divergence from": lambda bits: kl_divergence(c.Bernoulli(logits=torch.zeros(5)), bits),
    "copy": lambda bits: (copy.copy(bits).logits, copy.deepcopy(bits).logits, pickle.loads(pickle.dumps(bits)).logits),
}


def given() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)


@pytest.mark.parametrize("use", USES)
def test_it_is_the_variable_with_these_logits(use: str) -> None:
    state, weight, bias = given()
    written = c.Bernoulli(logits=torch.nn.functional.linear(state, weight, bias))
    lazy, used = (c.Bernoulli.from_affine(state, weight, bias) for _ in range(2))
    assert torch.equal(used.logits, written.logits)
    for bits in (lazy, used):
        for found, expected in zip(*(tree_leaves(USES[use](each)) for each in (bits, written)), strict=True):
            (torch.testing.assert_close if isinstance(expected, Tensor) else same)(found, expected)


def same(found: object, expected: object) -> None:
    assert found == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_log_probabilities_are_summed_in_float32_at_least(dtype: torch.dtype) -> None:
    bits = c.Bernoulli.from_affine(*(each.to(dtype) for each in given()))
    wide = dtype if dtype == torch.float64 else torch.float32
    assert bits.summed_log_prob(torch.ones(3, 5, dtype=dtype), 1).dtype == bits.logits.dtype == wide


def test_logits_are_differentiated_as_if_the_layer_had_computed_them() -> None:
    leaves = [each.requires_grad_() for each in given()]
    bits = c.Bernoulli.from_affine(*leaves)
    with torch.no_grad():
        assert bits.logits.requires_grad
        constant = c.Bernoulli.from_affine(*leaves)
    assert not constant.logits.requires_grad
