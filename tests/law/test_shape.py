"""Batch shape, samples, scores and noise agree in shape, whatever broadcasts."""

import pytest
import torch
from torch.distributions import Independent

import concretely as c
from tests.cases import EDGE, MASSES, TEMPERED, Case, each

pytestmark = EDGE


@each(*TEMPERED)
@pytest.mark.parametrize(
    ("batch", "temperature", "expected"),
    [
        ((), (), ()),
        ((5,), (), (5,)),
        ((5,), (5,), (5,)),
        ((5,), (5, 1), (5, 5)),
        ((5, 2), (5, 1), (5, 2)),
        ((), (3,), (3,)),
        ((4, 1), (3,), (4, 3)),
        ((0,), (1,), (0,)),
    ],
)
def test_temperature_broadcasts_against_the_batch_everywhere(
    case: Case, batch: tuple[int, ...], temperature: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    variable = case.build(case.logits(case.determined, batch=batch), torch.full(temperature, 0.5))
    assert variable.batch_shape == expected
    for sample_shape in ((), (7,), (2, 3)):
        value, log_prob = variable.rsample_and_log_prob(sample_shape)
        assert value.shape == (*sample_shape, *expected, *variable.event_shape)
        assert log_prob.shape == variable.log_prob(value).shape == (*sample_shape, *expected)
        assert variable.push(variable.noise(sample_shape)).shape == value.shape


def test_temperatures_of_rows_meet_rows_of_logits_and_not_their_categories() -> None:
    # torch gives batch_shape (5,) and a log_prob of shape (5, 5) here
    variable = c.ExpConcrete(logits=torch.zeros(5, 2), temperature=torch.full((5, 1), 0.5))
    assert variable.batch_shape == (5, 5)
    value = variable.sample()
    assert value.shape == (5, 5, 2)
    assert variable.log_prob(value).shape == (5, 5)


@each(*MASSES)
def test_masses_agree_in_shape(case: Case) -> None:
    variable = case.build(case.logits(4, batch=(3, 2)))
    value, log_prob = variable.sample_and_log_prob((5,))
    assert value.shape == (5, 3, 2, *variable.event_shape)
    assert log_prob.shape == variable.log_prob(value).shape == (5, 3, 2)
    assert variable.support.check(value).all()


@each(*MASSES, *TEMPERED)
def test_expanded_variable_scores_and_draws_alike(case: Case) -> None:
    options = () if case in MASSES else (0.5,)
    variable = case.build(case.logits(case.determined, batch=(3, 1)), *options)
    larger = variable.expand((2, 3, 4))
    assert type(larger) is type(variable)
    assert larger.batch_shape == (2, 3, 4)
    assert larger.event_shape == variable.event_shape
    value = larger.sample((6,))
    assert value.shape == (6, 2, 3, 4, *variable.event_shape)
    torch.testing.assert_close(larger.log_prob(value), variable.log_prob(value))
    assert repr(larger).startswith(type(variable).__name__)


@each(*MASSES, *TEMPERED)
def test_independent_sums_the_scores(case: Case) -> None:
    options = () if case in MASSES else (0.5,)
    variable = case.build(case.logits(case.determined, batch=(3, 2)), *options)
    together = Independent(variable, 1)
    value = together.sample((5,))
    torch.testing.assert_close(together.log_prob(value), variable.log_prob(value).sum(-1))


@each(*MASSES, *TEMPERED)
def test_scores_broadcast_against_values(case: Case) -> None:
    options = () if case in MASSES else (0.5,)
    one = case.build(case.logits(case.determined), *options)
    many = case.build(case.logits(case.determined, batch=(3,)), *options)
    value = one.sample((5, 1))
    assert many.log_prob(value).shape == (5, 3)


def test_float_temperature_is_kept_exactly() -> None:
    variable = c.Logistic(logits=torch.zeros(3), temperature=2 / 3)
    assert variable.temperature.item() == 2 / 3
    assert (
        repr(c.BinaryConcrete(logits=torch.tensor(1.5), temperature=2 / 3))
        == "BinaryConcrete(logits: 1.5, temperature: 0.666667)"
    )
    assert (
        repr(c.Concrete(logits=torch.zeros(2, 3), temperature=torch.ones(2)))
        == "Concrete(logits: (2, 3), temperature: (2,))"
    )
