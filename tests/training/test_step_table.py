"""Lines of a table are read one after the other, on either path, and hold what their steps need."""

import pytest
import torch

from concretely.training.feed import TOGETHER, StepTable
from concretely.training.rng import Purpose, keys_of
from concretely.training.train_state import TrainState
from tests.kernel import DEVICE, PATHS, on

from .example import data, recipe


def test_lines_are_read_one_after_the_other() -> None:
    own = StepTable([TrainState.of(recipe(), data(), device=DEVICE)], draws=1)
    own._table.random_()
    own._takes_ahead = False
    own._cursor += 1
    for expected, count in ((1, 1), (2, 2), (4, TOGETHER), (4 + TOGETHER, 1)):
        own.read(count)
        assert torch.equal(own._lines[:count], own._table[expected : expected + count])


@PATHS
@pytest.mark.parametrize("start", [0, 250])
def test_lines_hold_the_batch_keys_rates_and_temperatures_of_their_steps(start: int, path: str) -> None:
    wished = [
        recipe(seed=1, temperature="2:1/2:200", lr_schedule="cosine", steps=400),
        recipe(seed=2, lr=0.1, steps=400),
    ]
    wished[1] = recipe(seed=2, lr=0.1, weight_decay=3.0, lr_schedule="cosine", steps=400)
    runs = [TrainState.of(each, data(), device=DEVICE) for each in wished]
    for run in runs:
        run.step = start
    table = StepTable(runs, draws=3)
    with on(path, "bits"):
        for step in range(start, start + 300):
            table.prepare(step)
            table.read()
            if step % 37:
                continue
            batch = table.batch()
            for member, run in enumerate(runs):
                assert torch.equal(batch[member], data().train[run.task.feed.order.indices(step)].float().to(DEVICE))
                for purpose in (Purpose.NOISE, Purpose.GAP):
                    keys = keys_of(run.recipe.seed, purpose, step, device=DEVICE)[:3]
                    assert torch.equal(table.keys[purpose][:, member], keys)
                assert table.sizes.rate[member].item() == run.task.lr_at(step)
                assert table.sizes.decay[member].item() == run.recipe.weight_decay / 40
                assert table.sizes.step[member].item() == step
            assert table.controls[0, 0].item() == pytest.approx(max(2 * 0.25 ** (step / 200), 0.5))
            assert table.controls[:, 1].tolist() == [2 / 3, 1 / 2]


@PATHS
@pytest.mark.parametrize("ahead", [True, False])
def test_lines_that_are_read_together_are_those_of_single_steps(ahead: bool, path: str) -> None:
    runs = [TrainState.of(recipe(seed=seed, lr_schedule="cosine"), data(), device=DEVICE) for seed in (1, 2)]
    single, together = (StepTable(runs, draws=3) for _ in range(2))
    assert together._takes_ahead
    together._takes_ahead = ahead
    with on(path, "bits"):
        for table in (single, together):
            table.prepare(0)
        for count in (1, TOGETHER, 4):
            together.read(count)
            for place in range(count):
                single.read()
                together.select(place)
                assert torch.equal(single.batch(), together.batch())
                assert torch.equal(single.keys[Purpose.NOISE], together.keys[Purpose.NOISE])
                assert all(map(torch.equal, single.sizes, together.sizes))
                assert torch.equal(single.controls, together.controls)
