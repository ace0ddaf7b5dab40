"""What is random at a step follows from the seed, the purpose and the step alone."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concretely.functional.noise import Keys
from concretely.training.rng import DRAWS, Order, Purpose, draw_offsets, generator_of, keys_of, keys_of_part, seed_of


@given(points=st.integers(1, 30), batch=st.integers(1, 80), seed=st.integers(0, 2**63 - 1), start=st.integers(0, 10**9))
def test_the_batch_of_a_step_follows_from_the_seed_and_the_step(points: int, batch: int, seed: int, start: int) -> None:
    order = Order(points=points, batch=batch, seed=seed)
    steps = [start, start + 1, start, 0, start + 1]
    found = [order.indices(step) for step in steps]
    assert all(indices.shape == (batch,) for indices in found)
    for step, indices in zip(steps, found, strict=True):
        assert indices.equal(Order(points=points, batch=batch, seed=seed).indices(step))


@given(points=st.integers(1, 12), batch=st.integers(1, 30), seed=st.integers(0, 99))
def test_every_epoch_visits_each_point_once(points: int, batch: int, seed: int) -> None:
    order = Order(points=points, batch=batch, seed=seed)
    visits = torch.cat([order.indices(step) for step in range(3 * points)])
    for epoch in visits.split(points):
        assert epoch.sort().values.equal(torch.arange(len(epoch))) or len(epoch) < points


def test_no_two_epochs_or_seeds_have_the_same_order() -> None:
    orders = [Order(points=50, batch=50, seed=seed).indices(step) for seed in range(4) for step in range(4)]
    assert len({tuple(order.tolist()) for order in orders}) == 16


def test_no_two_purposes_seeds_or_steps_have_the_same_randomness() -> None:
    cases = list(product([0, 1, 2**32, 2**63 - 1], Purpose, [0, 1, 2, 10**9]))
    assert len({seed_of(*case) for case in cases}) == len(cases)
    assert all(0 <= seed_of(*case) < 2**63 for case in cases)


@pytest.mark.parametrize("purpose", Purpose)
def test_a_generator_starts_afresh_every_time_it_is_asked_for(purpose: Purpose) -> None:
    draws = [torch.rand(3, generator=generator_of(5, purpose, 2)) for _ in range(2)]
    assert draws[0].equal(draws[1])
    assert not draws[0].equal(torch.rand(3, generator=generator_of(5, purpose, 3)))


@given(draws=st.integers(0, 5), parts=st.integers(1, 5), seed=st.integers(0, 9), step=st.integers(0, 3))
def test_no_two_draws_of_a_step_have_the_same_key_whatever_their_number(
    draws: int, parts: int, seed: int, step: int
) -> None:
    whole, more = keys_of(seed, Purpose.NOISE, step), 20
    keys = whole[0] + draw_offsets(draws * parts, parts)
    used = list[tuple[int, ...]]()
    for part in range(parts):
        own = Keys(keys_of_part(keys, part, parts), more=more)
        found = [tuple(own.next().flatten().tolist()) for _ in range(draws + more * bool(draws))]
        assert found[:draws] == [tuple(key) for key in whole[part * draws : (part + 1) * draws].tolist()]
        assert all(step * DRAWS <= nonce < (step + 1) * DRAWS for _, nonce in found)
        used += found
    assert len(set(used)) == len(used)
