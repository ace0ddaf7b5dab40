"""Gates have the expected L0 of their draws, prune what they close, and reach a target of sparsity."""

import math
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from torch import nn

from concretely.functional.hard_concrete import node_at
from concretely.functional.noise import Keys
from concretely.layer import Gate, Target, advance, penalty, report
from concretely.schedule import Warmup
from tests.budget import assert_frequency, assert_mean


def made(*shape: int, **options: object) -> Gate:
    gate = Gate(*shape, **options)
    gate.logits.data.normal_(0, 2)
    return gate


@pytest.mark.parametrize("temperature", [0.3, 2 / 3])
def test_the_expected_l0_is_a_quadrature_and_the_mean_of_draws(temperature: float) -> None:
    gate, number = made(4, temperature=temperature), 50_000
    drawn = gate(torch.ones(number, 4), generator=torch.Generator().manual_seed(0)).detach()
    for place, logit in enumerate(gate.logits.tolist()):
        # the noise that leads to a node above log(-γ/ζ), by the density of the logistic law
        start = temperature * torch.tensor(0.1 / 1.1).log().item() - logit
        expected, _ = quad(lambda noise: 0.25 / torch.tensor(noise / 2).cosh().item() ** 2, start, 60)
        assert gate.open_probabilities()[place].item() == pytest.approx(expected, rel=1e-5)
        assert_frequency(int((drawn[:, place] != 0).sum()), of=number, probability=expected)
    assert_mean((drawn != 0).double().sum(-1), gate.l0().item())
    torch.testing.assert_close(penalty(gate), gate.l0() / 4)
    cost = torch.arange(4.0)
    torch.testing.assert_close(gate.l0(cost), (gate.open_probabilities() * cost).sum())


@pytest.mark.parametrize("probability", [0.01, 0.5, 0.9])
def test_gates_start_open_with_the_given_probability(probability: float) -> None:
    gate = Gate(3, probability=probability, temperature=0.4)
    torch.testing.assert_close(gate.open_probabilities(), torch.full((3,), probability))


def test_evaluation_closes_gates_that_are_closed_with_a_probability_of_one_half() -> None:
    gate = made(200).eval()
    value = gate(torch.ones(200))
    assert torch.equal(value == 0, gate.open_probabilities() <= 0.5)
    found = gate.report()
    assert found.sparsity.item() == pytest.approx((value == 0).float().mean().item())
    assert gate.decide() == value.nonzero().flatten().tolist()
    assert gate.decide(keep=7) == sorted(gate.logits.topk(7).indices.tolist())


def test_samples_are_the_relaxed_draws_of_the_same_noise_above_one_half() -> None:
    gate, keys = made(50), torch.tensor([[1, 2]])
    for temperature in (1e-6, 2 / 3):
        gate.temperature = temperature
        soft = gate(torch.ones(30, 50), generator=Keys(keys))
        hard = gate.sample(torch.ones(30, 50), generator=Keys(keys))
        assert torch.equal(hard == 1, soft >= 0.5)
        assert ((hard == 0) | (hard == 1)).all()
        if temperature < 1e-3:
            assert torch.equal(soft, hard)


@pytest.mark.parametrize("each", ["point", "batch"])
def test_gates_are_drawn_for_each_point_or_for_the_batch(each: str) -> None:
    drawn = made(3, axis=-3, each=each)(torch.ones(8, 3, 4, 4))
    assert (drawn == drawn[..., :1, :1]).all()
    assert (drawn == drawn[:1]).all() == (each == "batch")


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_pruned_layers_equal_gated_ones(kind: str) -> None:
    if kind == "linear":
        before, after, x, axis = nn.Linear(4, 9), nn.Linear(9, 3), torch.randn(5, 4), -1
    else:
        before, after, x, axis = nn.Conv2d(4, 9, 3), nn.Conv2d(9, 3, 3), torch.randn(5, 4, 8, 8), -3
    gate = made(9, axis=axis).eval()
    one, two = gate.prune(before, after)
    assert len(one.weight) == two.weight.shape[1] == len(gate.decide()) < 9
    torch.testing.assert_close(two(one(x).relu()), after(gate(before(x).relu())))
    assert before.weight.shape[0] == 9
    assert str(len(gate.decide())) in repr(one)


def weights(*gates: torch.Tensor) -> torch.Tensor:
    return gates[0].sum() * gates[1].sum() + gates[1].sum() * 3


def test_the_expected_sparsity_of_products_is_the_mean_over_draws() -> None:
    gates, number = (made(5), made(4)), 20_000
    target = Target(gates, sparsity=0.5, size=weights)
    drawn = [gate(torch.ones(number, gate.shape[0])) != 0 for gate in gates]
    sizes = torch.stack([weights(*(each[i].float() for each in drawn)) for i in range(2000)])
    assert_mean(1 - sizes / (5 * 4 + 4 * 3), target.report().expected_sparsity.item())


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("sparsity", [0.3, 0.9])
def test_any_optimizer_reaches_the_target(optimizer: type[torch.optim.Optimizer], sparsity: float) -> None:
    torch.manual_seed(0)
    gate = Gate(100)
    model = nn.ModuleDict({"gate": gate, "target": Target([gate], sparsity=Warmup(100, end=sparsity))})
    optimizer = optimizer(model.parameters(), lr=0.05 if optimizer is torch.optim.Adam else 1.0)
    value = torch.linspace(0, 1, 100)  # what is lost with a gate that is closed
    for _ in range(600):
        loss = -0.1 * (gate(value.expand(8, 100)).sum(-1)).mean() / 50
        optimizer.zero_grad()
        (loss + penalty(model)).backward()
        optimizer.step()
        advance(model)
    found = report(model)["target"]
    assert found.expected_sparsity.item() == pytest.approx(sparsity, abs=0.02)


def test_a_gate_under_a_target_is_penalised_by_the_target_alone() -> None:
    gate = made(5)
    model = nn.ModuleDict({"gate": gate, "target": Target([gate], sparsity=0.5)})
    assert penalty(model) == 0
    assert penalty(gate) > 0
    assert "target.multipliers" in model.state_dict()
    assert not any("gates" in name for name in model.state_dict())
    model["target"].multipliers.data = torch.tensor([0.3, 0.7])
    missing = 0.5 - model["target"].report().expected_sparsity
    torch.testing.assert_close(penalty(model), 10 * (0.3 * missing + 0.7 * missing**2))
    (slope,) = torch.autograd.grad(penalty(model), model["target"].multipliers)
    torch.testing.assert_close(slope, -10 * torch.stack([missing, missing**2]))


DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)


def scattered(*shape: int, dtype: torch.dtype = torch.float32, **options: Any) -> Gate:
    gate = Gate(*shape, **options)
    gate.logits.data = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return gate.to(dtype)


@DTYPES
@pytest.mark.parametrize("temperature", [2 / 3, torch.linspace(0.1, 2, 50)], ids=["one", "by unit"])
def test_evaluation_keeps_the_chosen_gates_and_changes_no_others(dtype: torch.dtype, temperature: Any) -> None:
    gate = scattered(50, dtype=dtype, temperature=temperature)
    edge = torch.as_tensor(temperature) * node_at(0, gate.stretch)
    near = torch.tensor([0.0, 1e-3, -1e-3, 1e-2, 30.0, -30.0])
    gate.logits.data[:6] = (edge.expand(50)[:6] + near).to(dtype)
    before, means, is_open = gate.logits.clone(), gate._law().mean, gate.values() > 0
    chosen = torch.rand(50, generator=torch.Generator().manual_seed(1)) > 0.5
    gate.keep(chosen)
    assert torch.equal(gate.values() > 0, chosen)
    assert torch.equal(gate.logits[chosen == is_open], before[chosen == is_open])
    opened = chosen & ~is_open & (means > 0.05)
    torch.testing.assert_close(gate.values()[opened], means[opened], rtol=0, atol=0.02 if dtype.itemsize == 2 else 1e-5)


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("shift", [-4.0, 0.0, 4.0])
def test_a_matched_target_keeps_the_most_probable_gates_that_it_allows(sparsity: float, shift: float) -> None:
    one, other = scattered(30), scattered(10, 2)
    for gate in (one, other):
        gate.logits.data += shift
    probabilities = torch.cat([gate.open_probabilities().flatten() for gate in (one, other)])
    target = Target([one, other], sparsity=sparsity)
    target.match()
    expected = 50 - math.ceil(50 * sparsity - 1e-9)
    best = sorted(probabilities.topk(expected).indices.tolist())
    assert one.decide() + [30 + place for place in other.decide()] == best
    assert target.report().sparsity.item() == pytest.approx(1 - expected / 50)
    before = one.logits.clone()
    target.match()
    assert torch.equal(one.logits, before)


def test_a_matched_size_is_at_most_what_the_target_allows_and_one_more_gate_exceeds_it() -> None:
    one, other = scattered(64), scattered(100)
    target = Target([one, other], sparsity=0.8, size=lambda one, other: one.sum() * other.sum() + 10 * other.sum())
    order = torch.cat([gate.open_probabilities() for gate in (one, other)]).argsort(descending=True)
    target.match()
    counts = [len(gate.decide()) for gate in (one, other)]
    allowed = 0.2 * (64 * 100 + 10 * 100)
    assert counts[0] * counts[1] + 10 * counts[1] <= allowed
    counts[int(order[sum(counts)] >= 64)] += 1
    assert counts[0] * counts[1] + 10 * counts[1] > allowed


def test_gates_that_may_not_move_stay() -> None:
    one, other = scattered(30), scattered(20)
    before = one.logits.clone()
    target = Target([one, other], sparsity=0.75, size=lambda one, other: one.sum() + other.sum())
    target.match(other)
    assert torch.equal(one.logits, before)
    assert len(other.decide()) == max(0, 12 - len(one.decide()))
    with pytest.raises(ValueError, match="gates must be gates of this target"):
        target.match(scattered(30))


def test_a_target_takes_one_gate() -> None:
    gate = Gate(10)
    assert Target(gate, sparsity=0.5).governs == (gate,)
