"""The load of experts is what routing does, and the balance term is smallest where it is even."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from concretely.functional import balance
from concretely.functional.route import Routed, _routed, route, scale_of
from concretely.functional.top_k import Noise, inclusion, load_given_others
from concretely.layer import Router, advance, penalty
from tests.budget import assert_frequency, assert_mean

NOISES = pytest.mark.parametrize("noise", ["gumbel", "learned"])


def made(noise: str | None, k: int = 2, **options: float) -> Router:
    router = Router(3, 5, k, noise=noise, **options).double()
    for parameter in (*router.parameters(), router.bias):
        parameter.data.normal_()
    return router


def decided(router: Router, logits: Tensor) -> Tensor:
    """The experts that evaluation chooses."""
    return (logits + router.bias).topk(router.k, -1).indices


@NOISES
@pytest.mark.parametrize("k", [1, 2, 4, 5])
def test_the_expected_load_of_a_token_sums_to_k(noise: str, k: int) -> None:
    load = made(noise, k).expected_load(torch.randn(20, 3, dtype=torch.float64))
    torch.testing.assert_close(load.sum(-1), torch.full((20,), float(k), dtype=torch.float64), rtol=0, atol=1e-6)
    assert ((load >= 0) & (load <= 1 + 1e-9)).all()


def test_the_expected_load_with_gumbel_noise_is_that_of_successive_draws() -> None:
    logits = torch.randn(4, dtype=torch.float64)
    for k in (1, 2, 3):
        expected = torch.zeros(4, dtype=torch.float64)
        for order in itertools.permutations(range(4), k):
            probability, left = 1.0, logits.exp()
            for item in order:
                probability = probability * left[item] / left.sum()
                left = left.clone()
                left[item] = 0
            expected[list(order)] += probability
        torch.testing.assert_close(inclusion(logits, torch.ones(4).double(), k, "gumbel"), expected, rtol=1e-9, atol=0)


@NOISES
def test_the_expected_load_is_the_frequency_of_choices_and_the_mean_of_the_load(noise: str) -> None:
    router, token, number = made(noise), torch.randn(3, dtype=torch.float64), 40_000
    expected = router.expected_load(token)
    routing = router(token.expand(number, 3), generator=torch.Generator().manual_seed(0))
    for expert, probability in enumerate(expected.tolist()):
        hits = int((routing.indices == expert).sum())
        assert_frequency(hits, of=number, probability=probability, what=f"of expert {expert}")
        assert_mean(routing.load[:, expert], probability, f"of expert {expert}")


@NOISES
def test_the_mean_gradient_of_the_load_is_that_of_the_expected_load(noise: str) -> None:
    router, token, number = made(noise), torch.randn(3, dtype=torch.float64), 20_000
    law, (score, spread) = router._law, router._scores(token)
    parts = score, torch.ones_like(score) if spread is None else scale_of(spread)
    logits, scale = (each.detach().expand(number, 5).clone().requires_grad_() for each in parts)
    logits = (logits + router.bias).detach().requires_grad_()
    noisy = logits + scale * torch.stack([_noise(law, number, seed) for seed in range(5)], -1)
    load = load_given_others(logits, scale, noisy, noisy.topk(3, -1).values, 2, law)
    one, two = logits[0].detach().requires_grad_(), scale[0].detach().requires_grad_()
    exact = torch.autograd.grad(inclusion(one, two, 2, law)[0], (one, two))
    drawn = torch.autograd.grad(load[:, 0].sum(), (logits, scale))
    for mean, slopes in zip(exact, drawn, strict=True):
        for expert in range(5):
            assert_mean(slopes[:, expert], mean[expert].item(), f"of expert {expert}")


@pytest.mark.parametrize("law", ["normal", "gumbel"])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_route_and_the_penalty_as_one_node_are_their_definitions(k: int, law: Noise) -> None:
    logits, noise, by, other = (torch.randn(7, 5, dtype=torch.float64) for _ in range(4))
    bias, one, mask = torch.randn(5), torch.tensor(0.7).double(), torch.rand(7) > 0.3 if k > 1 else None
    spread = torch.randn(7, 5, dtype=torch.float64) if law == "normal" else None
    leaves = [each.requires_grad_() for each in (logits, spread) if each is not None]
    weights = {"balance": 0.3, "z": 0.2}

    def results(found: Routed, total: Tensor) -> list[Tensor]:
        parts = [*found[:3], total], [by[:, :k], other, by, one]
        slopes = [*leaves]
        for which in ([0, 1, 2, 3], [0], [1], [2], [0, 2, 3]):
            outputs, heads = ([part[i] for i in which] for part in parts)
            once = torch.autograd.grad(outputs, leaves, heads, retain_graph=True, allow_unused=True)
            twice = torch.autograd.grad(outputs, leaves, heads, create_graph=True, allow_unused=True)
            norm = sum(each.square().sum() for each in twice if each is not None)
            again = torch.autograd.grad(norm, leaves, retain_graph=True, allow_unused=True)
            slopes += [torch.zeros_like(by) if each is None else each for each in (*once, *twice, *again)]
        return [*found, total, *slopes]

    own, defined = route(logits, bias, spread, noise, k, law), _routed(logits, spread, bias, noise, k, law)
    total = balance.penalty(own.load, logits, own.probabilities, mask, **weights)
    expected = balance.combined(*balance.sums(defined.load, logits, mask), **weights)
    torch.testing.assert_close(results(own, total), results(defined, expected))


def _noise(law: str, number: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if law == "normal":
        return torch.randn(number, dtype=torch.float64, generator=generator)
    return -torch.empty(number, dtype=torch.float64).exponential_(generator=generator).log()


@pytest.mark.parametrize("noise", ["gumbel", "learned", None])
@pytest.mark.parametrize("k", [1, 2])
def test_the_balance_term_is_smallest_at_even_load_and_then_equals_its_weight(noise: str | None, k: int) -> None:
    router = made(noise, k, balance=0.7, z=0.0)
    even = torch.eye(5, dtype=torch.float64).repeat(4, 1)
    probabilities = torch.stack([even.roll(step, -1) for step in range(k)]).sum(0) / k
    indices = probabilities.topk(k, -1).indices
    routing = router(torch.randn(20, 3, dtype=torch.float64))
    routing = routing._replace(load=k * probabilities, probabilities=probabilities, indices=indices)
    assert router.penalty(routing).item() == pytest.approx(0.7, rel=1e-12)
    for _ in range(10):
        other = torch.rand(20, 5, dtype=torch.float64).softmax(-1)
        assert router.penalty(routing._replace(load=k * other, probabilities=other)) > 0.7


@pytest.mark.parametrize("noise", ["gumbel", "learned", None])
def test_padding_changes_nothing(noise: str | None) -> None:
    router, x = made(noise, balance=0.7, z=0.3), torch.randn(3, 6, 3, dtype=torch.float64)
    mask = torch.rand(3, 6, generator=torch.Generator().manual_seed(1)) > 0.4
    padded = router(torch.where(mask.unsqueeze(-1), x, 100.0), mask=mask)
    whole = padded._replace(**{name: each[mask] for name, each in padded._asdict().items()})
    torch.testing.assert_close(router.penalty(padded), router.penalty(whole))
    assert (padded.weights[~mask] == 0).all()
    assert (padded.load[~mask] == 0).all()
    advance(router)
    expected = torch.bincount(decided(router, padded.logits)[mask].flatten(), minlength=5).float()
    torch.testing.assert_close(router.counts, expected)
    empty = router(x, mask=torch.zeros(3, 6, dtype=torch.bool))
    assert router.penalty(empty).isfinite()
    before = router.bias.clone()
    advance(router)
    assert torch.equal(router.bias, before)


def test_the_z_term_is_the_mean_squared_log_normaliser() -> None:
    router = made("gumbel", balance=0.0, z=0.3)
    routing = router(torch.randn(7, 3, dtype=torch.float64))
    torch.testing.assert_close(penalty(router), 0.3 * routing.logits.logsumexp(-1).square().mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("k", [1, 2])
def test_experts_are_distinct_and_weights_are_shares_of_probabilities(dtype: torch.dtype, k: int) -> None:
    router = Router(3, 5, k).to(dtype)
    for mode in (True, False):
        routing = router.train(mode)(torch.randn(50, 3, dtype=dtype))
        chosen = torch.zeros(50, 5).scatter_add(1, routing.indices, torch.ones(50, k))
        assert (chosen.sum(-1) == k).all()
        assert chosen.max() == 1
        own = routing.probabilities.gather(-1, routing.indices)
        own = own / own.sum(-1, keepdim=True) if k > 1 else own
        torch.testing.assert_close(routing.weights, own.to(dtype))
    assert torch.equal(routing.indices, decided(router, routing.logits))


def test_a_router_with_all_experts_loads_all() -> None:
    routing = made("gumbel", 5)(torch.randn(4, 3, dtype=torch.float64))
    assert (routing.load == 1).all()


def test_running_loads_are_shares_of_choices() -> None:
    router = made(None, 1)
    router(torch.randn(30, 3, dtype=torch.float64))
    advance(router)
    first = router.counts.clone()
    router(torch.randn(30, 3, dtype=torch.float64))
    advance(router)
    assert router.counts.sum().item() == pytest.approx(30 * 0.99 + 30)
    assert (router.counts >= 0.99 * first - 1e-6).all()
    found = router.report()
    assert found.load.sum().item() == pytest.approx(1)
    assert 1 <= found.perplexity <= 5
    assert router.decide() == (found.load > 0.002).nonzero().flatten().tolist()


def test_the_penalty_without_noise_is_of_the_choices_with_twice_the_gradient_of_the_switch_loss() -> None:
    router, x = made(None, balance=0.7, z=0.0), torch.randn(30, 3, dtype=torch.float64)
    routing = router(x)
    share = torch.bincount(routing.indices.flatten(), minlength=5) / (2 * 30)
    torch.testing.assert_close(penalty(router), 0.7 * 5 * share.double().square().sum())
    (found,) = torch.autograd.grad(penalty(router), router.weight, retain_graph=True)
    switch = 0.7 * 5 * (share * routing.probabilities.mean(0)).sum()
    torch.testing.assert_close(found, 2 * torch.autograd.grad(switch, router.weight)[0])


@pytest.mark.parametrize("noise", ["gumbel", "learned", None])
def test_the_bias_moves_the_choice_but_not_the_weights(noise: str | None) -> None:
    router, x = made(noise), torch.randn(50, 3, dtype=torch.float64)
    router.bias.zero_()
    plain = router(x, generator=torch.Generator().manual_seed(0))
    router.bias += torch.tensor([0.0, 0.0, 100.0, 0.0, -100.0])
    moved = router(x, generator=torch.Generator().manual_seed(0))
    assert (moved.indices == 2).any(-1).all()
    assert (moved.indices != 4).all()
    assert torch.equal(moved.probabilities, plain.probabilities)
    own = moved.probabilities.gather(-1, moved.indices)
    torch.testing.assert_close(moved.weights, own / own.sum(-1, keepdim=True))
    expected = router.expected_load(x)
    torch.testing.assert_close(expected[:, 2], torch.ones(50, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("noise", ["gumbel", "learned", None])
@pytest.mark.parametrize("k", [1, 2])
def test_the_bias_evens_the_loads_of_evaluation(noise: str | None, k: int) -> None:
    router, x = made(noise, k, balance=0.0, z=0.0, bias_rate=0.03), torch.randn(1000, 3, dtype=torch.float64)
    router.bias.zero_()
    router.weight.data[0] = 0  # never the largest of these logits, alone
    for _ in range(300):
        router(x)
        advance(router)
        assert router.bias.mean().item() == pytest.approx(0, abs=1e-5)
    loads = torch.bincount(router.eval()(x).indices.flatten(), minlength=5)
    assert (loads - k * 200).abs().max() <= k * 20


def test_a_step_moves_the_bias_by_the_distance_of_a_load_below_an_even_one() -> None:
    router = Router(2, 2, 1, noise=None, bias_rate=0.5)
    router.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    router(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    advance(router, 2)
    torch.testing.assert_close(router.bias, torch.tensor([-0.5, 0.5]))  # loads 3 and 1 where 2 is even, and two steps
    router.bias_rate = 0.0
    router(torch.ones(4, 2))
    advance(router)
    torch.testing.assert_close(router.bias, torch.tensor([-0.5, 0.5]))


@pytest.mark.parametrize("noise", ["gumbel", "learned", None])
def test_reported_loads_are_those_of_evaluation(noise: str | None) -> None:
    router = Router(2, 3, 1, noise=noise)
    router.weight.data = torch.tensor([[0.1, 0.0], [0.0, 0.1], [0.01, 0.01]])
    router(torch.eye(2).repeat(100, 1))
    advance(router)
    assert router.report().load.tolist() == [0.5, 0.5, 0.0]
    assert router.decide() == [0, 1]


@pytest.mark.parametrize("noise", ["gumbel", "learned", None])
def test_padding_alone_has_finite_gradients_at_every_scale(noise: Any) -> None:
    own, x = Router(6, 64, 2, noise=noise, balance=10.0), torch.randn(5, 6, requires_grad=True)
    own(x, mask=torch.zeros(5, dtype=torch.bool))
    slopes = torch.autograd.grad(own.penalty() * 2.0**16, [x, *own.parameters()], allow_unused=True)
    assert all(slope is None or bool(slope.isfinite().all()) for slope in slopes)


def test_one_token_without_a_batch_is_routed_and_penalised() -> None:
    torch.manual_seed(0)
    own, x = Router(6, 4, 2, noise=None), torch.randn(6)
    alone, batch = own(x), own(x.unsqueeze(0))
    torch.testing.assert_close(own.penalty(alone), own.penalty(batch))
