"""A squashed value remembers its node, as long as it is that very tensor and unchanged."""

import pytest
import torch

import concretely as c
from concretely.distribution.memory import recall
from tests.cases import RELAXATIONS, Case, each


@each(*RELAXATIONS)
def test_drawn_value_carries_its_node_and_is_scored_there(case: Case) -> None:
    relaxed = case.build(case.logits(4, batch=(3,)), 0.5)
    value, log_prob = relaxed.rsample_and_log_prob((20,))
    assert value.node.shape[0] == 20
    torch.testing.assert_close(relaxed.log_prob(value), log_prob, rtol=1e-9, atol=1e-9)


def test_value_scored_without_its_node_gets_the_same_score_where_it_is_precise() -> None:
    for relaxed in (c.BinaryConcrete(torch.randn(3).double(), 0.7), c.Concrete(torch.randn(3, 4).double(), 0.7)):
        value = relaxed.sample((50,))
        torch.testing.assert_close(relaxed.log_prob(value.clone()), relaxed.log_prob(value), rtol=1e-6, atol=1e-6)
    pair = c.HypercubeConcrete(torch.randn(3, 1).double(), 0.7)
    value = pair.sample((50,))
    torch.testing.assert_close(pair.log_prob(value.clone()), pair.log_prob(value), rtol=1e-6, atol=1e-6)


def test_memory_ends_with_a_change_in_place() -> None:
    value = c.BinaryConcrete(torch.zeros(3), 0.5).sample()
    assert recall(value, support=c.BinaryConcrete.support) is value.node
    value.mul_(0.5)
    assert recall(value, support=c.BinaryConcrete.support) is None


def test_memory_works_in_inference_mode() -> None:
    with torch.inference_mode():
        relaxed = c.BinaryConcrete(torch.zeros(3), 0.5)
        assert relaxed.log_prob(relaxed.sample()).isfinite().all()


def test_gradient_asked_for_after_the_draw_is_that_of_the_density() -> None:
    relaxed = c.Concrete(torch.randn(4, dtype=torch.float64), 0.7)
    drawn = relaxed.sample((5,)).requires_grad_()
    plain = drawn.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(relaxed.log_prob(drawn).sum(), drawn)
    (expected,) = torch.autograd.grad(relaxed.log_prob(plain).sum(), plain)
    torch.testing.assert_close(gradient, expected)


def test_pathwise_gradient_of_a_score_goes_through_the_node() -> None:
    logits = torch.tensor(8.0, dtype=torch.float64, requires_grad=True)
    p, q = c.BinaryConcrete(logits, 0.05), c.BinaryConcrete(torch.tensor(0.0, dtype=torch.float64), 0.05)
    value = p.rsample((100,))
    (gradient,) = torch.autograd.grad((p.log_prob(value) - q.log_prob(value)).sum(), logits)
    noise = 0.05 * value.node.detach() - 8
    # the log ratio is that of the nodes: log f(L) - log f(L + logits), whose slope is tanh((L + logits) / 2)
    assert gradient.item() == pytest.approx(torch.tanh((noise + 8) / 2).sum().item(), rel=1e-9)


def test_memory_ends_with_a_change_in_place_in_inference_mode() -> None:
    with torch.inference_mode():
        value = c.BinaryConcrete(torch.zeros(3), 0.5).sample()
        value.fill_(0.5)
        assert recall(value, support=c.BinaryConcrete.support) is None


def test_memory_is_of_no_use_to_another_way_of_squashing() -> None:
    value = c.Concrete(torch.zeros(3), 0.5).sample()
    other = c.BinaryConcrete(torch.zeros(3), 0.5)
    torch.testing.assert_close(other.log_prob(value), other.log_prob(value.clone()))


def log_ratio(value: torch.Tensor) -> torch.Tensor:
    """The log density ratio of a sure variable and of a fair one, both cold."""
    p, q = (c.BinaryConcrete(torch.tensor(logit), 0.1) for logit in (8.0, 0.0))
    return p.log_prob(value) - q.log_prob(value)


@pytest.mark.unchecked
def test_value_that_has_lost_its_node_is_never_scored_wrongly() -> None:
    value = c.BinaryConcrete(torch.tensor(8.0), 0.1).sample((1000,))
    edge = value >= 1 - 2**-24
    assert edge.any()
    for scored in (torch.func.vmap(log_ratio)(value), torch.compile(log_ratio, backend="aot_eager")(value.clone())):
        assert torch.equal(scored.isnan(), edge)
    with pytest.raises(ValueError, match="far enough inside the support"):
        log_ratio(value.double())
