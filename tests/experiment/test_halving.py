"""Halving stops members by their scores on the validation set, and changes nothing about the others."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from concretely.experiment import halving
from concretely.experiment.halving import FILE, Rung, ScoreRung, plan_rungs
from concretely.experiment.scheduler import Monitor
from concretely.experiment.search import Sweep, sweep, sweep_recipes
from concretely.training import loop
from concretely.training.engine import GAP_INTERVAL, Engine
from concretely.training.folder import restored
from concretely.training.recipe import Member

from .test_share import together

RATES = "1e-4,3e-4,1e-3,3e-3,1e-2,3e-2,1e30"
STEPS = 36
"""Rungs at a ninth of the steps and at a third: 4 and 12."""


def searched(folder: Path, **how: Any) -> Sweep:
    recipes = sweep_recipes(notation="4H-64V", steps=STEPS, lr=RATES, weight_decay="0", batch=16)
    recipes += sweep_recipes(notation="4H-64V", steps=STEPS, lr="1e-2,3e-2", weight_decay="1", batch=16)
    return sweep(recipes, folder, samples=3, **{"halving": 3, **how})


def steps(found: Sweep) -> dict[str, int]:
    return {member.folder.name: restored(member.folder)[0].step for member, record in found.ranked if record}


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("model.safetensors")}


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, list[str]]:
    """A sweep of nine members, one of which diverges, to be read only, and its notes."""
    notes = list[str]()
    return searched(tmp_path_factory.mktemp("sweep"), monitor=Monitor(note=notes.append)), notes


@pytest.mark.parametrize(
    ("members", "number", "factor", "rungs"),
    [
        (12, 900, 3, [Rung(100, 4), Rung(300, 2)]),
        (9, 36, 3, [Rung(4, 3), Rung(12, 1)]),
        (8, 80, 2, [Rung(10, 4), Rung(20, 2), Rung(40, 1)]),
        (5, 10, 5, [Rung(2, 1)]),
        (8, 4, 2, [Rung(1, 4), Rung(2, 2)]),  # there is no step at which a first half could be stopped
        (2, 1, 2, []),
    ],
)
def test_rungs_keep_one_part_each(members: int, number: int, factor: int, rungs: list[Rung]) -> None:
    assert plan_rungs(members, steps=number, factor=factor) == rungs


def test_the_best_on_the_validation_set_go_on(halved: tuple[Sweep, list[str]]) -> None:
    found, notes = halved
    assert sorted(steps(found).values()) == [4] * 5 + [12] * 2 + [STEPS]
    assert [note for note in notes if "go on" in note] == [
        "3 of 9 members go on after step 4",
        "1 of 3 members go on after step 12",
    ]
    assert found.best is not None
    assert restored(found.best.folder)[0].finished
    finalists = [member for member, record in found.ranked if record and steps(found)[member.folder.name] >= 12]
    first = {member: ScoreRung(4, 3).value(member) for member, record in found.ranked if record}
    assert all(value is not None for value in first.values())
    assert max(first[member] or 0 for member in finalists) < min(
        first[member] or 0 for member in first if member not in finalists
    )
    second = {member: ScoreRung(12, 3).value(member) for member in finalists}
    assert min(second, key=lambda member: second[member] or 0) == found.best


def test_what_is_saved_is_said_and_written(halved: tuple[Sweep, list[str]]) -> None:
    found, _ = halved
    saved = 5 * (STEPS - 4) + 2 * (STEPS - 12)
    share = f"{saved:,} of {9 * STEPS:,} steps, {saved / (9 * STEPS):.0%}"
    assert found.saved == f"halving has stopped 7 of 9 members early, which saved {share}"
    content = json.loads((found.folder / "sweep.json").read_text())
    assert content["halving"] == found.saved
    assert [entry.get("stopped", False) for entry in content["members"]] == [False, *7 * [True], False]
    assert "diverged" in content["members"][-1]
    metrics = [json.loads((member.folder / "record.json").read_text())["metrics"] for member in found.stopped]
    assert all("valid_nll" in each and "test_nll" not in each for each in metrics)


def test_a_member_that_goes_on_has_the_bits_of_one_that_never_paused(
    halved: tuple[Sweep, list[str]], tmp_path: Path
) -> None:
    whole = searched(tmp_path, halving=None)
    assert (list(whole.stopped), whole.saved) == ([], "")
    best = halved[0].best
    assert best is not None
    name = f"{best.folder.name}/model.safetensors"
    assert files(halved[0].folder) == {name: files(tmp_path)[name]}


def test_members_pause_at_a_rung_also_if_ten_steps_are_one_graph(
    halved: tuple[Sweep, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, together = list[int](), Engine._together

    def in_tens(engine: Engine, until: int) -> int:  # as on a GPU
        taken.append(GAP_INTERVAL if engine.step + GAP_INTERVAL <= until else together(engine, until))
        return taken[-1]

    monkeypatch.setattr(Engine, "_together", in_tens)
    assert steps(searched(tmp_path)) == steps(halved[0])
    assert GAP_INTERVAL in taken


def test_an_interrupted_halving_goes_on_to_the_same_end_and_scores_nothing_twice(
    halved: tuple[Sweep, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, scored, score = loop.train_together, list[Path](), halving.add_scores
    stops = iter([False, True, False, True, False, False, False])

    def watched(folder: Path, *others: Any, **options: Any) -> Any:
        scored.append(folder)
        return score(folder, *others, **options)

    def interrupted(members: Sequence[Member], **others: Any) -> Any:
        if next(stops):
            others["stop"] = lambda: True
        return train(members, **others)

    monkeypatch.setattr(halving, "add_scores", watched)
    monkeypatch.setattr(loop, "train_together", interrupted)
    interruptions = 0
    while True:
        try:
            found = searched(tmp_path)
            break
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions == 2
    assert steps(found) == steps(halved[0])
    assert files(tmp_path) == files(halved[0].folder)
    assert len(scored) == 8 + 3  # one of nine has diverged
    assert searched(tmp_path).saved == halved[0].saved


def test_a_shared_halving_is_that_of_one_process(halved: tuple[Sweep, list[str]], tmp_path: Path) -> None:
    for found in together(*(2 * [lambda: searched(tmp_path, on="share")])):
        assert steps(found) == steps(halved[0])
        assert found.saved == halved[0].saved
    assert files(tmp_path) == files(halved[0].folder)
    for member in found.stopped:
        paths = [folder / member.folder.name / FILE for folder in (tmp_path, halved[0].folder)]
        own, other = (json.loads(path.read_text())["scores"] for path in paths)
        assert {key: metric["value"] for key, metric in own.items()} == {
            key: metric["value"] for key, metric in other.items()
        }


def test_without_halving_the_stopped_are_trained_to_the_end(tmp_path: Path) -> None:
    recipes = sweep_recipes(notation="4H-64V", steps=6, lr="1e-3,1e-2", weight_decay=0)
    assert len(sweep(recipes, tmp_path, samples=1, halving=2).stopped) == 1
    whole = sweep(recipes, tmp_path, samples=1)
    assert [restored(member.folder)[0].step for member, _ in whole.ranked] == [6, 6]
    again = sweep(recipes, tmp_path, samples=1, halving=2)
    assert (len(again.stopped), again.saved) == (
        0,
        "halving has stopped 0 of 2 members early, which saved 0 of 12 steps, 0%",
    )


@pytest.mark.parametrize(
    ("factor", "sentence"),
    [
        (1, "halving must be at least 2, the factor by which the members are reduced, got 1"),
        (3, "halving must be at most the number of members, 2, got 3"),
    ],
)
def test_bad_factors_are_refused_before_anything_is_written(factor: int, sentence: str, tmp_path: Path) -> None:
    recipes = sweep_recipes(notation="4H-64V", steps=6, lr="1e-3,1e-2", weight_decay=0)
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        sweep(recipes, tmp_path / "out", halving=factor)
    assert not (tmp_path / "out").exists()
