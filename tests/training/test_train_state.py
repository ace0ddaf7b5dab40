"""A step does what the recipe says, and looking at a run changes nothing in it."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from concretely import Estimate, Exact, estimate
from concretely.estimator.nvil import NVIL
from concretely.training import trainer as training
from concretely.training.recipe import ESTIMATORS
from concretely.training.trainer import Trainer, built, falling, inputs_of

from ..budget import assert_mean
from .example import assert_same, data, recipe


def parameters(trainer: Trainer) -> dict[str, Tensor]:
    """A copy of the parameters as they are."""
    return {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}


@pytest.mark.parametrize("notation", ["4H~12V", "4V-4H-8V"])
@pytest.mark.parametrize("estimator", ["concrete", "nvil"])
def test_decay_adds_half_the_squared_weights_over_the_points_and_nothing_else(notation: str, estimator: str) -> None:
    wishes: dict[str, Any] = {"notation": notation, "estimator": estimator, "lr": 0.1}
    plain, decayed = (Trainer(recipe(**wishes, weight_decay=decay), data()) for decay in (0.0, 30.0))
    own = list(decayed.estimator.parameters()) if isinstance(decayed.estimator, NVIL) else []
    with torch.no_grad():
        for each in (plain, decayed):  # else they are zero, and decay would not show
            for parameter in each.model.parameters():
                parameter.add_(0.5)
    before = parameters(plain)
    for each in (plain, decayed):
        each.advance(1)
    penalty = {name: 30.0 / 40 * value * name.endswith("weight") for name, value in before.items()}
    for name, parameter in decayed.model.named_parameters():
        gradient = dict(plain.model.named_parameters())[name].grad + penalty[name]
        torch.testing.assert_close(decayed.optimizer.state[parameter]["exp_avg"], 0.1 * gradient)
        # the first step of Adam is the sign of the gradient, but for its eps
        step = -0.1 * gradient / (gradient.abs() + 1e-8)
        torch.testing.assert_close(parameter - before[name], step, rtol=1e-3, atol=1e-5)
    assert len(own) == (0 if estimator == "concrete" else 4)
    for parameter in own:
        torch.testing.assert_close(decayed.optimizer.state[parameter]["exp_avg"], 0.1 * parameter.grad)


@pytest.mark.parametrize(
    ("schedule", "left"),
    [("constant", [1, 1, 1, 1, 1]), ("linear", [1, 0.75, 0.5, 0.25, 0]), ("cosine", [1, 0.853553, 0.5, 0.146447, 0])],
)
def test_the_learning_rate_stays_or_falls_to_nothing(schedule: str, left: list[float]) -> None:
    wished = recipe(lr_schedule=schedule, steps=40)
    assert [falling(wished, step) for step in range(0, 50, 10)] == pytest.approx(left, abs=1e-6)
    trainer = Trainer(wished, data())
    for step in (0, 10):
        trainer.advance(step + 1)
        assert {group["lr"] for group in trainer.optimizer.param_groups} == {0.02 * falling(wished, step)}
        trainer.advance(step + 10)
        assert trainer.row().lr == 0.02 * falling(wished, step + 10)


def test_an_annealed_temperature_is_that_of_the_step() -> None:
    wishes = recipe(temperature="2:1/2:8", prior_temperature="1:1/4:4")
    trainer = Trainer(wishes, data())
    for step, (temperature, prior) in {0: (2, 1), 2: (2**0.5, 0.5), 4: (1, 0.25), 8: (0.5, 0.25)}.items():
        trainer.advance(step)
        fixed = Trainer(recipe(temperature=float(temperature), prior_temperature=prior), data())
        fixed.load(step, 0.0, trainer.tensors())
        assert trainer.rehearsed() == pytest.approx(fixed.rehearsed(), rel=1e-6)
        assert trainer.row().temperature == pytest.approx(temperature)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_rehearsal_is_the_next_step_and_changes_nothing(estimator: str) -> None:
    trainer = Trainer(recipe(notation="4H-4H-12V", estimator=estimator), data())
    trainer.advance(2)
    trainer.row()
    before = {name: tensor.clone() for name, tensor in trainer.tensors().items()}
    told = trainer.rehearsed()
    assert_same(trainer.tensors(), before)
    assert all(module.training for module in trainer.model.modules())
    trainer.advance(3)
    assert trainer.row().bound == pytest.approx(told, rel=1e-5)


@pytest.mark.parametrize("estimator", ["concrete", "vimco"])
def test_the_bound_of_a_row_is_the_average_over_its_steps(estimator: str) -> None:
    trainer, found = Trainer(recipe(estimator=estimator), data()), []
    for end in (10, 17, 18):
        alone = []
        while trainer.step < end:
            alone.append(trainer.rehearsed())
            trainer.advance(trainer.step + 1)
        assert trainer.bound() == pytest.approx(sum(alone) / len(alone), rel=1e-5)
        row = trainer.row()
        found.append(row)
        assert row.bound == pytest.approx(sum(alone) / len(alone), rel=1e-5)
        assert row.step == end
        assert trainer.bound() == 0
    if estimator == "vimco":
        assert [row.discrete for row in found] == [row.bound for row in found]


def test_the_discrete_bound_of_a_row_is_less_by_the_mean_gap_where_it_was_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[tuple[int, float]] = []

    def look(trainer: Trainer, step: int) -> Tensor:
        looks.append((step, trainer.rehearsed() - 10 - step))
        return torch.tensor(looks[-1][1], dtype=torch.float64)

    monkeypatch.setattr(Trainer, "_discrete", look)
    trainer = Trainer(recipe(steps=100), data())
    for end, steps in ((25, [0, 10, 20]), (30, [25]), (50, [30, 40])):
        looks.clear()
        trainer.advance(end)
        row = trainer.row()
        assert [step for step, _ in looks] == steps
        assert row.bound - row.discrete == pytest.approx(10 + sum(steps) / len(steps), abs=1e-4)


def test_the_discrete_bound_is_that_of_the_discrete_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "WATCHED", 1)
    trainer = Trainer(recipe(batch=40, lr=1e-30, temperature=4, prior_temperature=0.25), data())
    rows = []
    for step in range(80):
        trainer.advance(step + 1)
        rows.append(trainer.row())
    with torch.no_grad():
        true = estimate(trainer.model, data().train[:], estimator=Exact(), samples=1).bound.mean().item()
    assert_mean(torch.tensor([row.discrete for row in rows]), true, "of the discrete bound")
    gaps = torch.tensor([row.bound - row.discrete for row in rows])
    assert gaps.mean().abs() > 10 * gaps.std() / math.sqrt(len(gaps)), "at this temperature the two differ"


@pytest.mark.parametrize("estimator", ["concrete", "gumbel-softmax"])
def test_looking_at_the_discrete_graph_changes_nothing(estimator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for watched in (1, 10, 10**9):
        monkeypatch.setattr(training, "WATCHED", watched)
        trainer = Trainer(recipe(notation="4H-4H-12V", estimator=estimator), data())
        trainer.advance(12)
        found.append({name: tensor for name, tensor in trainer.tensors().items() if name != "row/sums"})
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])


def test_looking_at_the_validation_set_changes_nothing_and_finds_the_same_again() -> None:
    trainer = Trainer(recipe(notation="4H-4H-12V"), data())
    trainer.advance(3)
    before = {name: tensor.clone() for name, tensor in trainer.tensors().items()}
    assert trainer.validated() == trainer.validated()
    assert_same(trainer.tensors(), before)
    trainer.advance(4)
    straight = Trainer(recipe(notation="4H-4H-12V"), data())
    straight.advance(4)
    assert_same(trainer.tensors(), straight.tensors())


def test_a_model_starts_from_the_seed_and_from_the_base_rate_of_what_it_models() -> None:
    models = [built(recipe(notation="4V-4H-8V", seed=seed), data()).state_dict() for seed in (1, 1, 2)]
    assert_same(models[0], models[1])
    assert not models[0]["p.layers.0.network.0.weight"].equal(models[2]["p.layers.0.network.0.weight"])
    rate = models[0]["p.visible.network.0.bias"].sigmoid()
    torch.testing.assert_close(rate, data().train[:][:, 4:].float().mean(0).clamp(1e-3, 1 - 1e-3))


def test_the_global_generator_is_neither_asked_nor_moved() -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        trainer = Trainer(recipe(estimator="nvil", notation="4H-4H-12V"), data())
        trainer.advance(3)
        trainer.validated()
        found.append(trainer.tensors())
        assert before.equal(torch.get_rng_state())
    assert_same(found[0], found[1])


def test_the_context_is_the_first_part_of_a_point() -> None:
    bits = data().train[:3]
    context, x = inputs_of(recipe(notation="4V-4H-8V"), bits)
    assert context.equal(bits[:, :4])
    assert x.equal(bits[:, 4:])
    assert inputs_of(recipe(), bits) == (bits,)


MODELS = ("4H~4H-12V", "4V-4H~4H-8V", "4H:4-12V")
PARAMETERS = [
    (notation, name) for notation in MODELS for name, _ in built(recipe(notation=notation)).named_parameters()
]


@pytest.mark.parametrize("estimator", ["concrete", "vimco", "nvil"])
@pytest.mark.parametrize(("notation", "name"), PARAMETERS)
def test_a_step_that_is_not_finite_is_named_with_its_layer_and_neither_it_nor_any_after_is_taken(
    estimator: str, notation: str, name: str
) -> None:
    trainer = Trainer(recipe(notation=notation, estimator=estimator), data())
    trainer.advance(2)
    assert trainer.fault() is None
    assert trainer.spoiled() is None
    with torch.no_grad():
        dict(trainer.model.named_parameters())[name].view(-1)[0] = torch.nan
    before, moments = parameters(trainer), {k: v.clone() for k, v in trainer.tensors().items() if "optimizer" in k}
    trainer.advance(5)
    after = parameters(trainer)
    assert {n: t.nan_to_num(9) for n, t in after.items()}.keys() == before.keys()
    assert all(after[n].nan_to_num(9).equal(before[n].nan_to_num(9)) for n in before)
    assert_same({k: v for k, v in trainer.tensors().items() if "optimizer" in k}, moments)
    assert trainer.spoiled() == name.rpartition(".")[0]
    assert trainer.fault() == (2, name.rpartition(".")[0])


@pytest.mark.parametrize("layer", ["p.layers.0.network.4", "p.visible.network.0", "q.layers.0.network.0"])
def test_an_output_that_is_not_finite_is_traced_to_its_layer_though_its_parameters_are(layer: str) -> None:
    trainer = Trainer(recipe(notation="4H~4H-12V"), data())
    module = trainer.model.get_submodule(layer)
    with torch.no_grad():
        module.weight.fill_(3e38)
        module.bias.fill_(3e38)
    trainer.advance(3)
    assert trainer.spoiled() is None
    assert trainer.fault() == (0, layer)


def test_a_gradient_that_is_not_finite_is_traced_to_its_layer_though_all_outputs_are() -> None:
    trainer = Trainer(recipe(notation="4H-4H-12V"), data())
    trainer.advance(1)
    handle = trainer.model.p.layers[0].network[0].bias.register_hook(lambda gradient: gradient * torch.nan)
    trainer.advance(4)
    assert trainer.fault() == (1, "p.layers.0.network.0")
    handle.remove()


def test_a_loss_that_is_not_finite_is_a_fault_though_its_gradient_is(monkeypatch: pytest.MonkeyPatch) -> None:
    estimated = Trainer._estimated

    def endless(trainer: Trainer, step: int) -> Estimate:
        found = estimated(trainer, step)
        return replace(found, loss=found.loss + math.inf) if step == 2 else found

    monkeypatch.setattr(Trainer, "_estimated", endless)
    trainer = Trainer(recipe(), data())
    trainer.advance(2)
    before = parameters(trainer)
    trainer.advance(5)
    assert_same(parameters(trainer), before)
    fault = trainer.fault()
    assert fault is not None
    assert fault[0] == 2


def test_without_a_fault_the_culprit_is_the_layer_with_the_largest_gradient() -> None:
    trainer = Trainer(recipe(notation="4H-4H-12V"), data())
    trainer.model.p.layers[0].network[0].bias.register_hook(lambda gradient: gradient + 1e6)
    assert trainer.culprit(0) == "p.layers.0.network.0"
