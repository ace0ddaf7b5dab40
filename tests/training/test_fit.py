"""`fit` takes the steps of a loop by hand, and an interrupted run ends in the bits of an uninterrupted one."""

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.utils.data import DataLoader, TensorDataset

import concretely as c
from concretely.functional.noise import Keys
from concretely.schedule import lr_factor
from concretely.training.callback import Callbacks
from concretely.training.rng import Order, Purpose, generator_of, keys_of

from . import own
from .example import assert_same
from .own import bits, build, build_mixed, build_restless, fitted, saved, stopping

LABELS = (bits().sum(-1) % 3).long()

SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {},
    "muon": {"optimizer": "muon"},
    "rloo": {"estimator": c.RLOO(), "samples": 3},
    "nvil": {"estimator": c.NVIL},
    "restless": {"model": build_restless},
    "mixed": {"model": build_mixed, "samples": 2},
    "program": {"model": own.Gate, "data": (bits(), LABELS), "estimator": c.RLOO(), "samples": 2},
    "dictionary": {"model": own.Gate, "data": {"y": LABELS, "x": bits()}},
    "annealed by node": {"temperature": {"code": c.Annealing(2.0, 0.5, 20)}},
    "everything": {
        "model": build_restless,
        "beta": c.Warmup(20),
        "temperature": c.Annealing(2.0, 0.5, 20),
        "clip": 0.5,
        "accumulate": 2,
        "ema": 0.9,
        "schedule": "cosine",
        "valid": bits()[:20],
        "every": 4,
    },
    "adamw": {"model": build_restless, "optimizer": torch.optim.AdamW, "schedule": lambda step: 1 / (1 + step)},
    "sgd": {"optimizer": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9), "lr": None},
    "autocast": {"precision": "bfloat16"},
    "loader": {"data": lambda: DataLoader(TensorDataset(bits()), batch_size=7, shuffle=True)},
    "batches": {"data": [bits()[:13], bits()[13:40], bits()[40:]]},
}


def given(name: str) -> dict[str, Any]:
    found = dict(SETTINGS[name])
    return found | ({"data": found["data"]()} if callable(found.get("data")) else {})


@pytest.mark.parametrize("name", SETTINGS)
def test_an_interrupted_run_ends_in_the_bits_of_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    straight = fitted(**given(name), steps=22, out=tmp_path / "straight")
    assert straight.finished
    for stop in (7, 20):  # inside a row and at its end
        run = fitted(**given(name), steps=22, out=tmp_path / "stopped", callbacks=stopping(stop))
        assert (run.step, run.finished) == (stop, False)
    torch.manual_seed(9)  # the state of torch's generators does not matter
    run = fitted(**given(name), steps=22, out=tmp_path / "stopped")
    assert [replace(row, seconds=0.0) for row in run.rows] == [replace(row, seconds=0.0) for row in straight.rows]
    assert (run.step, run.best, run.finished) == (straight.step, straight.best, True)
    assert_same(saved(tmp_path / "stopped"), saved(tmp_path / "straight"))
    assert_same(own.exported(tmp_path / "stopped"), own.exported(tmp_path / "straight"))
    assert_same(dict(run.model.state_dict()), own.exported(tmp_path / "straight"))


def test_the_steps_are_those_of_a_loop_by_hand() -> None:
    model, mine, x = build(), build(), bits()
    mine.load_state_dict(model.state_dict())
    run = fitted(model, x, estimator=c.Pathwise(0.7), samples=2, schedule="linear")
    optimizer = torch.optim.Adam(mine.parameters(), lr=0.01, fused=True)
    order = Order(points=len(x), batch=10, seed=3)
    for step in range(30):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * lr_factor("linear", step, 30)
        keys = Keys(keys_of(3, Purpose.NOISE, step))
        optimizer.zero_grad()
        c.estimate(mine, x[order.indices(step)], estimator=c.Pathwise(0.7), samples=2, generator=keys).loss.backward()
        optimizer.step()
    assert run.model is model
    assert_same(dict(model.state_dict()), dict(mine.state_dict()))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_caller_without_gradients_gets_the_same_run(mode: Any) -> None:
    expected = fitted(build, valid=bits()[:20], every=10)
    with mode():
        run = fitted(build, bits().clone(), valid=bits()[:20], every=10)
        assert not torch.is_grad_enabled()
    assert_same(dict(run.model.state_dict()), dict(expected.model.state_dict()))


@pytest.mark.parametrize("name", ["rloo", "program", "loader", "everything"])
def test_a_seed_among_others_ends_in_the_bits_of_the_seed_alone(name: str, tmp_path: Path) -> None:
    together = fitted(**given(name), steps=11, seed=range(2, 4), out=tmp_path / "all")
    alone = fitted(**given(name), steps=11, out=tmp_path / "one")
    assert [run.seed for run in together] == [2, 3]
    assert [run.folder for run in together] == [tmp_path / "all" / "seed=2", tmp_path / "all" / "seed=3"]
    assert_same(saved(tmp_path / "all" / "seed=3"), saved(tmp_path / "one"))
    assert_same(dict(together[1].model.state_dict()), dict(alone.model.state_dict()))
    assert any(
        not one.equal(other)
        for one, other in zip(
            together[0].model.state_dict().values(), together[1].model.state_dict().values(), strict=True
        )
    )


def test_gradients_of_parts_are_those_of_a_large_batch() -> None:
    models = [build().double() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    data = bits(12).double()
    large = fitted(models[0], data, estimator=c.Exact(), batch=6, steps=20)
    parts = fitted(models[1], data, estimator=c.Exact(), batch=2, accumulate=3, steps=20)
    for one, other in zip(large.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert parts.rows[-1].objective == pytest.approx(large.rows[-1].objective)


def gradient(weight: float) -> list[Tensor]:
    """The gradient of the first step of `fit` by plain SGD with a learning rate of one."""
    torch.manual_seed(0)
    model = build()
    before = [each.detach().clone() for each in model.parameters()]
    make = torch.optim.SGD
    fitted(model, bits(8), estimator=c.Exact(), batch=8, steps=1, optimizer=make, lr=1.0, beta=lambda step: weight)
    return [old - new for old, new in zip(before, model.parameters(), strict=True)]


def test_the_weight_of_the_kl_weighs_the_kl_alone() -> None:
    none, half, whole = (gradient(weight) for weight in (0.0, 0.5, 1.0))
    for zero, middle, one in zip(none, half, whole, strict=True):
        torch.testing.assert_close(middle, (zero + one) / 2, rtol=1e-4, atol=1e-6)
    assert not none[0].any()  # the prior's logits are in the KL alone
    assert whole[0].any()


def test_clipping_bounds_the_norm_of_a_gradient_and_keeps_its_direction() -> None:
    def move(clip: float | None) -> Tensor:
        torch.manual_seed(0)
        model = build()
        before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        fitted(model, bits(8), estimator=c.Exact(), batch=8, steps=1, optimizer=torch.optim.SGD, lr=1.0, clip=clip)
        return before - nn.utils.parameters_to_vector(model.parameters()).detach()

    free, bound, loose = (move(clip) for clip in (None, 0.01, 1e3))
    assert free.norm() > 0.1
    torch.testing.assert_close(bound.norm(), torch.tensor(0.01), rtol=1e-3, atol=0)
    torch.testing.assert_close(bound / bound.norm(), free / free.norm(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(loose, free)


def test_the_average_of_parameters_is_that_of_all_steps() -> None:
    models, seen = [build() for _ in range(2)], list[Tensor]()
    models[1].load_state_dict(models[0].state_dict())
    average = nn.utils.parameters_to_vector(models[0].parameters()).detach().clone()
    run = fitted(models[0], steps=5, ema=0.8)
    record = Callbacks(step=lambda _: seen.append(nn.utils.parameters_to_vector(models[1].parameters()).clone()))
    fitted(models[1], steps=5, callbacks=record)
    for parameters in seen:
        average = 0.8 * average + 0.2 * parameters.detach()
    torch.testing.assert_close(nn.utils.parameters_to_vector(run.model.parameters()), average)


def test_the_best_parameters_are_returned_and_patience_ends_a_run() -> None:
    scores = iter([3.0, 1.0, 2.0, 2.0, 0.0])
    seen = list[dict[str, Tensor]]()

    def score(model: nn.Module) -> float:
        assert not model.training
        seen.append({name: each.clone() for name, each in model.state_dict().items()})
        return next(scores)

    run = fitted(build(), valid=score, every=5, patience=2, steps=100)
    assert (run.step, run.best, run.finished) == (20, (10, 1.0), True)
    assert_same(dict(run.model.state_dict()), seen[1])
    assert [row.valid for row in run.rows if row.valid is not None] == [3.0, 1.0, 2.0, 2.0]


def test_a_score_that_is_not_a_number_is_never_the_best() -> None:
    scores, said = iter([math.nan, 2.0, math.nan, 1.0, math.nan]), list[str]()
    model, note = build(), Callbacks(note=said.append)
    run = fitted(model, valid=lambda model: next(scores), every=5, patience=2, steps=25, callbacks=note)
    assert (run.step, run.best) == (25, (20, 1.0))
    assert said == ["the validation score of step 5 is not a number, and so not the best"]
    run = fitted(model, valid=lambda model: math.nan, every=5, patience=2, steps=25, callbacks=note)
    assert (run.step, run.best) == (10, None)


def test_an_argument_that_is_called_like_a_setting_has_a_name_of_its_own(tmp_path: Path) -> None:
    def make(seed: int) -> c.Model:
        return build(seed)

    runs = fitted(make, arguments={"seed": [2, 3]}, seed=[0, 1], steps=2, out=tmp_path)
    names = [run.folder.name for run in runs]
    assert names == [f"set.seed={width},seed={seed}" for width in (2, 3) for seed in (0, 1)]


def test_a_function_that_validates_draws_the_same_numbers_after_a_resume(tmp_path: Path) -> None:
    drawn = list[tuple[float, ...]]()

    def valid(model: c.Model) -> float:
        drawn.append((torch.rand(()).item(), random.random(), np.random.rand()))
        return -c.evaluate(model, bits(), samples=2).log_likelihood.mean().item()

    torch.manual_seed(3)
    given: dict[str, Any] = {"valid": valid, "every": 10}
    whole = fitted(**given, out=tmp_path / "whole")
    fitted(**given, out=tmp_path / "parts", callbacks=stopping(13))
    parts = fitted(**given, out=tmp_path / "parts")
    assert [row.valid for row in parts.rows] == [row.valid for row in whole.rows]
    assert len(set(drawn)) == 1


def test_validation_data_are_scored_by_the_discrete_graph() -> None:
    run = fitted(build(), valid=bits()[:20], every=30, validation_samples=4)
    generator = generator_of(3, Purpose.VALIDATION)
    expected = c.evaluate(run.model, bits()[:20], samples=4, generator=generator).nll
    assert run.best == (30, pytest.approx(expected))
    gate = fitted(own.Gate(), (bits(), LABELS), valid=(bits()[:20], LABELS[:20]), every=30, validation_samples=50)
    trace = c.run(gate.model, bits()[:20], LABELS[:20], mode=c.mode.Discrete(), samples=2000)
    assert gate.best[1] == pytest.approx(trace.output.mean().item(), abs=0.05)


def test_the_rows_hold_what_is_logged_without_asking() -> None:
    run = fitted(build(), beta=c.Warmup(15), temperature=c.Annealing(1.0, 0.5, 30), valid=bits()[:9], every=10)
    row = run.rows[-1]
    names = {"gradient_norm", "log_likelihood/x", "kl/code", "active/code", "constant/code", "beta", "temperature"}
    assert set(row.metrics) == names
    assert (row.metrics["beta"], row.temperature, row.lr) == (1.0, pytest.approx(0.5), 0.01)
    assert row.metrics["temperature"] == row.temperature
    assert set(row.values) == names | {"step", "seconds", "lr", "objective", "discrete", "gap", "valid"}
    model, x = run.model, bits()
    exact = c.estimate(model, x, estimator=c.Exact())
    assert row.metrics["kl/code"] == pytest.approx(exact.kl["code"].mean().item(), abs=0.3)
    assert row.metrics["log_likelihood/x"] == pytest.approx(exact.log_likelihood["x"].mean().item(), abs=1.0)
    mean = c.run(model.q, x, mode=c.mode.Discrete())["code"].distribution.mean
    assert row.metrics["active/code"] == pytest.approx((mean.var(0, correction=0).sum(-1) > 0.01).sum().item(), abs=1)


def test_a_node_whose_mean_is_not_a_number_has_no_count_of_active_units() -> None:
    weight = torch.nn.Parameter(torch.eye(6)[:, :3])

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        index = draw("index", torch.distributions.Categorical(logits=5 * x @ weight))
        return index.float() + draw("bit", c.Bernoulli(logits=5 * x @ weight)).sum(-1)

    (row,) = fitted(program, estimator=c.RLOO(), samples=2, steps=2).rows[-1:]
    assert [name for name in row.metrics if name.startswith("active")] == ["active/bit"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"estimator": None}, {"code": 1 / 2, "b": 2 / 3}),
        ({"estimator": c.Pathwise(kl="density")}, {"code": 1.0, "b": 2 / 3}),
        ({"estimator": c.GumbelSoftmax()}, {"code": 1.0, "b": 2 / 3}),
        ({"estimator": c.StraightThroughGumbelSoftmax(kl="analytic")}, {"code": 1 / 2, "b": 2 / 3}),
        ({"estimator": c.Pathwise({"code": 0.5, "b": torch.tensor(0.25)})}, {"code": 0.5, "b": 0.25}),
        ({"temperature": {"code": c.Annealing(1.0, 0.5, 20), "b": 0.25}}, {"code": 0.5, "b": 0.25}),
        ({"temperature": 0.5}, {}),
        ({"temperature": c.Annealing(1.0, 0.5, 20)}, {}),
        ({"estimator": c.RLOO(), "samples": 2}, {}),
    ],
    ids=["default", "density", "gumbel", "straight-through", "mapping", "schedules", "number", "schedule", "discrete"],
)
def test_the_rows_have_the_temperature_of_each_node(given: dict[str, Any], expected: dict[str, float]) -> None:
    def program(draw: c.Draw, x: Tensor) -> Tensor:
        code = draw("code", c.OneHotCategorical(logits=x[:, :4] * scale))
        noise = draw("noise", Independent(Normal(c.tile(x, code), 1.0), 1))  # has no temperature
        return code[:, 0] - draw("b", c.Bernoulli(logits=noise * scale)).sum(-1)

    scale = nn.Parameter(torch.ones(()))
    row = fitted(program, steps=20, **given).rows[-1]
    found = {name: value for name, value in row.values.items() if name.startswith("temperature/")}
    assert found == {f"temperature/{node}": pytest.approx(value) for node, value in expected.items()}
    assert row.temperature == (0.5 if "temperature" in given and not expected else None)


def test_a_discrete_estimator_has_no_gap() -> None:
    rows = fitted(build(), estimator=c.RLOO(), samples=2).rows
    assert rows
    assert all(row.objective == row.discrete and "gap" not in row.values for row in rows)


def test_the_gap_is_that_of_one_batch_whatever_the_others_of_its_step_are() -> None:
    data = [bits()[:, :1].expand(-1, 6).clone(), 1 - bits()]  # the first is much easier
    given = {"estimator": c.Pathwise(0.01), "accumulate": 2, "optimizer": torch.optim.SGD, "lr": 1e-9, "samples": 50}
    model = build()
    with torch.no_grad():
        model.p.decoder[2].bias.copy_(-3 * torch.ones(6))
    row = fitted(model, data, steps=10, **given).rows[-1]
    assert abs(row.objective - row.discrete) < 0.3


@pytest.mark.parametrize("mode", ["dropout", "norm", "code"])
def test_the_gap_compares_both_graphs_in_one_mode(mode: str) -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = nn.Linear(6, 2)
            self.layer = {"dropout": nn.Dropout(0.9), "norm": nn.BatchNorm1d(6), "code": nn.Identity()}[mode]

        @property
        def scale(self) -> float:
            return 3.0 if mode == "code" and not self.training else 1.0

        def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
            z = draw("z", c.Bernoulli(logits=self.score(x)))
            return (self.scale * self.layer(x) * z[:, :1]).square().sum(-1)

    rows = fitted(Moody(), estimator=c.Pathwise(1e-3)).rows  # so cold that both graphs have one cost
    assert [row.discrete for row in rows] == [pytest.approx(row.objective, abs=0.02) for row in rows]


def test_a_row_has_metrics_of_one_batch_in_ten_and_schedules_of_the_next_step() -> None:
    class Watched(own.Posterior):
        def forward(self, draw: c.Draw, x: Tensor) -> None:
            super().forward(draw, x)
            (trained if self.training else measured).add(round(x.mean().item(), 2))

    trained, measured = set[float](), set[float]()
    data = [torch.arange(24).view(4, 6).lt(step).float() for step in range(20)]
    run = fitted(c.Model(own.Prior(), Watched()), data, steps=20, schedule="linear", beta=c.Warmup(40))
    assert (len(trained), measured) == (20, {0.0, round(10 / 24, 2)})
    assert [(row.lr, row.metrics["beta"]) for row in run.rows] == [(pytest.approx(0.005), 0.25), (0.0, 0.5)]
