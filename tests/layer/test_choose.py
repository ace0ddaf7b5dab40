"""Subsets have exactly k ones, relaxed ones sum to k, and their gradients are those of their law."""

import itertools
import math
from typing import Any

import pytest
import torch

from concretely.distribution import Subset
from concretely.functional.noise import Keys
from concretely.layer import Choose, Selector, gumbel_top_k, penalty
from tests.budget import assert_frequency

HALVES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


@HALVES
@pytest.mark.parametrize("k", [1, 3, 8])
def test_there_are_exactly_k_ones(dtype: torch.dtype, k: int) -> None:
    scores = (5 * torch.randn(50, 8)).to(dtype).requires_grad_()
    choose = Choose(k, gradient="mean")
    for value in (
        choose(scores),
        choose.sample(scores),
        choose.eval()(scores),
        gumbel_top_k(scores, k, temperature=0.1),
        gumbel_top_k(scores, k, temperature=0),
        Selector(8, k).eval()(torch.ones(50, 8, dtype=dtype)),
        Selector(8, k).sample(torch.ones(50, 8, dtype=dtype)),
    ):
        assert value.dtype == dtype
        assert ((value == 0) | (value == 1)).all()
        assert (value.sum(-1) == k).all()


@HALVES
@pytest.mark.parametrize("temperature", [1e-3, 0.1, 1.0, 10.0])
def test_relaxed_values_lie_between_and_sum_to_k(dtype: torch.dtype, temperature: float) -> None:
    scores = (5 * torch.randn(50, 8)).to(dtype).requires_grad_()
    for k in (1, 3, 7):
        for value in (
            Choose(k, temperature=temperature)(scores),
            Selector(8, k, temperature=temperature)(torch.ones(50, 8, dtype=dtype)),
        ):
            assert ((value >= 0) & (value <= 1)).all()
            precision = torch.finfo(dtype).eps
            torch.testing.assert_close(
                value.double().sum(-1), torch.full((50,), float(k)).double(), rtol=0, atol=8 * precision
            )


@pytest.mark.parametrize("temperature", [1e-4, 0.5, 3.0])
def test_the_largest_entries_of_a_relaxed_draw_are_the_draw_of_the_same_noise(temperature: float) -> None:
    scores, keys = 3 * torch.randn(50, 8), torch.tensor([[4, 2]])
    choose = Choose(3, temperature=temperature)
    soft, hard = choose(scores, generator=Keys(keys)), choose.sample(scores, generator=Keys(keys))
    places = soft.topk(3, -1).indices
    assert torch.equal(torch.zeros_like(soft).scatter(-1, places, 1.0), hard)
    if temperature < 1e-3:
        assert ((soft - hard).abs() < 1e-2).float().mean() > 0.99


def test_the_gradient_of_exact_draws_is_that_of_the_marginals() -> None:
    scores, by = torch.randn(6, 5, dtype=torch.float64, requires_grad=True), torch.randn(6, 5, dtype=torch.float64)
    value = Choose(2, gradient="mean")(scores)
    (slope,) = torch.autograd.grad(value, scores, by)
    (expected,) = torch.autograd.grad(Subset(logits=scores, k=2).mean, scores, by)
    torch.testing.assert_close(slope, expected, rtol=1e-12, atol=1e-12)


def test_the_gradient_of_relaxed_draws_is_that_of_scores_with_constant_noise() -> None:
    scores, by = torch.randn(6, 5, dtype=torch.float64, requires_grad=True), torch.randn(6, 5, dtype=torch.float64)
    value = Choose(2, temperature=0.7)(scores)
    (slope,) = torch.autograd.grad(value, scores, by)
    weight = (value * (1 - value)).detach()  # of a sigmoid; the threshold moves so that the sum stays k
    expected = weight * (by - (weight * by).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True)) / 0.7
    torch.testing.assert_close(slope, expected, rtol=1e-10, atol=1e-12)


def test_the_penalty_is_the_kl_from_the_uniform_law_by_enumeration() -> None:
    scores = torch.randn(4, 5, dtype=torch.float64)
    choose = Choose(2, kl=0.3)
    choose(scores)
    total = torch.stack([scores[:, list(pair)].sum(-1) for pair in itertools.combinations(range(5), 2)], -1)
    log_probs = total.log_softmax(-1)
    kl = (log_probs.exp() * (log_probs + math.log(10))).sum(-1).mean()
    torch.testing.assert_close(penalty(choose), 0.3 * kl)
    assert choose.report().entropy.item() == pytest.approx(math.log(10) - kl.item())


def test_a_selection_has_the_marginals_of_its_law_and_decides_for_the_largest() -> None:
    selector, number = Selector(6, 2, weight=0.5), 20_000
    selector.logits.data.normal_()
    drawn = selector.sample(torch.ones(number, 6), generator=torch.Generator().manual_seed(0))
    found = selector.report()
    for hits, probability in zip(drawn.sum(0).tolist(), found.probabilities.tolist(), strict=True):
        assert_frequency(int(hits), of=number, probability=probability)
    assert selector.decide() == sorted(selector.logits.topk(2).indices.tolist())
    assert len(set(selector.decide())) == 2
    torch.testing.assert_close(penalty(selector), 0.5 * found.entropy)
    assert found.certainty.item() == pytest.approx(found.probabilities.topk(2).values.mean().item())


@pytest.mark.parametrize("each", ["point", "batch"])
def test_a_selection_is_drawn_for_each_point_or_for_the_batch(each: str) -> None:
    drawn = Selector(6, 2, each=each)(torch.ones(9, 6))
    assert (drawn == drawn[:1]).all() == (each == "batch")


def test_gumbel_top_k_draws_one_item_after_the_other() -> None:
    scores, number = torch.tensor([1.0, 0.0, -1.0, 0.5]), 100_000
    weight = scores.double().exp()
    drawn = gumbel_top_k(scores.expand(number, 4), 2, generator=torch.Generator().manual_seed(0))
    for pair in itertools.combinations(range(4), 2):
        one, two = (weight[list(pair)] / weight.sum()).tolist()
        probability = one * two / (1 - one) + two * one / (1 - two)
        hits = int((drawn[:, list(pair)] == 1).all(-1).sum())
        assert_frequency(hits, of=number, probability=probability, what=f"of {pair}")


def test_gumbel_top_k_has_the_gradient_of_a_value_that_sums_to_k() -> None:
    scores = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    for dim in (0, 1):
        value = gumbel_top_k(scores, 2, temperature=0.5, dim=dim)
        by = torch.randn_like(value)
        (slope,) = torch.autograd.grad(value, scores, by)
        torch.testing.assert_close(slope.sum(dim), torch.zeros_like(slope.sum(dim)), rtol=0, atol=1e-12)
        assert (slope != 0).any()
    assert not gumbel_top_k(scores, 2, temperature=0).requires_grad


@pytest.mark.unchecked
@pytest.mark.parametrize("gradient", ["relaxed", "mean"])
def test_a_compiled_choice_takes_any_number_of_items(gradient: Any) -> None:
    compiled = torch.compile(Choose(3, gradient=gradient), backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (10, 12, 40):  # few subsets, and many
        torch.testing.assert_close(compiled(torch.randn(4, n)).sum(-1), torch.full((4,), 3.0))


@pytest.mark.parametrize(
    ("shape", "k", "temperature"), [((64, 1024), 500, 3.0), ((64, 257), 102, 30.0), ((64, 10), 3, 0.5)]
)
def test_relaxed_choices_sum_to_k_to_the_rounding_of_their_entries(
    shape: tuple[int, int], k: int, temperature: float
) -> None:
    scores = torch.randn(shape, requires_grad=True)
    sums = Choose(k, temperature=temperature)(scores).double().sum(-1)
    assert ((sums - k).abs() <= math.sqrt(shape[1]) * torch.finfo(torch.float32).eps).all()
