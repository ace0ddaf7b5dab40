"""A member of an ensemble is the same run alone, whatever becomes of the others."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from concretely.data import Bits, Dataset
from concretely.functional.affine import affine
from concretely.training.ensemble import Ensemble
from concretely.training.loop import DivergedError, Watch, train, train_together
from concretely.training.member import DIFFERENT, OF_DATA, Member, alike, data_key
from concretely.training.recipe import ESTIMATORS, Recipe
from concretely.training.run import Run, restored
from concretely.training.trainer import Row, Trainer

from ..cases import DEVICES
from ..kernel import fast, kernel, launched
from ..kernel import wished as at_precision
from .example import data, recipe, tensors

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


def assert_close(found: Trainer, expected: Trainer) -> None:
    """Fail unless two trainers have come to the same, up to the last digits."""
    one, other = found.tensors(), expected.tensors()
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        # Adam divides small gradients by their size, which is where last digits show
        torch.testing.assert_close(
            tensor, other[name], rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert found.bound() == pytest.approx(expected.bound(), rel=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("notation", NOTATIONS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_member_is_the_run_alone(estimator: str, notation: str, device: str) -> None:
    wishes = [dict(wish) for wish in WISHES]
    if estimator == "concrete":
        wishes[1]["temperature"], wishes[2]["temperature"] = 0.5, "1:1/2:10"
    recipes = [recipe(notation=notation, estimator=estimator, **wish) for wish in wishes]
    alone, together = ([Trainer(each, data(), device=device) for each in recipes] for _ in range(2))
    for trainer in alone:
        trainer.advance(25)
    ensemble = Ensemble(together)
    ensemble.advance(11)
    ensemble.advance(25)
    assert ensemble.step == 25
    for found, expected in zip(together, alone, strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("notation", NOTATIONS)
def test_a_member_is_the_run_alone_with_any_optimizer(notation: str, device: str) -> None:
    recipes = [recipe(notation=notation, optimizer="muon", **wish) for wish in WISHES]
    alone, together = ([Trainer(each, data(), device=device) for each in recipes] for _ in range(2))
    for trainer in alone:
        trainer.advance(25)
    Ensemble(together).advance(25)
    for found, expected in zip(together, alone, strict=True):
        assert_close(found, expected)


def test_members_may_have_data_of_their_own() -> None:
    recipes, sets = [recipe(seed=1), recipe(seed=1), recipe(seed=2)], [data(), other_data(), data()]
    alone, together = ([Trainer(each, points) for each, points in zip(recipes, sets, strict=True)] for _ in range(2))
    for trainer in alone:
        trainer.advance(20)
    Ensemble(together).advance(20)
    for found, expected in zip(together, alone, strict=True):
        assert_close(found, expected)


@kernel
@pytest.mark.parametrize("notation", NOTATIONS)
def test_gradients_left_as_factors_take_the_same_steps(notation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = fast("affine")

    def before_tanh(by: Tensor, out: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
        by_total = by * (1 - out * out) if tanh else by
        return by_total, by_total.sum(1)

    # in torch's operations, as an interpreter of kernels would take minutes
    monkeypatch.setattr(kernels, "affine", affine.definition)
    monkeypatch.setattr(kernels, "before_tanh", before_tanh)
    monkeypatch.setattr(kernels, "FEW", 0)
    recipes = [recipe(notation=notation, **wish) for wish in WISHES]
    plain, factored = ([Trainer(each, data()) for each in recipes] for _ in range(2))
    Ensemble(plain).advance(20)
    with launched("affine"), at_precision("high"):
        Ensemble(factored).advance(20)
    for found, expected in zip(factored, plain, strict=True):
        assert_close(found, expected)


def test_a_member_that_diverges_does_not_disturb_the_others(tmp_path: Path) -> None:
    recipes = [recipe(seed=1), recipe(seed=2, lr=1e30), recipe(seed=3)]
    notes = list[str]()
    members = [Member(each, tmp_path / str(each.seed)) for each in recipes]
    first, second, third = train_together(members, data=points, watch=Watch(note=notes.append))
    assert isinstance(second, DivergedError)
    assert "try a smaller lr" in str(second)
    assert notes == [f"2: {second}"]
    for found, wished in ((first, recipes[0]), (third, recipes[2])):
        assert isinstance(found, Run)
        expected = train(wished, tmp_path / f"alone-{wished.seed}", data=data())
        assert (found.finished, found.step, found.members, expected.members) == (True, 30, 3, 1)
        assert [row.bound for row in found.rows] == pytest.approx([row.bound for row in expected.rows], rel=1e-5)
        assert restored(tmp_path / str(wished.seed))[0] == found
    assert not (tmp_path / "2" / "model.safetensors").exists()


def test_a_gradient_that_is_not_finite_stops_its_member_alone() -> None:
    trainers = [Trainer(recipe(seed=seed), data()) for seed in (1, 2)]
    ensemble = Ensemble(trainers)
    ensemble.advance(3)
    before = {name: tensor.clone() for name, tensor in trainers[0].model.state_dict().items()}
    with torch.no_grad():
        trainers[0].model.p.visible.network[0].bias[0] = torch.nan
    ensemble.advance(6)
    assert trainers[0].fault() == (3, "p.visible.network.0")
    assert trainers[1].fault() is None
    for name, tensor in trainers[0].model.state_dict().items():
        if name != "p.visible.network.0.bias":
            assert tensor.equal(before[name]), name


def test_members_end_one_by_one_and_each_as_it_would_alone(tmp_path: Path) -> None:
    wishes: dict[str, Any] = {"steps": 400, "validate": 10, "patience": 2, "lr": 0.05}
    recipes = [recipe(seed=seed, **wishes) for seed in range(4)]
    found = train_together([Member(each, tmp_path / str(each.seed)) for each in recipes], data=points)
    alone = [train(each, tmp_path / f"alone-{each.seed}", data=data()) for each in recipes]
    assert len({run.step for run in alone}) > 1
    for one, other in zip(found, alone, strict=True):
        assert isinstance(one, Run)
        assert (one.step, one.chosen, one.finished) == (other.step, other.chosen, True)
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
        for name in one:
            assert one[name].equal(other[name]), name


def test_runs_at_different_steps_are_resumed_apart(tmp_path: Path) -> None:
    recipes = [recipe(seed=seed) for seed in range(3)]
    members = [Member(each, tmp_path / str(each.seed)) for each in recipes]
    taken = list[int]()
    train_together(members[:1], data=points, stop=lambda: bool(taken.append(0)) or len(taken) == 7)
    found = train_together(members, data=points)
    assert [run.step for run in found if isinstance(run, Run)] == [30, 30, 30]


def test_rows_of_several_are_averages(tmp_path: Path) -> None:
    rows = list[Row]()
    recipes = [recipe(seed=seed, validate=10) for seed in range(3)]
    members = [Member(each, tmp_path / str(each.seed)) for each in recipes]
    found = train_together(members, data=points, watch=Watch(row=rows.append))
    for index, row in enumerate(rows):
        of_all = [run.rows[index] for run in found if isinstance(run, Run)]
        assert row.bound == pytest.approx(sum(each.bound for each in of_all) / 3)
        assert row.seconds == pytest.approx(sum(each.seconds for each in of_all))
        assert row.valid == pytest.approx(sum(each.valid or 0 for each in of_all) / 3)
    assert [row.step for row in rows] == [10, 20, 30]


def test_only_what_makes_one_program_is_alike() -> None:
    assert alike(recipe(), recipe(seed=9, lr=1.0, weight_decay=2.0, temperature=0.1, data="omniglot"))
    for wish in ({"samples": 2}, {"batch": 8}, {"steps": 31}, {"notation": "4H~12V"}, {"estimator": "reinforce"}):
        assert not alike(recipe(), recipe(**wish)), wish
    assert set(DIFFERENT) <= set(recipe().settings)
    assert data_key(recipe()) == data_key(recipe(seed=9, lr=1.0))
    for name, value in zip(OF_DATA, ("omniglot", "threshold", "whole"), strict=True):
        assert alike(recipe(), recipe(**{name: value}))
        assert data_key(recipe()) != data_key(recipe(**{name: value}))
    one, other = Trainer(recipe(), data()), Trainer(recipe(samples=2), data())
    with pytest.raises(ValueError, match="members of an ensemble must have one architecture"):
        Ensemble([one, other])


def test_a_run_that_is_left_alone_is_not_disturbed_by_what_it_was_together_with(tmp_path: Path) -> None:
    recipes = [recipe(seed=1, lr=1e-2, steps=100), recipe(seed=2, lr=1e6, steps=100)]
    left, gone = train_together([Member(each, tmp_path / str(each.seed)) for each in recipes], data=points)
    assert isinstance(left, Run)
    assert isinstance(gone, DivergedError)
    expected = train(recipes[0], tmp_path / "alone", data=data())
    one, other = (tensors(tmp_path / name) for name in ("1", "alone"))
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=1e-3)
    assert [row.bound for row in left.rows] == pytest.approx([row.bound for row in expected.rows], rel=1e-4)


def test_the_discrete_graph_is_looked_at_when_the_first_member_has_ended(tmp_path: Path) -> None:
    wishes: dict[str, Any] = {"steps": 60, "validate": 5, "patience": 1, "lr": 0.05}
    recipes = [recipe(seed=seed, **wishes) for seed in range(5)]
    found = train_together([Member(each, tmp_path / str(each.seed)) for each in recipes], data=points)
    for run in found:
        assert isinstance(run, Run)
        alone = train(run.recipe, tmp_path / f"alone-{run.recipe.seed}", data=data())
        assert [row.discrete for row in run.rows] == pytest.approx([row.discrete for row in alone.rows], rel=1e-4)


def test_baselines_follow_from_the_seed_in_any_thread() -> None:
    wished = recipe(estimator="nvil")
    expected = Trainer(wished, data()).tensors()
    with ThreadPoolExecutor(4) as pool:
        for trainer in pool.map(lambda _: Trainer(wished, data()), range(8)):
            for name, tensor in trainer.tensors().items():
                assert tensor.equal(expected[name]), name
