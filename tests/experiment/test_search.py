"""Lists, grids and tables can be trained from Python, with callbacks instead of a terminal."""

from pathlib import Path

import numpy as np
import pytest

import concretely as c
from concretely.experiment.plan import plan_experiment, reproduce
from concretely.experiment.scheduler import Monitor
from concretely.experiment.search import sweep, sweep_recipes, train_list
from concretely.training.recipe import resolve


def test_a_sweep_reports_to_its_callbacks_and_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    notes = list[str]()
    recipes = sweep_recipes(notation="4H-64V", steps=3, lr=[1e-3, 1e30], weight_decay=0)
    found = sweep(recipes, tmp_path, samples=2, monitor=Monitor(note=notes.append))
    assert found.best is not None
    assert found.best.recipe.lr == 1e-3
    assert [record is None for _, record in found.ranked] == [False, True]
    assert notes[0].startswith(f"2 members in {tmp_path}")
    assert notes[-1].startswith("scoring lr=0.001")
    assert tuple(capfd.readouterr()) == ("", "")


def test_a_stopped_list_goes_on(tmp_path: Path) -> None:
    recipes = [resolve(notation="4H-64V", steps=3, seed=seed) for seed in range(2)]
    with pytest.raises(KeyboardInterrupt):
        train_list(recipes, tmp_path, samples=1, monitor=Monitor(lambda: True))
    scored = list[Path]()
    found = train_list(recipes, tmp_path, samples=1, monitor=Monitor(scored=lambda folder, *_: scored.append(folder)))
    assert scored == [member.folder for member, _ in found]
    assert all(record is not None and record["step"] == 3 for _, record in found)


@pytest.mark.usefixtures("tables")
def test_a_table_is_reproduced_with_what_there_is_if_it_is_stopped() -> None:
    plan = plan_experiment("tiny", only={"rows": ["linear"], "samples": ["1"]}, changes={"steps": 2})
    stopped = reproduce(plan, monitor=Monitor(lambda: True))
    assert (stopped.complete, [result.record for result in stopped.results]) == (False, [None, None])
    found = reproduce(plan)
    assert found.complete
    assert all(result.score("test_nll") and result.score("train_nll") for result in found.results)
    with pytest.raises(ValueError, match=r"^unknown row 'linaer' in tiny; did you mean 'linear'\?$"):
        plan_experiment("tiny", only={"rows": ["linaer"]})


def test_strings_are_paths(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", train=np.eye(20, 6), test=np.eye(4, 6))
    recipes = [resolve(notation="2H-6V", data=tmp_path / "data.npz", steps=2, seed=seed) for seed in range(2)]
    (member, _), _ = train_list(recipes, str(tmp_path / "list"), samples=1)
    assert c.load(str(member.folder)).sample(3).shape == (3, 6)
    assert sweep(recipes, str(tmp_path / "sweep"), samples=1).best is not None
    assert plan_experiment("table-3", folder=str(tmp_path)).folder == tmp_path
    assert c.load_data(str(tmp_path / "data.npz")).name == c.load_data(tmp_path / "data.npz").name == recipes[0].data
