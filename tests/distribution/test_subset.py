"""A subset has exactly k items, the conditional Bernoulli law, and a relaxation that stays in the hypersimplex."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

import concretely as c
from concretely.functional import subset as law
from concretely.functional.polynomial import correlate, multiply
from concretely.functional.threshold import threshold
from tests.budget import assert_frequency, assert_mean
from tests.cases import DTYPES, LOGITS, TEMPERATURES

SIZES = [(1, 1), (2, 1), (3, 0), (3, 3), (5, 2), (6, 3), (7, 5)]


def enumerated(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """All subsets and their log probabilities, by the definition."""
    n = logits.shape[-1]
    states = torch.tensor([[float(i in chosen) for i in range(n)] for chosen in itertools.combinations(range(n), k)])
    states = states.to(logits.dtype)
    total = torch.where(states > 0, logits, 0).sum(-1)
    return states, total - total.logsumexp(0)


def random_logits(n: int, scale: float = 2.0, batch: tuple[int, ...] = ()) -> Tensor:
    return scale * torch.randn(*batch, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("scale", [1.0, 10.0, 300.0])
def test_log_mass_marginals_and_entropy_are_those_of_the_enumeration(n: int, k: int, scale: float) -> None:
    logits = random_logits(n, scale)
    states, log_mass = enumerated(logits, k)
    variable = c.Subset(logits=logits, k=k)
    torch.testing.assert_close(variable.log_prob(states), log_mass, rtol=1e-12, atol=1e-12)
    mean = log_mass.exp() @ states
    torch.testing.assert_close(variable.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(variable.variance, mean * (1 - mean), rtol=1e-12, atol=1e-12)
    entropy = -(log_mass.exp() * log_mass).sum()
    torch.testing.assert_close(variable.entropy(), entropy, rtol=1e-12, atol=1e-12)
    other = c.Subset(logits=logits.flip(0) / scale, k=k)
    divergence = (log_mass.exp() * (log_mass - other.log_prob(states))).sum()
    torch.testing.assert_close(kl_divergence(variable, other), divergence, rtol=1e-11, atol=1e-12)
    assert torch.equal(variable.mode, states[log_mass.argmax()])


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_the_support_has_every_subset_once(n: int, k: int) -> None:
    states = c.Subset(logits=torch.zeros(2, n), k=k).enumerate_support()
    assert states.shape == (math.comb(n, k), 2, n)
    assert (states.sum(-1) == k).all()
    assert len(states[:, 0].unique(dim=0)) == len(states)


def test_marginals_of_many_items_are_those_of_a_scan() -> None:
    n, k = 200, 30
    logits = random_logits(n)
    prefix = [torch.full((k + 1,), -math.inf, dtype=torch.float64)]
    prefix[0][0] = 0
    for logit in logits:
        with_item = torch.cat([torch.tensor([-math.inf], dtype=torch.float64), prefix[-1][:-1] + logit])
        prefix.append(torch.logaddexp(prefix[-1], with_item))
    suffix = [prefix[0]]
    for logit in logits.flip(0):
        with_item = torch.cat([torch.tensor([-math.inf], dtype=torch.float64), suffix[-1][:-1] + logit])
        suffix.append(torch.logaddexp(suffix[-1], with_item))
    pairs = zip(prefix[:-1], suffix[-2::-1], strict=True)
    without = torch.stack([(one[:k] + other[:k].flip(0)).logsumexp(0) for one, other in pairs])
    torch.testing.assert_close(c.Subset(logits=logits, k=k).mean, (logits + without - prefix[-1][k]).exp())


def test_jacobian_of_the_marginals_is_the_covariance_and_they_can_be_differentiated_twice() -> None:
    logits = random_logits(5)
    states, log_mass = enumerated(logits, 2)
    centred = states - log_mass.exp() @ states
    covariance = (centred * log_mass.exp().unsqueeze(-1)).T @ centred
    jacobian = torch.func.jacrev(lambda logits: law.marginals(logits, 2))(logits)
    torch.testing.assert_close(jacobian, covariance, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.func.jacfwd(lambda logits: law.marginals(logits, 2))(logits), covariance)
    rows = random_logits(5, batch=(2,)).requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: law.marginals(rows, 2), rows)
    assert torch.autograd.gradgradcheck(lambda rows: law.marginals(rows, 2), rows)


def test_second_derivatives_are_finite_in_float32() -> None:
    logits = torch.tensor([[0.0, 1e4, -1e4, 3.0], [5.0, 5.0, -math.inf, 0.0]], requires_grad=True)
    mean = c.Subset(logits=logits, k=2).mean
    (first,) = torch.autograd.grad(mean.square().sum(), logits, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), logits)
    assert first.isfinite().all()
    assert second.isfinite().all()


def test_products_of_polynomials_are_differentiated_right() -> None:
    left, right = (torch.randn(size, 3, dtype=torch.float64, requires_grad=True) for size in (3, 4))
    for width in (2, 5, 6):
        for function in (multiply, correlate):
            assert torch.autograd.gradcheck(lambda a, b, f=function, w=width: f(a, b, w), (left, right))
            assert torch.autograd.gradgradcheck(lambda a, b, f=function, w=width: f(a, b, w), (left, right))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), [(3, 1), (8, 8), (64, 20), (600, 300)])
def test_draws_have_exactly_k_ones_at_any_logits(n: int, k: int, dtype: torch.dtype) -> None:
    index = torch.randint(len(LOGITS), (16, n), generator=torch.Generator().manual_seed(n))
    variable = c.Subset(logits=torch.tensor(LOGITS, dtype=dtype)[index], k=k)
    value, log_prob = variable.sample_and_log_prob((5,))
    assert value.dtype == log_prob.dtype == dtype
    assert ((value == 1).sum(-1) == k).all()
    assert variable.support.check(value).all()
    assert log_prob.isfinite().all()
    assert ((variable.mode == 1).sum(-1) == k).all()
    torch.testing.assert_close(variable.mean.double().sum(-1), torch.full((16,), float(k)).double(), rtol=1e-2, atol=0)


def test_draws_follow_the_law_in_single_precision_also_between_items() -> None:
    logits = random_logits(5).float()
    states, log_mass = enumerated(logits.double(), 2)
    drawn = c.Subset(logits=logits, k=2).sample((20_000,))
    which = (drawn.unsqueeze(1) == states).all(-1).double().argmax(1)
    counts = torch.bincount(which, minlength=len(states))
    for hits, probability in zip(counts.tolist(), log_mass.exp().tolist(), strict=True):
        assert_frequency(hits, of=20_000, probability=probability)


def test_items_of_no_probability_are_never_chosen() -> None:
    logits = torch.tensor([-math.inf, 0.0, 1.0, -math.inf, 2.0])
    for k in (1, 2, 3):
        variable = c.Subset(logits=logits, k=k)
        assert (variable.sample((100,))[:, [0, 3]] == 0).all()
        assert variable.mean[0] == variable.mean[3] == 0
        assert variable.entropy().isfinite()
        assert variable.log_prob(torch.tensor([1.0] * k + [0.0] * (5 - k))) == -math.inf
    torch.testing.assert_close(variable.mean, torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]))


def test_interpolated_log_mass_is_linear_and_right_at_the_subsets() -> None:
    variable = c.Subset(logits=random_logits(6), k=3)
    states = variable.enumerate_support()
    torch.testing.assert_close(variable.interpolated_log_prob(states), variable.log_prob(states))
    mean = states[:4].mean(0)
    torch.testing.assert_close(variable.interpolated_log_prob(mean), variable.log_prob(states[:4]).mean())


@pytest.mark.parametrize(("n", "k"), [(2, 1), (9, 1), (9, 4), (9, 8), (300, 40)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4, 1e7])
def test_entries_above_the_threshold_sum_to_k(n: int, k: int, scale: float) -> None:
    scores = random_logits(n, scale, batch=(20,))
    total = torch.sigmoid(scores - threshold(scores, k)).sum(-1)
    assert (total - k).abs().max() <= 1e-12 * n * max(scale, 1)


def test_threshold_can_be_differentiated_twice() -> None:
    scores = random_logits(5, batch=(2,)).requires_grad_()
    assert torch.autograd.gradcheck(lambda scores: threshold(scores, 2), scores)
    assert torch.autograd.gradgradcheck(lambda scores: threshold(scores, 2), scores)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), [(2, 1), (5, 5), (8, 3), (64, 20)])
def test_relaxed_draws_lie_in_the_hypersimplex_and_their_k_largest_entries_are_the_discrete_draw(
    n: int, k: int, dtype: torch.dtype
) -> None:
    index = torch.randint(len(LOGITS), (8, n), generator=torch.Generator().manual_seed(n))
    alike = torch.zeros(1, n)
    logits = torch.cat([torch.tensor(LOGITS)[index], alike, alike + 3]).to(dtype).requires_grad_()
    variable = c.Subset(logits=logits, k=k)
    for temperature in TEMPERATURES:
        relaxed = variable.relax(temperature)
        noise = relaxed.noise((4,))
        hard, soft = variable.push(noise), relaxed.push(noise)
        assert soft.dtype == dtype
        assert relaxed.support.check(soft).all(), temperature
        lowest = torch.where(hard == 1, soft, math.inf).amin(-1)
        assert (lowest > torch.where(hard == 1, -math.inf, soft).amax(-1)).all(), temperature
        (gradient,) = torch.autograd.grad((soft * torch.randn_like(soft)).sum(), logits)
        assert gradient.isfinite().all(), temperature


def test_relaxation_at_temperature_zero_is_the_subset() -> None:
    variable = c.Subset(logits=random_logits(6, batch=(3,)), k=2)
    noise = variable.noise((5,))
    for zero in (0.0, torch.tensor([0.0, 0.5, 0.0])):
        soft = variable.relax(zero).push(noise)
        assert torch.equal(soft[:, ::2], variable.push(noise)[:, ::2])
    assert not torch.equal(soft[:, 1], variable.push(noise)[:, 1])


def test_common_shift_of_the_logits_changes_no_relaxed_draw() -> None:
    logits = random_logits(6)
    one, other = (c.Subset(logits=logits + shift, k=2).relax(0.5) for shift in (0.0, 7.0))
    noise = one.noise((5,))
    torch.testing.assert_close(one.push(noise), other.push(noise))


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_density_of_the_scores_integrates_to_one(temperature: float) -> None:
    axis = torch.arange(-60, 60, 0.1, dtype=torch.float64) + 0.05  # no point on the border between subsets
    node = torch.cartesian_prod(axis, axis)
    relaxed = c.Subset(logits=torch.tensor([0.7, -0.4], dtype=torch.float64), k=1).relax(temperature)
    density = relaxed.node_log_prob(node, node=node).exp()
    assert abs(density.sum().item() * 0.01 - 1) < 2e-3 * temperature**2  # the border costs the square of the step


def test_scores_follow_their_density() -> None:
    relaxed = c.Subset(logits=random_logits(4), k=2).relax(0.7)
    drawn = relaxed.drawn((20_000,))
    assert drawn.node is not None
    own = drawn.score()
    torch.testing.assert_close(own, relaxed.node_log_prob(drawn.value, node=drawn.node))
    # the mean of another density's ratio to the own one is 1
    other = c.Subset(logits=random_logits(4) * 0.8, k=2).relax(0.7)
    assert_mean((other.node_log_prob(drawn.value, node=drawn.node) - own).exp(), 1.0)
    assert c.monte_carlo_kl(relaxed, other, samples=2000).item() > 0
    with pytest.raises(ValueError, match=r"^a relaxed subset does not determine its scores"):
        relaxed.log_prob(drawn.value)


def test_gradient_of_a_relaxed_draw_is_that_of_shifted_scores() -> None:
    logits = random_logits(5).requires_grad_()
    relaxed = c.Subset(logits=logits, k=2).relax(0.6)
    drawn = relaxed.drawn((3,))
    assert drawn.node is not None
    slope = drawn.value * (1 - drawn.value)
    cotangent = torch.randn(3, 5, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(drawn.value, logits, cotangent)
    common = (slope * cotangent).sum(-1, keepdim=True) / slope.sum(-1, keepdim=True)
    torch.testing.assert_close(gradient, (slope * (cotangent - common) / 0.6).sum(0).detach())


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"k": 4}, ValueError, "k must lie between 0 and the number of items 3, got 4"),
        ({"k": -1}, ValueError, "k must lie between 0 and the number of items 3, got -1"),
        ({"k": 1.0}, TypeError, "k must be a whole number, got float"),
        ({"k": True}, TypeError, "k must be a whole number, got bool"),
        ({}, TypeError, "k must be a whole number, got NoneType"),
        ({"k": 1, "logits": torch.tensor(0.0)}, ValueError, "logits must have a last axis of at least 1 item"),
        ({"k": 1, "logits": torch.tensor([0.0, math.inf])}, ValueError, "logits must be below infinity, got inf at"),
        (
            {"k": 2, "logits": torch.tensor([0.0, -math.inf])},
            ValueError,
            "logits must leave at least 2 items possible, got 1",
        ),
    ],
)
def test_impossible_subsets_are_refused(options: dict[str, Any], error: type, sentence: str) -> None:
    with pytest.raises(error, match=f"^{sentence}"):
        c.Subset(**{"logits": torch.zeros(3), **options})


def test_subsets_of_different_sizes_cannot_be_compared() -> None:
    one, other = (c.Subset(logits=torch.zeros(3), k=k) for k in (1, 2))
    with pytest.raises(ValueError, match=r"^subsets must have the same k to be compared, got 1 and 2$"):
        kl_divergence(one, other)
    with pytest.raises(ValueError, match=r"^a subset must have at most 2\^20 states to be enumerated, got \d+$"):
        c.Subset(logits=torch.zeros(40), k=20).enumerate_support()


def test_transforms_change_nothing() -> None:
    logits = random_logits(5, batch=(3,))
    noise = c.Subset(logits=logits, k=2).noise()

    def program(logits: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        variable = c.Subset(logits=logits, k=2)
        hard = variable.push(noise)
        return hard, variable.relax(0.5).push(noise), variable.log_prob(hard), variable.mean

    expected = program(logits, noise)
    torch.testing.assert_close(torch.func.vmap(program)(logits, noise), expected)
    cotangent = torch.randn_like(logits)
    for part in (1, 3):
        rows = logits.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(program(rows, noise)[part], rows, cotangent)
        loss = torch.func.grad(lambda rows, part=part: (program(rows, noise)[part] * cotangent).sum())
        torch.testing.assert_close(loss(logits), gradient)
    single = logits.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(program(single, noise), program(single, noise))
        assert torch.equal(program(single, noise)[3], c.Subset(logits=single, k=2).mean)


@pytest.mark.unchecked
def test_relaxed_draws_and_marginals_are_one_graph_under_compile() -> None:
    logits = random_logits(5, batch=(3,)).requires_grad_()
    noise = c.Subset(logits=logits, k=2).noise()

    def program(logits: Tensor, noise: Tensor) -> Tensor:
        variable = c.Subset(logits=logits, k=2)
        return (variable.relax(0.5).push(noise) * variable.mean).square().sum()

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    value, expected = compiled(logits, noise), program(logits, noise)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, logits), torch.autograd.grad(expected, logits))


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_the_tree_has_the_law_of_the_enumeration(n: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = random_logits(n)
    few = law.marginals(logits, k)
    monkeypatch.setattr(law, "FEW", 0)
    torch.testing.assert_close(law.marginals(logits, k), few, rtol=1e-12, atol=1e-12)
    states, log_mass = enumerated(logits, k)
    drawn = c.Subset(logits=logits, k=k).sample((5_000,))
    which = (drawn.unsqueeze(1) == states).all(-1).double().argmax(1)
    for hits, probability in zip(torch.bincount(which, minlength=len(states)), log_mass.exp(), strict=True):
        assert_frequency(int(hits), of=5_000, probability=min(probability.item(), 1.0))


@pytest.mark.parametrize("number", [0.0, 1.0, -0.5, 1.5, math.nan])
@pytest.mark.parametrize("relaxed", [False, True])
def test_noise_outside_of_the_unit_interval_is_refused(number: float, relaxed: bool) -> None:
    variable = c.Subset(logits=torch.zeros(3, 5), k=2)
    noise = variable.noise()
    noise[2, 1, 4] = number
    with pytest.raises(ValueError, match=rf"noise must lie between 0 and 1, got {number:.9g} at index \(2, 1, 4\)"):
        (variable.relax(0.5) if relaxed else variable).push(noise)
