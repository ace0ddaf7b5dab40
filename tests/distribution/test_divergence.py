"""Divergences are exact: against enumeration, quadrature, closed forms and Monte Carlo."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
from torch.distributions import kl_divergence

import concretely as c
from concretely.distribution.divergence import discrete_kl
from concretely.distribution.node import Node
from concretely.functional.integral import mean_log_sum, mean_soft_size
from tests.budget import assert_mean
from tests.cases import EDGE, LOG_SPACE, MASSES, Case, each
from tests.law.test_density import plane


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values if len(values) != 1 else values[0], dtype=torch.float64)


@each(*MASSES)
def test_divergence_of_masses_is_their_enumeration(case: Case) -> None:
    p, q = case.build(case.logits(8, batch=(3,))), case.build(case.logits(8, batch=(3,)).flip(0))
    states = p.enumerate_support()
    log_p, log_q = p.log_prob(states), q.log_prob(states)
    torch.testing.assert_close(kl_divergence(p, q), (log_p.exp() * (log_p - log_q)).sum(0))


def test_impossible_states_add_nothing_to_a_divergence() -> None:
    p, q = c.OneHotCategorical(logits=tensor(0.0, 0.0, -math.inf)), c.OneHotCategorical(logits=tensor(0.0, 0.0, 0.0))
    assert kl_divergence(p, q).item() == pytest.approx(math.log(1.5))
    assert kl_divergence(q, p).item() == math.inf
    assert kl_divergence(c.Bernoulli(logits=tensor(math.inf)), c.Bernoulli(logits=tensor(0.0))).item() == pytest.approx(
        math.log(2)
    )


@pytest.mark.parametrize("one", [0.0, 0.1, 3.0, 30.0, 45.0, 700.0])
@pytest.mark.parametrize("shift", [1e-3, 1.0, -1.0, 80.0, -80.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_divergence_of_bits_loses_nothing_where_both_are_nearly_sure(one: float, shift: float, sign: int) -> None:
    def log_mass(log_odds: Decimal) -> Decimal:
        return -(1 + (-log_odds).exp()).ln()

    with localcontext(prec=700):
        p, q = Decimal(sign * one), Decimal(sign * (one + shift))
        exact = sum(log_mass(s * p).exp() * (log_mass(s * p) - log_mass(s * q)) for s in (1, -1))
    found = kl_divergence(*(c.Bernoulli(logits=tensor(sign * x)) for x in (one, one + shift)))
    torch.testing.assert_close(found, tensor(float(exact)), rtol=1e-9 if abs(shift) < 1 else 1e-12, atol=0)


@each(*MASSES[:3])
def test_divergences_of_masses_are_differentiated_right(case: Case) -> None:
    def divergence(logits: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return kl_divergence(case.build(logits), case.build(other))

    given = [(scale * case.logits(4, batch=shape)).requires_grad_() for scale, shape in ((1.0, (3,)), (-0.5, ()))]
    assert torch.autograd.gradcheck(divergence, given)
    assert torch.autograd.gradgradcheck(divergence, given)
    by_func = torch.func.grad(lambda *given: divergence(*given).sum(), argnums=(0, 1))(*given)
    torch.testing.assert_close(torch.autograd.grad(divergence(*given).sum(), given), by_func)
    each_row = torch.autograd.grad(divergence(*given), given, torch.eye(3, dtype=torch.float64), is_grads_batched=True)
    torch.testing.assert_close(tuple(slope.sum(0) for slope in each_row), by_func)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_impossible_states_have_no_gradient(dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.5, 0.0, -math.inf], [2.0, -3.0, -math.inf]], dtype=dtype, requires_grad=True)
    p, q = c.OneHotCategorical(logits=logits), c.OneHotCategorical(logits=torch.zeros(3, dtype=dtype))
    kl_divergence(p, q).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert not logits.grad[:, 2].any()
    assert logits.grad[:, :2].all()
    bits = torch.tensor([math.inf, -math.inf, 1.0], dtype=dtype, requires_grad=True)
    kl_divergence(c.Bernoulli(logits=bits), c.Bernoulli(logits=torch.zeros(3, dtype=dtype))).sum().backward()
    assert bits.grad is not None
    torch.testing.assert_close(bits.grad, torch.tensor([0.0, 0.0, 0.19661], dtype=dtype))


@pytest.mark.parametrize("shift", [0.0, 1e-6, 1e-3, 0.0999, 0.1001, 1.0, 8.0, 1e3])
def test_divergence_of_logistic_nodes_at_one_temperature_is_its_closed_form(shift: float) -> None:
    p, q = c.Logistic(logits=tensor(shift), temperature=0.3), c.Logistic(logits=tensor(0.0), temperature=0.3)
    exact = shift / math.tanh(shift / 2) - 2 if shift > 1e-2 else shift**2 / 6 * (1 - shift**2 / 60)
    torch.testing.assert_close(kl_divergence(p, q), tensor(exact), rtol=1e-9, atol=0)
    # the integral for different temperatures ends there
    general = mean_soft_size(tensor(1.0), tensor(shift)) - 2
    torch.testing.assert_close(general, tensor(exact), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("temperatures", [(2 / 3, 1 / 2), (0.1, 2.0), (2.0, 0.1), (1e-3, 10.0), (10.0, 1e-3)])
@pytest.mark.parametrize("logits", [(0.0, 0.0), (8.0, 0.0), (-3.0, 5.0), (100.0, -100.0)])
def test_divergence_of_logistic_nodes_at_two_temperatures_is_its_integral(
    logits: tuple[float, float], temperatures: tuple[float, float]
) -> None:
    p, q = (
        c.Logistic(logits=tensor(logit), temperature=temperature)
        for logit, temperature in zip(logits, temperatures, strict=True)
    )
    noise = torch.arange(-45, 45, 1e-4, dtype=torch.float64)
    weight = torch.sigmoid(noise) * torch.sigmoid(-noise) * 1e-4
    value = p.push(noise)
    integral = ((p.log_prob(value) - q.log_prob(value)) * weight).sum()
    torch.testing.assert_close(kl_divergence(p, q), integral, rtol=1e-6, atol=1e-9)


def test_divergence_is_differentiated_right() -> None:
    logits, other = torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    cold, warm = tensor(0.2, 0.5, 3.0), tensor(0.7, 0.5, 0.4)
    arguments = tuple(x.requires_grad_() for x in (logits, other, cold, warm))

    def logistic(a, b, s, t):  # type: ignore[no-untyped-def]
        return kl_divergence(
            c.Logistic(logits=a, temperature=s, validate_args=False),
            c.Logistic(logits=b, temperature=t, validate_args=False),
        )

    assert torch.autograd.gradcheck(logistic, arguments, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(logistic, arguments)
    shifts = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(mean_log_sum, shifts, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(mean_log_sum, shifts)


@pytest.mark.parametrize("shift", [15.0, 20.0, 21.0, 25.0, 30.0, 40.0])
def test_integral_loses_nothing_where_torch_would_cut_the_softplus(shift: float) -> None:
    exact = shift / math.tanh(shift / 2)
    torch.testing.assert_close(mean_soft_size(tensor(1.0), tensor(shift)), tensor(exact), rtol=1e-14, atol=0)
    pair = mean_log_sum(tensor(0.0, -shift))  # the mean of log(E + exp(-shift) F)
    torch.testing.assert_close(2 * pair - 2 * torch.digamma(tensor(2.0)) + shift, tensor(exact - 2), rtol=1e-13, atol=0)


def learned(family: type, temperatures: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The divergence of two variables of a family with temperatures of their own, and its gradient by these."""
    own = [temperature.clone().requires_grad_() for temperature in temperatures]
    p, q = (family(logits=x, temperature=t) for x, t in zip(logits, own, strict=True))
    found = kl_divergence(p, q)
    return found.detach(), *torch.autograd.grad(found.sum(), own)


@pytest.mark.parametrize("family", [c.Logistic, c.BinaryConcrete, c.CircuitNode, c.BinaryCircuit])
def test_temperatures_that_happen_to_be_equal_have_their_gradients(family: type) -> None:
    logits, step = tensor(1.5, -0.5, 0.0, 3.0).expand(2, 4) * tensor(1.0, -0.3).unsqueeze(-1), 1e-5
    temperatures = tensor(0.5, 0.5, 2.0, 0.1).expand(2, 4)
    _, *gradients = learned(family, temperatures, logits)
    for side, gradient in enumerate(gradients):
        moved = [temperatures.clone() for _ in range(2)]
        for point, by in zip(moved, (step, -step), strict=True):
            point[side] += by
        above, below = (learned(family, point, logits)[0] for point in moved)
        torch.testing.assert_close(gradient, (above - below) / (2 * step), rtol=1e-6, atol=1e-6)
    by_ratio = torch.func.jacfwd(
        lambda t: kl_divergence(
            family(logits=logits[0], temperature=t), family(logits=logits[1], temperature=temperatures[1])
        ).sum()
    )
    torch.testing.assert_close(by_ratio(temperatures[0]), gradients[0], rtol=1e-9, atol=1e-9)


def test_equal_temperatures_of_two_categories_have_the_gradients_of_the_binary_divergence() -> None:
    logits = torch.stack([torch.linspace(-8, 8, 17, dtype=torch.float64), torch.full((17,), 0.7, dtype=torch.float64)])
    temperatures = torch.full((2, 17), 0.3, dtype=torch.float64)
    pairs = torch.stack([torch.zeros_like(logits) + 3, logits + 3], -1)
    expected = learned(c.Logistic, temperatures, logits)
    for family in (c.ExpConcrete, c.Concrete):
        torch.testing.assert_close(learned(family, temperatures, pairs), expected, rtol=1e-9, atol=1e-9)


def test_equal_temperatures_of_three_categories_have_the_gradients_of_the_integral() -> None:
    logits, temperatures = torch.stack([tensor(1.0, -0.5, 0.2), tensor(-0.3, 0.4, 0.0)]), tensor(0.8, 0.8)
    found, *gradients = learned(c.ExpConcrete, temperatures, logits)
    node, area = plane(-60, 60, 0.25)
    own = [temperature.clone().requires_grad_() for temperature in temperatures]
    log_p, log_q = (c.ExpConcrete(logits=x, temperature=t).log_prob(node) for x, t in zip(logits, own, strict=True))
    integral = (log_p.exp() * (log_p - log_q)).sum() * area
    expected = torch.autograd.grad(integral, own)
    torch.testing.assert_close(found, integral.detach(), rtol=1e-8, atol=0)
    torch.testing.assert_close(tuple(gradients), expected, rtol=1e-8, atol=0)


def test_temperatures_made_from_one_parameter_have_no_gradient_in_sum() -> None:
    log_temperature = tensor(-0.4).requires_grad_()
    p, q = (c.Concrete(logits=x, temperature=log_temperature.exp()) for x in (tensor(1, 2, 0), tensor(0, 1, 3)))
    (gradient,) = torch.autograd.grad(kl_divergence(p, q), log_temperature)
    assert abs(gradient.item()) < 1e-14


@pytest.mark.parametrize("n", [2, 3, 8, 64])
def test_mean_log_sum_is_digamma_without_shifts_and_moves_with_a_common_one(n: int) -> None:
    digamma = torch.digamma(tensor(n))
    torch.testing.assert_close(mean_log_sum(torch.zeros(n, dtype=torch.float64)), digamma, rtol=1e-12, atol=1e-12)
    shifts = 5 * torch.randn(n, dtype=torch.float64)
    torch.testing.assert_close(mean_log_sum(shifts + 100), mean_log_sum(shifts) + 100, rtol=1e-12, atol=1e-12)


def test_divergence_of_two_categories_is_the_binary_one() -> None:
    shift = torch.linspace(-20, 20, 41, dtype=torch.float64)
    zero = torch.zeros_like(shift)
    nary = kl_divergence(
        c.ExpConcrete(logits=torch.stack([shift, zero], -1), temperature=0.3),
        c.ExpConcrete(logits=torch.zeros(41, 2).double(), temperature=0.3),
    )
    torch.testing.assert_close(
        nary,
        kl_divergence(c.Logistic(logits=shift, temperature=0.3), c.Logistic(logits=zero, temperature=0.3)),
        rtol=1e-9,
        atol=1e-12,
    )


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (c.Gumbel(tensor(0.5)), c.Gumbel(tensor(-0.3))),
        (
            c.ExpConcrete(logits=tensor(1, 2, -3, 0.5), temperature=0.3),
            c.ExpConcrete(logits=tensor(-1, 1, 0, 0.2), temperature=0.3),
        ),
        (
            c.Concrete(logits=tensor(8, 0, 0), temperature=0.1),
            c.Concrete(logits=tensor(0, 0, 0), temperature=tensor(0.1)),
        ),
        (
            c.HypercubeConcrete(logits=tensor(1, 2, -3, 0.5), temperature=0.3),
            c.HypercubeConcrete(logits=tensor(-1, 1, 0, 0.2), temperature=0.3),
        ),
        (
            c.HypercubeConcrete(logits=tensor(2, 0), temperature=0.3),
            c.HypercubeConcrete(logits=tensor(-1, 0), temperature=0.5),
        ),
        (
            c.LogisticNormal(logits=tensor(1, 2, -3, 0.5), temperature=0.3),
            c.LogisticNormal(logits=tensor(-1, 1, 0, 0.2), temperature=0.5),
        ),
        (c.BinaryCircuit(logits=tensor(3.0), temperature=0.3), c.BinaryCircuit(logits=tensor(-1.0), temperature=0.5)),
        (
            c.BinaryConcrete(logits=tensor(3.0), temperature=2 / 3),
            c.BinaryConcrete(logits=tensor(-1.0), temperature=1 / 2),
        ),
    ],
    ids=str,
)
def test_divergence_is_the_mean_of_the_log_ratio(
    p: torch.distributions.Distribution, q: torch.distributions.Distribution
) -> None:
    one, other = (each if isinstance(each, Node) else each.node for each in (p, q))
    value = one.sample((100_000,))
    assert_mean(one.log_prob(value) - other.log_prob(value), kl_divergence(p, q).item())
    assert kl_divergence(p, p).item() == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("temperature", [2 / 3, 0.2, 0.1, 0.05])
@pytest.mark.parametrize("logit", [8.0, -8.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_divergence_estimated_from_draws_on_the_unit_interval_is_right(
    logit: float, temperature: float, dtype: torch.dtype
) -> None:
    exact = 8 / math.tanh(4) - 2
    p, q = (
        c.BinaryConcrete(logits=torch.full((1_000_000,), x, dtype=dtype), temperature=temperature) for x in (logit, 0.0)
    )
    log_ratio = c.monte_carlo_kl(p, q).double()
    if dtype in (torch.float64, torch.float32):
        assert_mean(log_ratio, exact)
    else:  # each of the two scores is rounded, by much more than the error of their mean
        assert log_ratio.mean().item() == pytest.approx(exact, rel=2e-2)


def test_swapping_zero_and_one_changes_nothing() -> None:
    noise = c.Logistic(logits=torch.tensor(8.0), temperature=0.05).noise((1000,))
    scores = []
    for sign in (1, -1):
        p, q = (c.BinaryConcrete(logits=torch.tensor(sign * x), temperature=0.05) for x in (8.0, 0.0))
        node = p.node.push(sign * noise)
        scores.append(p.node.log_prob(node) - q.node.log_prob(node))
    assert torch.equal(*scores)


def test_monte_carlo_estimate_is_unbiased_and_has_a_gradient() -> None:
    logits = tensor(1, 0, -1).requires_grad_()
    p, q = c.Concrete(logits=logits, temperature=0.5), c.Concrete(logits=tensor(0, 0, 0), temperature=0.5)
    exact = kl_divergence(p, q)
    draws = torch.stack([c.monte_carlo_kl(p, q, samples=5) for _ in range(2000)])
    assert_mean(draws.detach(), exact.item())
    (expected,) = torch.autograd.grad(exact, logits)
    each = logits.detach().expand(20_000, 3).clone().requires_grad_()
    (gradients,) = torch.autograd.grad(c.monte_carlo_kl(c.Concrete(logits=each, temperature=0.5), q).sum(), each)
    for column, exact_slope in zip(gradients.T, expected, strict=True):
        assert_mean(column, exact_slope.item())


ONE_BIT = [c.HypercubeConcrete, c.HypercubeLogisticNormal]


@EDGE
@pytest.mark.parametrize(("one", "other"), [ONE_BIT, ONE_BIT[::-1]])
def test_relaxations_of_one_bit_score_the_nodes_of_each_other(one: type, other: type) -> None:
    logits = tensor(0.5, -1.0, 3.0).unsqueeze(-1)
    p, q = one(logits=logits, temperature=0.7), other(logits=-logits, temperature=0.9)
    drawn = p.drawn((5,))
    by_value = q.node_log_prob(drawn.value)
    torch.testing.assert_close(q.node_log_prob(drawn.value, node=drawn.node), by_value)
    torch.testing.assert_close(q.node_log_prob(drawn.value, 1, node=drawn.node), by_value.sum(-1))
    nodes = torch.arange(-60, 60, 0.01, dtype=torch.float64).unsqueeze(-1)
    value = torch.tanh(nodes / 2).unsqueeze(-1).expand(-1, 3, 1).clamp(-1 + 1e-15, 1 - 1e-15)
    inside = value.abs().squeeze(-1) < 1 - 1e-12
    log_p, log_q = (each.node_log_prob(value).where(inside, -100.0) for each in (p, q))
    exact = (log_p.exp() * (log_p - log_q)).sum(0) * 0.01
    many = p.expand((50_000, 3))
    draws = c.monte_carlo_kl(many, q, samples=2)
    for column, mean in zip(draws.T, exact, strict=True):
        assert_mean(column, mean.item())


def test_divergence_of_variables_with_different_supports_is_refused() -> None:
    four, two = tensor(0, 0, 0, 0), tensor(0, 0)
    pairs = [
        (c.Concrete(logits=two, temperature=0.5), c.HypercubeConcrete(logits=four, temperature=0.5)),
        (c.BinaryConcrete(logits=two, temperature=0.5), c.Logistic(logits=two, temperature=0.5)),
    ]
    for p, q in pairs:
        with pytest.raises(ValueError, match=r"^p and q must have the same support, got \w+ and \w+$"):
            c.monte_carlo_kl(p, q)


def test_what_has_no_exact_divergence_says_what_to_do() -> None:
    with pytest.raises(NotImplementedError, match=r"different temperatures: estimate it with monte_carlo_kl"):
        kl_divergence(
            c.Concrete(logits=tensor(0, 0, 0), temperature=0.5), c.Concrete(logits=tensor(0, 0, 0), temperature=0.6)
        )
    with pytest.raises(NotImplementedError, match="normal noise only: estimate it with monte_carlo_kl"):
        kl_divergence(*(c.BinaryCircuit(logits=tensor(0.0), temperature=0.5, noise="laplace") for _ in range(2)))
    with pytest.raises(ValueError, match="samples must be positive, got 0"):
        c.monte_carlo_kl(
            c.Concrete(logits=tensor(0, 0, 0), temperature=0.5),
            c.Concrete(logits=tensor(0, 0, 0), temperature=0.6),
            samples=0,
        )


@pytest.mark.unchecked
def test_divergences_compile() -> None:
    def divergence(logits: torch.Tensor) -> torch.Tensor:
        categorical = kl_divergence(
            c.ExpConcrete(logits=logits, temperature=0.5), c.ExpConcrete(logits=torch.zeros(3), temperature=0.5)
        )
        return (
            categorical
            + kl_divergence(
                c.Logistic(logits=logits, temperature=0.5), c.Logistic(logits=torch.zeros(3), temperature=0.6)
            ).sum()
        )

    logits = torch.tensor([1.0, 0.0, -2.0])
    compiled = torch.compile(divergence, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits), divergence(logits))


@each(*MASSES)
def test_the_divergence_of_discrete_variables_is_that_of_the_registry(case: Case) -> None:
    p, q = (case.build(scale * case.logits(4, batch=(3,))) for scale in (1.0, -0.5))
    torch.testing.assert_close(discrete_kl(p, q), kl_divergence(p, q), rtol=0, atol=0)
    other = c.Bernoulli(logits=0.0) if case.has_categories else c.OneHotCategorical(logits=torch.zeros(4))
    with pytest.raises(TypeError, match=r"^p and q must be of the same class, got \w+ and \w+$"):
        discrete_kl(p, other)


@each(*MASSES, *LOG_SPACE)
def test_divergences_broadcast(case: Case) -> None:
    temperature = () if case in MASSES else (0.5,)
    for shapes in (((5, 1), (3,)), ((3,), (5, 1)), ((1,), (5, 3)), ((5, 3), (1,))):
        p, q = (case.build(case.logits(4, batch=shape), *temperature) for shape in shapes)
        torch.testing.assert_close(kl_divergence(p, q), kl_divergence(p.expand((5, 3)), q.expand((5, 3))))
