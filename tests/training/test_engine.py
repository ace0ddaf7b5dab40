"""A member is the same run alone, whatever becomes of the others: in the same bits on a CPU, else up to rounding."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from concretely.data import Bits, Dataset
from concretely.functional.arithmetic import affine
from concretely.kernel.deferred import gradient_of_weight
from concretely.training import engine
from concretely.training.engine import Engine
from concretely.training.folder import Run, restored
from concretely.training.loop import Callbacks, DivergedError, train, train_together
from concretely.training.recipe import DIFFERENT, ESTIMATORS, OF_DATA, OPTIMIZERS, Member, Recipe, data_key, program_key
from concretely.training.train_state import Row, TrainState

from ..cases import DEVICES, grid
from ..kernel import fast, kernel, launched
from ..kernel import wished as at_precision
from .example import assert_alike, assert_same, data, recipe, tensors

STEPS = 12  # with two gaps
NOTATIONS = ["4H~12V", "4H-4H-12V", "4V-4H-8V", "4H:4-12V"]
WISHES: list[dict[str, Any]] = [
    {"seed": 1},
    {"seed": 2, "lr": 0.01, "weight_decay": 3.0},
    {"seed": 3, "lr_schedule": "constant"},
]


def points(recipe: Recipe) -> Dataset:
    """The data of all members."""
    return data()


def other_data() -> Dataset:
    """Other points, and another number of them, of as many bits."""
    points = torch.rand(90, 12, generator=torch.Generator().manual_seed(8)) < 0.4
    return Dataset("spots", *(Bits.pack(part) for part in points.split([60, 20, 10])), source="made up.")


def assert_equal(found: TrainState, expected: TrainState) -> None:
    """Fail unless two runs have come to the same bits."""
    assert_same(found.tensors(), expected.tensors())
    assert found.metrics == expected.metrics


def assert_close(found: TrainState, expected: TrainState) -> None:
    """Fail unless two runs have come to the same, up to the last digits."""
    one, other = found.tensors(), expected.tensors()
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        # Adam divides small gradients by their size, which is where last digits show
        torch.testing.assert_close(
            tensor, other[name], rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert found.bound() == pytest.approx(expected.bound(), rel=1e-5)


def wished(estimator: str, notation: str, **given: Any) -> list[Recipe]:
    """Recipes that differ in all that members may differ in."""
    wishes = [dict(wish) for wish in WISHES]
    if estimator == "concrete":
        wishes[1]["temperature"], wishes[2]["temperature"] = 0.5, "1:1/2:10"
    return [recipe(notation=notation, estimator=estimator, **given, **wish) for wish in wishes]


def runs(recipes: list[Recipe], device: str = "cpu") -> list[TrainState]:
    return [TrainState.of(each, data(), device=device) for each in recipes]


def trained_alone(recipes: list[Recipe], device: str = "cpu") -> list[TrainState]:
    """Runs of `STEPS`, each by itself and as a plain program."""
    alone = runs(recipes, device)
    for state in alone:
        Engine([state], stacked=False).advance(STEPS)
    return alone


@grid(estimator=list(ESTIMATORS), notation=NOTATIONS, optimizer=OPTIMIZERS)
def test_a_member_ends_in_the_bits_of_the_run_alone(estimator: str, notation: str, optimizer: str) -> None:
    recipes = wished(estimator, notation, optimizer=optimizer)
    together = runs(recipes)
    engine = Engine(together)
    engine.advance(7)
    engine.advance(STEPS)
    assert engine.step == STEPS
    for found, expected in zip(together, trained_alone(recipes), strict=True):
        assert_equal(found, expected)


@pytest.mark.parametrize("device", DEVICES)
@grid(estimator=list(ESTIMATORS), notation=NOTATIONS)
def test_a_member_of_one_program_is_the_run_alone(estimator: str, notation: str, device: str) -> None:
    recipes = wished(estimator, notation)
    together = runs(recipes, device)
    engine = Engine(together, stacked=True)
    engine.advance(7)
    engine.advance(STEPS)
    assert engine.step == STEPS
    for found, expected in zip(together, trained_alone(recipes, device), strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("notation", NOTATIONS)
def test_a_member_of_one_program_is_the_run_alone_with_any_optimizer(notation: str, device: str) -> None:
    recipes = [recipe(notation=notation, optimizer="muon", **wish) for wish in WISHES]
    together = runs(recipes, device)
    Engine(together, stacked=True).advance(STEPS)
    for found, expected in zip(together, trained_alone(recipes, device), strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize("stacked", [False, True])
def test_members_may_have_data_of_their_own(stacked: bool) -> None:
    recipes, sets = [recipe(seed=1), recipe(seed=1), recipe(seed=2)], [data(), other_data(), data()]
    alone, together = ([TrainState.of(each, own) for each, own in zip(recipes, sets, strict=True)] for _ in range(2))
    for state in alone:
        Engine([state]).advance(20)
    Engine(together, stacked=stacked).advance(20)
    for found, expected in zip(together, alone, strict=True):
        (assert_close if stacked else assert_equal)(found, expected)


@kernel
@grid(wished=[("4H~12V", "nvil"), *((notation, "concrete") for notation in NOTATIONS)], stacked=[False, True])
def test_gradients_left_as_factors_take_the_same_steps(
    wished: tuple[str, str], stacked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    notation, estimator = wished
    kernels = fast("affine")
    guard, deferred = engine.guard_, list[str]()

    def guarded(log: Any, gradients: list[Tensor], *others: Any) -> Any:
        assert all(type(gradient) is Tensor for gradient in gradients)  # a kernel would read memory that is not there
        return guard(log, gradients, *others)

    def gradient(*factors: Tensor, deferred: bool) -> Tensor:
        made = gradient_of_weight(*factors, deferred=deferred)
        return made if type(made) is Tensor else found_deferred(made)

    def found_deferred(made: Tensor) -> Tensor:
        deferred.append(str(made))
        return made

    monkeypatch.setattr(engine, "guard_", guarded)
    monkeypatch.setattr(kernels, "gradient_of_weight", gradient)

    def before_tanh(by: Tensor, out: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
        by_total = by * (1 - out * out) if tanh else by
        return by_total, by_total.sum(1)

    # in torch's operations, as an interpreter of kernels would take minutes
    monkeypatch.setattr(kernels, "affine", affine.definition)
    monkeypatch.setattr(kernels, "before_tanh", before_tanh)
    monkeypatch.setattr(kernels, "FEW", 0)
    recipes = [recipe(notation=notation, estimator=estimator, batch=2, **wish) for wish in WISHES]
    plain, factored = (runs(recipes) for _ in range(2))
    Engine(plain, stacked=stacked).advance(4)
    with launched("affine"), at_precision("high"):
        Engine(factored, stacked=stacked).advance(4)
    assert deferred or not stacked
    for found, expected in zip(factored, plain, strict=True):
        assert_close(found, expected)


def test_a_member_that_diverges_does_not_disturb_the_others(tmp_path: Path) -> None:
    recipes = [recipe(seed=1), recipe(seed=2, lr=1e30), recipe(seed=3)]
    notes = list[str]()
    members = [Member(each, tmp_path / str(each.seed)) for each in recipes]
    first, second, third = train_together(members, data=points, callbacks=Callbacks(note=notes.append))
    assert isinstance(second, DivergedError)
    assert "a smaller lr in another folder" in str(second)
    assert notes == [f"2: {second}"]
    for found, own in ((first, recipes[0]), (third, recipes[2])):
        assert isinstance(found, Run)
        expected = train(own, tmp_path / f"alone-{own.seed}", data=data())
        assert (found.finished, found.step, found.members, expected.members) == (True, 30, 3, 1)
        assert_alike(replace(found, members=1), expected)
        assert_same(tensors(tmp_path / str(own.seed)), tensors(tmp_path / f"alone-{own.seed}"))
        assert restored(tmp_path / str(own.seed))[0] == found
    assert not (tmp_path / "2" / "model.safetensors").exists()


@pytest.mark.parametrize("stacked", [False, True])
def test_a_gradient_that_is_not_finite_stops_its_member_alone(stacked: bool) -> None:
    first, second = states = runs([recipe(seed=seed) for seed in (1, 2)])
    engine = Engine(states, stacked=stacked)
    engine.advance(3)
    before = {name: tensor.clone() for name, tensor in first.model.state_dict().items()}
    with torch.no_grad():
        first.model.p.visible.network[0].bias[0] = torch.nan
    engine.advance(6)
    assert first.first_nonfinite() == (3, "p.visible.network.0")
    assert second.first_nonfinite() is None
    for name, tensor in first.model.state_dict().items():
        if name != "p.visible.network.0.bias":
            assert tensor.equal(before[name]), name


def test_members_end_one_by_one_and_each_as_it_would_alone(tmp_path: Path) -> None:
    wishes: dict[str, Any] = {"steps": 400, "validate": 5, "patience": 2, "lr": 0.05}
    recipes = [recipe(seed=seed, **wishes) for seed in range(3)]
    found = train_together([Member(each, tmp_path / str(each.seed)) for each in recipes], data=points)
    alone = [train(each, tmp_path / f"alone-{each.seed}", data=data()) for each in recipes]
    assert len({run.step for run in alone}) > 1
    for one, other in zip(found, alone, strict=True):
        assert isinstance(one, Run)
        assert (one.step, one.chosen, one.finished) == (other.step, other.chosen, True)
        assert_same(tensors(tmp_path / str(one.recipe.seed)), tensors(tmp_path / f"alone-{one.recipe.seed}"))
        assert (tmp_path / str(one.recipe.seed) / "model.safetensors").exists()


def test_a_program_that_is_stopped_goes_on_to_the_same_end(tmp_path: Path) -> None:
    recipes = [recipe(seed=seed, estimator="nvil", notation="4H-4H-12V") for seed in range(3)]

    def members(folder: str) -> list[Member]:
        return [Member(each, tmp_path / folder / str(each.seed)) for each in recipes]

    train_together(members("whole"), data=points)
    taken = list[int]()
    halves = train_together(members("halves"), data=points, stop=lambda: bool(taken.append(0)) or len(taken) == 13)
    assert [run.step for run in halves if isinstance(run, Run)] == [13, 13, 13]
    train_together(members("halves"), data=points)
    for each in recipes:
        one, other = (tensors(tmp_path / folder / str(each.seed)) for folder in ("whole", "halves"))
        assert_same(one, other)


@pytest.mark.parametrize(
    ("stop", "estimator", "optimizer"),
    [
        (7, "concrete", "adam"),
        (13, "nvil", "adam"),
        (10, "vimco", "adam"),
        (13, "concrete", "muon"),
        (7, "nvil", "muon"),
    ],
)
def test_a_run_that_fell_behind_catches_up_to_the_bits_of_an_uninterrupted_list(
    stop: int, estimator: str, optimizer: str, tmp_path: Path
) -> None:
    recipes = [recipe(seed=seed, estimator=estimator, optimizer=optimizer, validate=5) for seed in range(3)]

    def members(folder: str) -> list[Member]:
        return [Member(each, tmp_path / folder / str(each.seed)) for each in recipes]

    whole = train_together(members("whole"), data=points)
    for few, steps in ((members("parts")[:1], stop), (members("parts")[1:2], 2 * stop)):
        taken = list[int]()
        train_together(
            few, data=points, stop=lambda taken=taken, steps=steps: bool(taken.append(0)) or len(taken) == steps
        )
    found = train_together(members("parts"), data=points)
    assert [run.step for run in found if isinstance(run, Run)] == [30, 30, 30]
    for member, one, other in zip(recipes, found, whole, strict=True):
        assert isinstance(one, Run)
        assert isinstance(other, Run)
        assert_alike(replace(one, members=3), other)
        assert_same(tensors(tmp_path / "parts" / str(member.seed)), tensors(tmp_path / "whole" / str(member.seed)))


def test_rows_of_several_have_their_names_and_their_average(tmp_path: Path) -> None:
    rows, own = list[Row](), list[Row]()
    recipes = [recipe(seed=seed, validate=10) for seed in range(3)]
    members = [Member(each, tmp_path / str(each.seed)) for each in recipes]
    found = train_together(members, data=points, callbacks=Callbacks(row=own.append, mean_row=rows.append))
    for seed, run in enumerate(found):
        assert isinstance(run, Run)
        assert [replace(row, run="") for row in own if row.run == str(seed)] == list(run.rows)
    for index, row in enumerate(rows):
        of_all = [run.rows[index] for run in found if isinstance(run, Run)]
        assert row.objective == pytest.approx(sum(each.objective for each in of_all) / 3)
        assert row.seconds == pytest.approx(sum(each.seconds for each in of_all))
        assert row.valid == pytest.approx(sum(each.valid or 0 for each in of_all) / 3)
    assert [row.step for row in rows] == [10, 20, 30]


def test_a_score_that_is_not_a_number_is_left_out_of_the_average(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def validate(state: TrainState) -> float:
        seed = state.recipe.seed
        return 1.0 + seed if state.step >= 20 + seed else math.nan

    monkeypatch.setattr(TrainState, "validate", validate)
    rows = list[Row]()
    members = [Member(recipe(seed=seed, validate=10), tmp_path / str(seed)) for seed in range(3)]
    train_together(members, data=points, callbacks=Callbacks(mean_row=rows.append))
    assert [row.valid for row in rows] == [pytest.approx(math.nan, nan_ok=True), 1.0, 2.0]


def test_only_what_makes_one_program_has_one_key() -> None:
    own = program_key(recipe())
    assert own == program_key(recipe(seed=9, lr=1.0, weight_decay=2.0, temperature=0.1, data="omniglot"))
    for wish in ({"samples": 2}, {"batch": 8}, {"steps": 31}, {"notation": "4H~12V"}, {"estimator": "reinforce"}):
        assert own != program_key(recipe(**wish)), wish
    assert set(DIFFERENT) <= set(recipe().settings)
    assert data_key(recipe()) == data_key(recipe(seed=9, lr=1.0))
    for name, value in zip(OF_DATA, ("omniglot", "threshold", "whole"), strict=True):
        assert own == program_key(recipe(**{name: value}))
        assert data_key(recipe()) != data_key(recipe(**{name: value}))
    one, other = TrainState.of(recipe(), data()), TrainState.of(recipe(samples=2), data())
    with pytest.raises(ValueError, match="members of an engine must have one architecture"):
        Engine([one, other])


def test_a_run_that_is_left_alone_is_not_disturbed_by_what_it_was_together_with(tmp_path: Path) -> None:
    recipes = [recipe(seed=1, lr=1e-2, steps=100), recipe(seed=2, lr=1e6, steps=100)]
    left, gone = train_together([Member(each, tmp_path / str(each.seed)) for each in recipes], data=points)
    assert isinstance(left, Run)
    assert isinstance(gone, DivergedError)
    expected = train(recipes[0], tmp_path / "alone", data=data())
    one, other = (tensors(tmp_path / name) for name in ("1", "alone"))
    assert_same(one, other)
    assert_alike(replace(left, members=1), expected)


def test_the_gap_is_measured_when_the_first_member_has_ended(tmp_path: Path) -> None:
    wishes: dict[str, Any] = {"steps": 60, "validate": 5, "patience": 1, "lr": 0.05}
    recipes = [recipe(seed=seed, **wishes) for seed in range(5)]
    found = train_together([Member(each, tmp_path / str(each.seed)) for each in recipes], data=points)
    for run in found:
        assert isinstance(run, Run)
        alone = train(run.recipe, tmp_path / f"alone-{run.recipe.seed}", data=data())
        assert_alike(replace(run, members=1), alone)


def test_baselines_follow_from_the_seed_in_any_thread() -> None:
    wished = recipe(estimator="nvil")
    expected = TrainState.of(wished, data()).tensors()
    with ThreadPoolExecutor(4) as pool:
        for state in pool.map(lambda _: TrainState.of(wished, data()), range(8)):
            assert_same(state.tensors(), expected)


@pytest.mark.unchecked
@pytest.mark.parametrize("estimator", ["concrete", "vimco"])
def test_a_step_on_a_cpu_runs_the_code_of_few_files(estimator: str) -> None:
    (state,) = runs([recipe(notation="4H~12V", estimator=estimator, samples=2)])
    own, package, files = Engine([state]), str(Path(engine.__file__).parents[1]), set[str]()
    own.advance(3)  # the first steps prepare what others share
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: files.add(frame.f_code.co_filename))
    try:
        own.advance(14)  # with a gap
    finally:
        sys.setprofile(before)
    assert 10 < len([file for file in files if file.startswith(package)]) <= 24
