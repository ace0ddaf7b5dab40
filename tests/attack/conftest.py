"""How hard an attack tries, and a count of what it has tried.

Each attack has a short form, which `make test` runs, and a full one, which `make test-all` runs. Both are seeded, so
that a failure repeats. Their counts are printed at the end of the tests.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from shutil import copytree
from typing import TYPE_CHECKING, Any

import pytest

from concretely.estimator import RLOO
from concretely.experiment.scoring import add_scores, score_split
from concretely.training.fit import fit
from concretely.training.folder import restored

from ..conftest import ATTACK
from ..training import own
from ..training.example import data, trained

if TYPE_CHECKING:
    from pathlib import Path


class Attack:
    """A seeded source of trials, and the outcomes that they had."""

    def __init__(self, *, full: bool) -> None:
        self.full, self.outcomes = full, Counter[str]()

    def trials(self, short: int, full: int) -> Iterator[Random]:
        """Yield as many sources of randomness as there are trials, each with a seed of its own."""
        for trial in range(full if self.full else short):
            yield Random(trial)

    def count(self, outcome: str) -> None:
        """Count the outcome of a trial."""
        self.outcomes[outcome] += 1


@pytest.fixture(params=["short", pytest.param("full", marks=pytest.mark.exhaustive)])
def attack(request: pytest.FixtureRequest, record_property: Callable[[str, Any], None]) -> Iterator[Attack]:
    """An attack, in its short or its full form."""
    found = Attack(full=request.param == "full")
    yield found
    outcomes = ", ".join(f"{number:,} {outcome}" for outcome, number in found.outcomes.most_common())
    others = [str(value) for value in request.node.callspec.params.values() if value != request.param]
    name = " ".join([request.node.originalname.removeprefix("test_").replace("_", " "), *others])
    record_property(ATTACK, f"{name}: {found.outcomes.total():,} tried ({outcomes})")


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> "Path":
    """A finished run with two checkpoints, validations and a record, to be read only."""
    folder = tmp_path_factory.mktemp("attack") / "run"
    trained(folder, notation="4H-4H-12V", steps=8, stop=5, validate=4)
    trained(folder, notation="4H-4H-12V", steps=8, validate=4)
    run, model, _ = restored(folder)
    scores = {split: score_split(run.recipe, model, data(), split=split, samples=2) for split in ("test", "valid")}
    add_scores(folder, run, model, data=data(), scores=scores)
    return folder


@pytest.fixture(scope="session")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> "Path":
    """The same of a model of one's own, without a record, to be read only."""
    folder = tmp_path_factory.mktemp("attack") / "own"
    how: dict[str, Any] = {"estimator": RLOO(), "batch": 8, "valid": own.bits(20), "every": 4, "out": folder}
    for steps in (5, 8):
        fit(own.build, own.bits(40), steps=steps, **how)
    return folder


@pytest.fixture
def victims(sound: "Path", own_run: "Path", tmp_path: "Path") -> Callable[..., "Path"]:
    """A function that copies a sound run, to be changed."""

    def victim(number: int, kind: str = "paper") -> "Path":
        return copytree(sound if kind == "paper" else own_run, tmp_path / str(number), symlinks=True)

    return victim
