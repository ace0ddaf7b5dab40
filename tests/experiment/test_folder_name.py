"""The default folder of runs has the settings in its name that differ from those of the runs that are there."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from concretely.experiment.folder_name import sweep_folder, train_folder
from concretely.experiment.grid import expand_grid, list_names, sweep_names
from concretely.experiment.search import sweep_recipes
from concretely.training.own_recipe import OwnRecipe, RunRecipe
from concretely.training.own_resolve import resolve_recipe
from concretely.training.recipe import FILE

OWN: dict[str, Any] = {"model": "package.module:build", "data": "digits"}
PAPER: dict[str, Any] = {"notation": "4H-64V"}
CHANGES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (OWN, {"estimator": "rloo"}, "estimator=rloo,samples=5"),
    (OWN, {"samples": "3"}, "samples=3"),
    (OWN, {"batch": "32"}, "batch=32"),
    (OWN, {"accumulate": "2"}, "accumulate=2"),
    (OWN, {"optimizer": "muon"}, "optimizer=muon"),
    (OWN, {"lr_schedule": "cosine"}, "lr_schedule=cosine"),
    (OWN, {"precision": "tf32"}, "precision=tf32"),
    (OWN, {"validate": "50"}, "validate=50"),
    (OWN, {"validate": "50", "patience": "3"}, "validate=50,patience=3"),
    (OWN, {"validation_samples": "20"}, "validation_samples=20"),
    (OWN, {"steps": "10"}, "steps=10"),
    (PAPER, {"batch": "32"}, "batch=32"),
    (PAPER, {"optimizer": "muon"}, "optimizer=muon"),
    (PAPER, {"validate": "50"}, "validate=50"),
]
LISTABLE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (OWN, {"lr": "1e-2"}, "lr=0.01"),
    (OWN, {"temperature": "1:1/2:1000"}, "temperature=1x1_2x1000"),
    (OWN, {"prior_temperature": "0.5"}, "prior_temperature=0.5"),
    (OWN, {"beta": "0:1:1000"}, "beta=0x1x1000"),
    (OWN, {"clip": "0.5"}, "clip=0.5"),
    (OWN, {"ema": "0.99"}, "ema=0.99"),
    (PAPER, {"lr": "1e-2"}, "lr=0.01"),
    (PAPER, {"weight_decay": "0.3"}, "weight_decay=0.3"),
]
"""Changes of keys that may have several values, and are then in the names of the members."""


def recipes_of(**given: Any) -> list[RunRecipe]:
    return [resolve_recipe(**choice) for choice in expand_grid(given)]


def place(recipes: Sequence[RunRecipe], folder: Path, names: Sequence[str] = (".",)) -> Path:
    """Leave the recipes of runs in a folder."""
    for recipe, name in zip(recipes, names, strict=True):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / FILE).write_text(recipe.toml())
    return folder


@pytest.mark.parametrize(("model", "change", "name"), CHANGES + LISTABLE)
def test_another_setting_of_a_run_is_in_the_name(
    model: dict[str, Any], change: dict[str, Any], name: str, tmp_path: Path
) -> None:
    one, other = recipes_of(**model), recipes_of(**model, **change)
    assert train_folder(one, tmp_path).name == train_folder(other, tmp_path).name == one[0].title
    place(one, tmp_path / one[0].title)
    assert train_folder(one, tmp_path).name == one[0].title
    assert train_folder(other, tmp_path).name == f"{one[0].title},{name}"


@pytest.mark.parametrize(("model", "change", "name"), CHANGES + LISTABLE)
def test_another_setting_of_a_list_is_in_the_name(
    model: dict[str, Any], change: dict[str, Any], name: str, tmp_path: Path
) -> None:
    several = recipes_of(**model, seed="0..1")
    folder = place(several, train_folder(several, tmp_path), list_names(several))
    for seeds in ("0..1", "1..2", "2..3"):
        assert train_folder(recipes_of(**model, seed=seeds), tmp_path) == folder
        assert train_folder(recipes_of(**model, **change, seed=seeds), tmp_path).name == f"{folder.name},{name}"


@pytest.mark.parametrize(("model", "change", "name"), CHANGES)
def test_another_setting_of_a_sweep_is_in_the_name(
    model: dict[str, Any], change: dict[str, Any], name: str, tmp_path: Path
) -> None:
    grid = sweep_recipes(**model, lr="0.01,0.1")
    folder = place(grid, sweep_folder(grid, tmp_path), sweep_names(grid))
    for rates in ("0.01,0.1", "0.1,0.2", "0.3"):
        assert sweep_folder(sweep_recipes(**model, lr=rates), tmp_path) == folder
        assert sweep_folder(sweep_recipes(**model, **change, lr=rates), tmp_path).name == f"{folder.name},{name}"


@pytest.mark.parametrize(("model", "change", "name"), LISTABLE)
def test_a_run_without_a_setting_of_another_has_another_folder(
    model: dict[str, Any], change: dict[str, Any], name: str, tmp_path: Path
) -> None:
    one = recipes_of(**model)
    place(recipes_of(**model, **change), tmp_path / one[0].title)
    before = name.partition("=")[0]
    assert train_folder(one, tmp_path).name.startswith(f"{one[0].title},{before}=")


def test_arguments_of_a_builder_are_in_the_name(tmp_path: Path) -> None:
    one, wide = recipes_of(**OWN), recipes_of(**OWN, arguments={"width": "5"})
    place(one, train_folder(one, tmp_path))
    assert train_folder(wide, tmp_path).name == "module.build-width5-digits-seed0"
    widths = recipes_of(**OWN, arguments={"width": "4,5"})
    folder = place(widths, train_folder(widths, tmp_path), list_names(widths))
    assert folder.name == "module.build-digits"
    assert train_folder(recipes_of(**OWN, arguments={"depth": "1,2"}), tmp_path) == folder
    deep = train_folder(recipes_of(**OWN, arguments={"width": "4,5", "depth": "2"}), tmp_path)
    assert deep.name == "module.build-depth2-digits"


@pytest.mark.parametrize("name", ["samples", "lr", "beta"])
def test_an_argument_that_is_called_like_a_setting_has_a_name_of_its_own(name: str, tmp_path: Path) -> None:
    for names_of, folder_of in ((list_names, train_folder), (sweep_names, sweep_folder)):
        several, others = (recipes_of(**OWN, arguments={name: values, "width": "7"}) for values in ("2,3", "2,4"))
        names = [f"set.{name}=2", f"set.{name}=3"]
        assert [each.split(",width")[0] for each in names_of(several)] == names
        folder = place(several, folder_of(several, tmp_path / names_of.__name__), names_of(several))
        assert folder.name == "module.build-width7-digits"
        assert folder_of(others, folder.parent) == folder


def test_more_steps_go_on_in_the_same_folder_unless_the_rate_depends_on_the_last(tmp_path: Path) -> None:
    for schedule, goes_on in (("constant", True), ("linear", False)):
        several, longer = (recipes_of(**OWN, seed="0,1", lr_schedule=schedule, steps=n) for n in (20, 30))
        folder = place(several, train_folder(several, tmp_path / schedule), list_names(several))
        assert (train_folder(longer, folder.parent) == folder) == goes_on


@pytest.mark.parametrize(
    ("folder_of", "names_of"), [(train_folder, list_names), (sweep_folder, sweep_names)], ids=["train", "sweep"]
)
def test_a_list_keeps_its_folder_when_other_runs_have_gone_on_to_more_steps(
    folder_of: Callable[..., Path], names_of: Callable[..., list[str]], tmp_path: Path
) -> None:
    def placed(**given: Any) -> str:
        recipes = recipes_of(**OWN, lr="0.01,0.001", **given)
        folder = folder_of(recipes, tmp_path)
        place(recipes, folder, names_of(recipes))
        return folder.name.removeprefix("module.build-digits")

    two: dict[str, Any] = {"accumulate": "2"}
    assert [placed(steps=4), placed(steps=4, **two), placed(steps=6)] == ["", ",accumulate=2", ""]
    assert [placed(steps=4, **two), placed(steps=4)] == [",accumulate=2", ",steps=4"]
    assert [placed(steps=5), placed(steps=4)] == [",steps=5", ",steps=4"]  # no more steps than its name says
    assert [placed(steps=8, **two), placed(steps=7, **two)] == [",accumulate=2", ",accumulate=2,steps=7"]
    assert [placed(steps=4, **two), placed(steps=9, **two)] == [",steps=4,accumulate=2", ",accumulate=2"]


def test_data_that_were_moved_are_the_same_and_others_of_their_name_are_not(tmp_path: Path) -> None:
    def of_data(place: str) -> list[RunRecipe]:
        return recipes_of(**{**OWN, "data": str(tmp_path / place / "my.npz")}, seed="0,1")

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "my.npz").touch()
    folder = place(of_data("a"), train_folder(of_data("a"), tmp_path), list_names(of_data("a")))
    assert train_folder(of_data("b/../a"), tmp_path) == folder
    assert train_folder(of_data("b"), tmp_path).name.startswith("module.build-my,data=")
    (tmp_path / "a" / "my.npz").unlink()
    assert train_folder(of_data("b"), tmp_path) == folder


def test_a_file_that_is_no_recipe_is_passed_over(tmp_path: Path) -> None:
    one = recipes_of(**OWN)
    place(one, folder := train_folder(one, tmp_path))
    (folder / FILE).write_text("steps = ")
    assert train_folder(one, tmp_path) == folder


def test_a_member_whose_argument_is_none_has_a_folder_of_its_own() -> None:
    recipes = [OwnRecipe(model="my:build", arguments={"norm": norm}) for norm in (None, "batch")]
    assert list_names(recipes) == ["norm=None", "norm=batch"]
