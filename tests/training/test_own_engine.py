"""Own models as one vmapped program, as on a GPU: a member takes the steps of the run alone, up to rounding."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import concretely as c
from concretely.training import engine as stepping
from concretely.training.engine import Engine, why_not_stacked
from concretely.training.own import Options, own_task
from concretely.training.own_recipe import OwnRecipe
from concretely.training.source import as_source
from concretely.training.train_state import TrainState

from . import own
from .own import bits, build, build_mixed

CPU = torch.device("cpu")
LABELS = (bits().sum(-1) % 3).long()


def quiet(sentence: str) -> None:
    raise AssertionError(sentence)


def states(
    make: Callable[[], Any] = build,
    data: Any = None,
    *,
    seeds: int = 3,
    options: Any = None,
    device: torch.device = CPU,
    **given: Any,
) -> list[TrainState]:
    """Runs that differ by their seed, their learning rate and their first parameters."""
    source = as_source(bits() if data is None else data, device=device, note=quiet)
    found = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        recipe = OwnRecipe(**{"model": "", "steps": 40, "batch": 8, "lr": 0.01 * (1 + seed), "seed": seed} | given)
        chosen = Options(**{"estimator": c.Pathwise(0.7)} | (options or {}))
        found.append(TrainState(own_task(recipe, make(), source, chosen, key=0)))
    return found


class LearnedTemperature(nn.Module):
    """A program with a parameter without axes, and a node without metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.log = nn.Linear(6, 4), nn.Parameter(torch.zeros(()))

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        z = draw("z", c.OneHotCategorical(logits=self.layer(x)).relax(self.log.exp()))
        return z.square().sum(-1)


CASES: dict[str, dict[str, Any]] = {
    "pathwise": {},
    "rloo": {"options": {"estimator": c.RLOO()}, "samples": 3},
    "nvil": {"options": {"estimator": c.NVIL}},
    "vimco": {"options": {"estimator": c.VIMCO()}, "samples": 3},
    "program": {"make": own.Gate, "data": (bits(), LABELS)},
    # not by Adam, which would divide the rounding of gradients that batch norm makes zero by its size
    "scalar": {"make": lambda: LearnedTemperature(), "clip": 0.5},
    "norm": {"make": lambda: build(norm=True), "options": {"optimizer": torch.optim.SGD}},
    "schedules": {"options": {"temperature": {"code": c.Annealing(2.0, 0.5, 20)}, "beta": c.Warmup(20)}},
    "everything": {
        "options": {"optimizer": torch.optim.AdamW, "temperature": c.Annealing(2.0, 0.5, 20)},
        "accumulate": 2,
        "clip": 0.3,
        "ema": 0.9,
    },
    "muon": {"options": {"optimizer": "muon"}, "optimizer": "muon"},
    "batches": {"data": [bits()[:13], bits()[13:40], bits()[40:]]},
}


@pytest.mark.parametrize("name", CASES)
def test_a_member_of_one_program_is_the_run_alone(name: str) -> None:
    together, alone = (states(**CASES[name]) for _ in range(2))
    assert why_not_stacked(together) is None
    Engine(together, stacked=True).advance(12)
    for state in alone:
        Engine([state]).advance(12)
    for found, expected in zip(together, alone, strict=True):
        one, other = found.tensors(), expected.tensors()
        assert one.keys() == other.keys()
        for key in one:
            torch.testing.assert_close(one[key], other[key], rtol=1e-3, atol=1e-3, msg=f"{key} of {name}")
        for a, b in zip(found.row().metrics.values(), expected.row().metrics.values(), strict=True):
            assert a == pytest.approx(b, rel=1e-2, abs=1e-2)


def test_members_draw_other_numbers_from_torch() -> None:
    """Dropout masks differ between members, though their parameters and data are the same."""
    together = states(lambda: build(drop=0.5), seeds=2)
    together[1].bind({name: tensor.clone() for name, tensor in together[0].state.items()})
    engine = Engine(together, stacked=True)
    engine.advance(3)
    one, other = (state.model.state_dict() for state in together)
    assert any(not one[name].equal(other[name]) for name in one)


class HostValue(nn.Module):
    """A program that asks a tensor for its value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        z = draw("z", c.Bernoulli(logits=self.layer(x)))
        return z.sum(-1) * (1.0 if z.sum().item() > 0 else 2.0)


def build_loose() -> Any:
    """A program whose parameter is in no module."""
    bias = nn.Parameter(torch.zeros(2))
    return lambda draw, x: (draw("z", c.Bernoulli(logits=x[:, :2] + bias)) - 0.3).square().sum(-1)


def test_what_vmap_does_not_support_runs_one_by_one() -> None:
    together = states(HostValue, seeds=2)
    why = why_not_stacked(together)
    assert why is not None
    assert "item" in why
    notes = list[str]()
    engine = Engine(together, stacked=False, note=notes.append)
    engine.advance(3)
    alone = states(HostValue, seeds=2)[1]
    Engine([alone]).advance(3)
    for one, other in zip(together[1].model.parameters(), alone.model.parameters(), strict=True):
        assert one.equal(other)


class Convolution(nn.Module):
    """A program with a convolution, and with noise of torch if `rate` is positive."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Conv1d(1, 2, 3), nn.Dropout(rate)

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        z = draw("z", c.Bernoulli(logits=self.dropout(self.layer(x.unsqueeze(1))).flatten(1)))
        return (z - 0.3).square().sum(-1)


class Image(nn.Module):
    """A program with convolutions of images, for which there is a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 3, 2, padding=1), nn.ReLU(), nn.ConvTranspose2d(3, 2, 2), nn.Flatten(), nn.LazyLinear(5)
        )
        self.layers(torch.zeros(1, 1, 3, 2))

    def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
        z = draw("z", c.Bernoulli(logits=self.layers(x.unflatten(1, (1, 3, 2)))))
        return (z - 0.3).square().sum(-1)


def test_convolutions_without_a_kernel_are_not_stacked() -> None:
    found = [states(make, seeds=1)[0].task.stacks for make in (Convolution, Image, build)]
    assert found == ["never", "several", "several"]


def test_convolutions_of_images_are_stacked() -> None:
    data = bits()[:, :6]
    together, alone = (states(Image, data) for _ in range(2))
    assert why_not_stacked(together) is None
    Engine(together, stacked=True).advance(5)
    for one, other in zip(together, alone, strict=True):
        Engine([other]).advance(5)
        for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_members_side_by_side_are_the_runs_alone(rate: float) -> None:
    given: Any = {"make": lambda: Convolution(rate), "device": torch.device("cuda"), "seeds": 3}
    together, alone = states(**given), states(**given)
    engine = Engine(together, note=quiet)
    engine.advance(40)
    assert engine.is_captured
    assert [program.draws_from_torch for program in engine._programs] == [rate > 0] * 3
    for one, other in zip(together, alone, strict=True):
        Engine([other], note=quiet).advance(40)
        for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def build_shared() -> c.Model:
    """A model whose two programs use the same module, and one weight by two modules."""
    layer, tied = nn.Linear(6, 6), nn.Linear(6, 6)
    tied.weight = layer.weight

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.tied = layer, tied

    class P(Part):
        def forward(self, draw: Any, x: Tensor | None = None) -> Tensor:
            z = draw("z", c.Bernoulli(logits=self.layer.bias))
            return draw("x", c.Bernoulli(logits=self.tied(z)), observed=x)

    class Q(Part):
        def forward(self, draw: Any, x: Tensor) -> None:
            draw("z", c.Bernoulli(logits=self.layer(x)))

    return c.Model(P(), Q())


def test_modules_and_weights_that_are_used_twice_are_stacked_and_restored() -> None:
    data = bits()[:, :6]
    together, alone = (states(build_shared, data) for _ in range(2))
    assert why_not_stacked(together) is None
    Engine(together, stacked=True).advance(5)
    for one, other in zip(together, alone, strict=True):
        Engine([other]).advance(5)
        for name, parameter in other.loss.named_parameters():
            found = dict(one.loss.named_parameters())[name]
            assert not torch._C._functorch.is_batchedtensor(found)
            torch.testing.assert_close(found, parameter, rtol=1e-4, atol=1e-5)


def test_a_parameter_outside_of_modules_cannot_be_stacked() -> None:
    found = states(lambda: c.model.model.as_module("program", build_loose()), seeds=2)  # type: ignore[attr-defined]
    assert found[0].task.stacks == "never"
    assert states(seeds=1)[0].task.stacks == "several"


class Replacing(own.Posterior):
    """An encoder that replaces a buffer in each step."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, draw: c.Draw, x: Tensor) -> None:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        super().forward(draw, x - self.mean)


def test_a_buffer_that_is_replaced_is_kept_and_its_model_not_stacked() -> None:
    def make() -> c.Model:
        return c.Model(own.Prior(), Replacing())

    (state,), mean = states(make, seeds=1), torch.zeros(6)
    kept = state.model.q.mean
    for step in range(3):
        Engine([state]).advance(step + 1)
        mean = 0.9 * mean + 0.1 * state.task.feed.inputs(step, CPU)[0].mean(0)
    assert state.model.q.mean is kept
    torch.testing.assert_close(state.tensors()["model/q.mean"], mean)
    assert why_not_stacked(states(make, seeds=2)) == "the buffer 'q.mean' is replaced, not changed in place"


def test_normal_nodes_follow_from_the_seed_and_the_step() -> None:
    one, other = states(build_mixed, seeds=1), states(build_mixed, seeds=1)
    Engine(one).advance(5)
    torch.manual_seed(123)
    Engine(other).advance(2)
    torch.randn(7)
    Engine(other).advance(5)
    for a, b in zip(one[0].model.parameters(), other[0].model.parameters(), strict=True):
        assert a.equal(b)


@pytest.mark.parametrize("widths", [(1, 4, 3, 2), (3, 1, 1, 4)])
def test_the_next_loss_is_that_of_a_step_whose_batches_draw_other_numbers_of_nodes(widths: tuple[int, ...]) -> None:
    data, options = [bits()[:9, :width] for width in widths], {"estimator": c.Pathwise(0.7)}
    (state,) = states(own.Steps, data, seeds=1, options=options, accumulate=2)
    engine = Engine([state])
    for step in range(4):
        loss = state.loss_at(state.step).item()
        engine.advance(step + 1)
        assert state.row().objective == pytest.approx(-loss)


def test_the_global_generators_are_not_moved() -> None:
    (state,) = states(own.build_restless, seeds=1)
    before = torch.get_rng_state()
    Engine([state]).advance(3)
    state.dry_run()
    assert before.equal(torch.get_rng_state())


class Fake(stepping.Captured):
    """Work that counts how often it would be replayed."""

    made: list[Any] = []  # noqa: RUF012 (of the test)

    def __init__(self, function: Callable[[], None], stream: Any, *, note: Any = None) -> None:
        super().__init__(function, None, note=note)
        Fake.made.append(self)
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        super().__call__()


def test_batches_of_one_shape_are_one_captured_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "Captured", Fake)
    Fake.made.clear()
    (state,) = states(data=[bits()[:13], bits()[13:26], bits()[26:30]], seeds=1)
    engine = Engine([state])
    monkeypatch.setattr(stepping, "has_drawn", lambda device: False)
    engine._programs[0].stream = SimpleNamespace(device=CPU)  # type: ignore[assignment] # as on a GPU
    engine.advance(30)
    # with and without the monitor, for batches of 13 and of 4 points
    assert sorted(work.calls for work in Fake.made) == [1, 2, 9, 18]


class Recorded(Fake):
    """Pretends that work is captured after its first call."""

    @property
    def is_captured(self) -> bool:
        return self.calls > 0


def test_ten_steps_are_one_graph_and_give_the_same_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    (alone,) = states(seeds=1)
    Engine([alone]).advance(275)
    monkeypatch.setattr(stepping, "Captured", Recorded)
    monkeypatch.setattr(stepping, "has_drawn", lambda device: False)
    Fake.made.clear()
    (state,) = states(seeds=1)
    engine = Engine([state])
    engine._programs[0].stream = SimpleNamespace(device=CPU)  # type: ignore[assignment] # as on a GPU
    engine.advance(275)
    # the first ten steps and the last five one by one, with and without the monitor, and graphs of ten steps between
    assert {work: each.calls for work, each in engine._programs[0]._works.items()} == {  # type: ignore[attr-defined]
        (1, True, None): 2,
        (1, False, None): 13,
        (10, True, None): 26,
    }
    assert state.bound() == alone.bound()
    for one, other in zip(state.model.parameters(), alone.model.parameters(), strict=True):
        assert one.equal(other)
