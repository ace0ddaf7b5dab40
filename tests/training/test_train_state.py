"""A step does what the recipe says, and looking at a run changes nothing in it."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from concretely import Exact, estimate
from concretely.estimator.nvil import NVIL
from concretely.schedule import lr_factor
from concretely.training import engine as stepping
from concretely.training.engine import Engine, MemberLoss
from concretely.training.paper import build_model, inputs_of
from concretely.training.recipe import ESTIMATORS
from concretely.training.rng import Purpose
from concretely.training.train_state import TrainState

from ..budget import assert_mean
from ..cases import grid
from .example import advance, assert_same, data, recipe


def parameters(state: TrainState) -> dict[str, Tensor]:
    """A copy of the parameters as they are."""
    return {name: parameter.detach().clone() for name, parameter in state.model.named_parameters()}


def moment(state: TrainState, name: str) -> Tensor:
    """The first moment of the gradient of a parameter."""
    return state.state[f"first/{name}"][0]


@pytest.mark.parametrize("notation", ["4H~12V", "4V-4H-8V"])
@pytest.mark.parametrize("estimator", ["concrete", "nvil"])
def test_decay_adds_half_the_squared_weights_over_the_points_and_nothing_else(notation: str, estimator: str) -> None:
    wishes: dict[str, Any] = {"notation": notation, "estimator": estimator, "lr": 0.1}
    plain, decayed = (TrainState.of(recipe(**wishes, weight_decay=decay), data()) for decay in (0.0, 30.0))
    own = dict(decayed.estimator.named_parameters()) if isinstance(decayed.estimator, NVIL) else {}
    with torch.no_grad():
        for each in (plain, decayed):  # else they are zero, and decay would not show
            for parameter in each.model.parameters():
                parameter.add_(0.5)
    before = parameters(plain)
    for each in (plain, decayed):
        advance(each, 1)
    penalty = {name: 30.0 / 40 * value * name.endswith("weight") for name, value in before.items()}
    for name, parameter in decayed.model.named_parameters():
        gradient = 10 * moment(plain, f"model.{name}") + penalty[name]
        torch.testing.assert_close(moment(decayed, f"model.{name}"), 0.1 * gradient)
        # the first step of Adam is the sign of the gradient, but for its eps
        step = -0.1 * gradient / (gradient.abs() + 1e-8)
        torch.testing.assert_close(parameter - before[name], step, rtol=1e-3, atol=1e-5)
    assert len(own) == (0 if estimator == "concrete" else 4)
    for name in own:
        assert moment(decayed, f"estimator.{name}").any()
        torch.testing.assert_close(moment(decayed, f"estimator.{name}"), moment(plain, f"estimator.{name}"))


@pytest.mark.parametrize(
    ("schedule", "left"),
    [("constant", [1, 1, 1, 1, 1]), ("linear", [1, 0.75, 0.5, 0.25, 0]), ("cosine", [1, 0.853553, 0.5, 0.146447, 0])],
)
def test_the_learning_rate_stays_or_falls_to_nothing(schedule: str, left: list[float]) -> None:
    wished = recipe(lr_schedule=schedule, steps=40)
    assert [lr_factor(schedule, step, 40) for step in range(0, 50, 10)] == pytest.approx(left, abs=1e-6)
    state = TrainState.of(wished, data())
    engine = Engine([state])
    for step in (0, 10):
        engine.advance(step + 1)
        assert engine._programs[0]._table.sizes.rate.item() == 0.02 * lr_factor(schedule, step, 40)
        engine.advance(step + 10)
        assert state.row().lr == 0.02 * lr_factor(schedule, step + 10, 40)


def test_an_annealed_temperature_is_that_of_the_step() -> None:
    wishes = recipe(temperature="2:1/2:8", prior_temperature="1:1/4:4")
    state = TrainState.of(wishes, data())
    for step, (temperature, prior) in {0: (2, 1), 2: (2**0.5, 0.5), 4: (1, 0.25), 8: (0.5, 0.25)}.items():
        advance(state, step)
        fixed = TrainState.of(recipe(temperature=float(temperature), prior_temperature=prior), data())
        fixed.load(step, 0.0, state.tensors())
        assert state.dry_run() == pytest.approx(fixed.dry_run(), rel=1e-6)
        assert state.row().temperature == pytest.approx(temperature)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_dry_run_is_the_next_step_and_changes_nothing(estimator: str) -> None:
    state = TrainState.of(recipe(notation="4H-4H-12V", estimator=estimator), data())
    advance(state, 2)
    state.row()
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    told = state.dry_run()
    assert_same(state.tensors(), before)
    assert all(module.training for module in state.model.modules())
    advance(state, 3)
    assert state.row().objective == pytest.approx(told, rel=1e-5)


@pytest.mark.parametrize("estimator", ["concrete", "vimco"])
def test_the_bound_of_a_row_is_the_average_over_its_steps(estimator: str) -> None:
    state, found = TrainState.of(recipe(estimator=estimator), data()), []
    for end in (10, 17, 18):
        alone = []
        while state.step < end:
            alone.append(state.dry_run())
            advance(state, state.step + 1)
        assert state.bound() == pytest.approx(sum(alone) / len(alone), rel=1e-5)
        row = state.row()
        found.append(row)
        assert row.objective == pytest.approx(sum(alone) / len(alone), rel=1e-5)
        assert row.step == end
        assert state.bound() == 0
    if estimator == "vimco":
        assert [row.discrete for row in found] == [row.objective for row in found]


def test_the_discrete_bound_of_a_row_is_less_by_the_mean_gap_where_it_was_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[int] = []
    losses = stepping._Program._losses

    def with_gap(
        program: stepping._Program, function: MemberLoss, bits: Tensor, purpose: Purpose, part: int = 0
    ) -> Tensor:
        if purpose is Purpose.NOISE:
            return losses(program, function, bits, purpose)
        step = int(program._table.sizes.step.item())
        measured.append(step)
        return losses(program, program._loss, bits, Purpose.NOISE) + 10 + step

    monkeypatch.setattr(stepping._Program, "_losses", with_gap)
    state = TrainState.of(recipe(steps=100), data())
    for end, steps in ((25, [0, 10, 20]), (30, [25]), (50, [30, 40])):
        measured.clear()
        advance(state, end)
        row = state.row()
        assert measured == steps
        assert row.objective - row.discrete == pytest.approx(10 + sum(steps) / len(steps), abs=1e-4)


def test_the_discrete_bound_is_that_of_the_discrete_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "GAP_INTERVAL", 1)
    state = TrainState.of(recipe(batch=40, lr=1e-30, temperature=4, prior_temperature=0.25), data())
    rows = []
    for step in range(80):
        advance(state, step + 1)
        rows.append(state.row())
    with torch.no_grad():
        true = estimate(state.model, data().train[:], estimator=Exact(), samples=1).bound.mean().item()
    assert_mean(torch.tensor([row.discrete for row in rows]), true, "of the discrete bound")
    gaps = torch.tensor([row.objective - row.discrete for row in rows])
    assert gaps.mean().abs() > 10 * gaps.std() / math.sqrt(len(gaps)), "at this temperature the two differ"


@pytest.mark.parametrize("estimator", ["concrete", "gumbel-softmax"])
def test_looking_at_the_discrete_graph_changes_nothing(estimator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for watched in (1, 10, 10**9):
        monkeypatch.setattr(stepping, "GAP_INTERVAL", watched)
        state = TrainState.of(recipe(notation="4H-4H-12V", estimator=estimator), data())
        advance(state, 12)
        found.append({name: tensor for name, tensor in state.tensors().items() if not name.startswith("row/")})
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])


def test_looking_at_the_validation_set_changes_nothing_and_finds_the_same_again() -> None:
    state = TrainState.of(recipe(notation="4H-4H-12V"), data())
    advance(state, 3)
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    assert state.validate() == state.validate()
    assert_same(state.tensors(), before)
    advance(state, 4)
    straight = TrainState.of(recipe(notation="4H-4H-12V"), data())
    advance(straight, 4)
    assert_same(state.tensors(), straight.tensors())


def test_a_model_starts_from_the_seed_and_from_the_base_rate_of_what_it_models() -> None:
    models = [build_model(recipe(notation="4V-4H-8V", seed=seed), data()).state_dict() for seed in (1, 1, 2)]
    assert_same(models[0], models[1])
    assert not models[0]["p.layers.0.network.0.weight"].equal(models[2]["p.layers.0.network.0.weight"])
    rate = models[0]["p.visible.network.0.bias"].sigmoid()
    torch.testing.assert_close(rate, data().train[:][:, 4:].float().mean(0).clamp(1e-3, 1 - 1e-3))


def test_the_global_generator_is_neither_asked_nor_moved() -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        state = TrainState.of(recipe(estimator="nvil", notation="4H-4H-12V"), data())
        advance(state, 3)
        state.validate()
        found.append(state.tensors())
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
    (notation, name) for notation in MODELS for name, _ in build_model(recipe(notation=notation)).named_parameters()
]


@grid(estimator=["concrete", "vimco", "nvil"], place=PARAMETERS)
def test_a_step_that_is_not_finite_is_named_with_its_layer_and_neither_it_nor_any_after_is_taken(
    estimator: str, place: tuple[str, str]
) -> None:
    notation, name = place
    state = TrainState.of(recipe(notation=notation, estimator=estimator), data())
    advance(state, 2)
    assert state.first_nonfinite() is None
    assert state.first_nonfinite_parameter() is None
    with torch.no_grad():
        dict(state.model.named_parameters())[name].view(-1)[0] = torch.nan
    before, moments = (
        parameters(state),
        {k: v.clone() for k, v in state.tensors().items() if k.startswith(("first/", "second/"))},
    )
    advance(state, 5)
    after = parameters(state)
    assert {n: t.nan_to_num(9) for n, t in after.items()}.keys() == before.keys()
    assert all(after[n].nan_to_num(9).equal(before[n].nan_to_num(9)) for n in before)
    assert_same({k: v for k, v in state.tensors().items() if k.startswith(("first/", "second/"))}, moments)
    assert state.first_nonfinite_parameter() == name.rpartition(".")[0]
    assert state.first_nonfinite() == (2, name.rpartition(".")[0])


@pytest.mark.parametrize("layer", ["p.layers.0.network.4", "p.visible.network.0", "q.layers.0.network.0"])
def test_an_output_that_is_not_finite_is_traced_to_its_layer_though_its_parameters_are(layer: str) -> None:
    state = TrainState.of(recipe(notation="4H~4H-12V"), data())
    module = state.model.get_submodule(layer)
    with torch.no_grad():
        module.weight.fill_(3e38)
        module.bias.fill_(3e38)
    advance(state, 3)
    assert state.first_nonfinite_parameter() is None
    assert state.first_nonfinite() == (0, layer)


def test_a_gradient_that_is_not_finite_is_traced_to_its_layer_though_all_outputs_are() -> None:
    state = TrainState.of(recipe(notation="4H-4H-12V"), data())
    advance(state, 1)
    handle = state.model.p.layers[0].network[0].bias.register_hook(lambda gradient: gradient * torch.nan)
    advance(state, 4)
    assert state.first_nonfinite() == (1, "p.layers.0.network.0")
    handle.remove()


def test_a_loss_that_is_not_finite_stops_training_though_its_gradient_is(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = stepping._Program._losses

    def endless(
        program: stepping._Program, function: MemberLoss, bits: Tensor, purpose: Purpose, part: int = 0
    ) -> Tensor:
        found = losses(program, function, bits, purpose)
        return found + math.inf if program._table.sizes.step.item() == 2 else found

    monkeypatch.setattr(stepping._Program, "_losses", endless)
    state = TrainState.of(recipe(), data())
    advance(state, 2)
    before = parameters(state)
    advance(state, 5)
    assert_same(parameters(state), before)
    found = state.first_nonfinite()
    assert found is not None
    assert found[0] == 2


def test_where_all_is_finite_the_layer_named_is_that_with_the_largest_gradient() -> None:
    state = TrainState.of(recipe(notation="4H-4H-12V"), data())
    state.model.p.layers[0].network[0].bias.register_hook(lambda gradient: gradient + 1e6)
    assert state.first_nonfinite_layer(0) == "p.layers.0.network.0"
