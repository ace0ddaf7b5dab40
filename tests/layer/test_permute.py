"""Relaxed permutations are doubly stochastic at every temperature, or an error is raised, and match their draws."""

import pytest
import torch

from concretely.functional.noise import Keys
from concretely.functional.sinkhorn import matching
from concretely.layer import Permute, penalty, sinkhorn


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("temperature", [1e-3, 0.01, 0.1, 1.0, 10.0])
def test_rows_and_columns_sum_to_one_at_every_temperature(dtype: torch.dtype, temperature: float) -> None:
    scores = torch.randn(4, 7, 7, dtype=torch.float64).to(dtype)
    precision = max(8 * torch.finfo(dtype).eps, 1e-9)
    for value in (sinkhorn(scores, temperature=temperature), Permute(7, temperature=temperature)(scores)):
        assert value.dtype == dtype
        for axis in (-1, -2):
            torch.testing.assert_close(value.double().sum(axis), torch.ones(4, 7).double(), rtol=0, atol=precision)


def test_a_tolerance_that_is_not_reached_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"within 1e-10 of 1, got .* after 1 steps: use a higher temperature"):
        sinkhorn(torch.randn(6, 6), temperature=0.1, steps=1)


def test_two_items_have_a_closed_form() -> None:
    scores = torch.randn(5, 2, 2, dtype=torch.float64)
    share = torch.sigmoid((scores[:, 0, 0] + scores[:, 1, 1] - scores[:, 0, 1] - scores[:, 1, 0]) / 2 / 0.7)
    torch.testing.assert_close(sinkhorn(scores, temperature=0.7)[:, 0, 0], share)


@pytest.mark.parametrize("temperature", [0.01, 1.0])
def test_the_matching_of_a_relaxed_draw_is_the_draw_of_the_same_noise(temperature: float) -> None:
    scores, keys = torch.randn(20, 5, 5, dtype=torch.float64), torch.tensor([[3, 4]])
    permute = Permute(5, temperature=temperature)
    soft, hard = permute(scores, generator=Keys(keys)), permute.sample(scores, generator=Keys(keys))
    assert torch.equal(matching(soft.clamp(min=1e-300).log()), hard)
    straight = Permute(5, temperature=temperature, gradient="straight-through")(scores, generator=Keys(keys))
    assert torch.equal(straight, hard)
    for value in (hard, permute.eval()(scores)):
        assert ((value == 0) | (value == 1)).all()
        assert (value.sum(-1) == 1).all()
        assert (value.sum(-2) == 1).all()


def test_gradients_are_those_of_finite_differences() -> None:
    keys, permute = torch.tensor([[3, 4]]), Permute(3, temperature=0.7)
    scores = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda scores: permute(scores, generator=Keys(keys)), scores)
    straight = Permute(3, temperature=0.7, gradient="straight-through")
    by = torch.randn(2, 3, 3, dtype=torch.float64)
    slopes = [torch.autograd.grad(each(scores, generator=Keys(keys)), scores, by)[0] for each in (permute, straight)]
    torch.testing.assert_close(*slopes)


def test_diagnostics_are_those_of_the_matrix_without_noise() -> None:
    permute, scores = Permute(3, temperature=0.5), torch.randn(4, 3, 3)
    assert permute.report().certainty.isnan()
    permute(scores)
    share = sinkhorn(scores, temperature=0.5)
    torch.testing.assert_close(permute.report().certainty, share.amax(-1).mean())
    assert penalty(permute) == 0
