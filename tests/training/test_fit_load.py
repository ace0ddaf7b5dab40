"""The model of a run comes back by its folder, and callbacks see every row."""

import csv
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import concretely as c
from concretely.training.callback import Callbacks
from concretely.training.fit import FittedRun
from concretely.training.train_state import Row

from . import own
from .example import assert_same
from .own import bits, build, fitted, stopping

PATHS = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
LABELS = (bits().sum(-1) % 3).long()


class Whole(c.Model):
    """A model that can be built without arguments."""

    def __init__(self) -> None:
        super().__init__(own.Prior(), own.Posterior())


@pytest.mark.parametrize("given", [{"ema": 0.9}, {"valid": bits()[:20], "every": 10}, {"arguments": {"width": 5}}])
def test_the_model_of_a_builder_is_loaded_by_its_name(given: dict[str, Any], tmp_path: Path) -> None:
    run = fitted(build, **given, out=tmp_path)
    model = c.load(tmp_path)
    assert isinstance(model, c.Model)
    assert not model.training
    assert_same(dict(model.state_dict()), dict(run.model.state_dict()))


def test_the_model_of_a_class_without_arguments_is_loaded_by_its_name(tmp_path: Path) -> None:
    run = fitted(Whole(), out=tmp_path)
    assert_same(dict(c.load(tmp_path).state_dict()), dict(run.model.state_dict()))


def test_another_model_is_loaded_into_a_new_one(tmp_path: Path) -> None:
    run = fitted(lambda: build(5), out=tmp_path)
    why = "the model of this run cannot be built by its name: it has no name by which it can be imported; "
    todo = "name its builder as model or --model, such as file.py:build, or call load(folder, model=build)"
    with pytest.raises(ValueError, match=f"^{re.escape(why + todo)}$"):
        c.load(tmp_path)
    assert_same(dict(c.load(tmp_path, model=build(5)).state_dict()), dict(run.model.state_dict()))
    with pytest.raises(
        ValueError, match=r"^model must be that of the run, got one whose 'p.decoder.0.weight' has shape"
    ):
        c.load(tmp_path, model=build(6))
    with pytest.raises(ValueError, match=r"^model must be that of the run, got one with another parameter"):
        c.load(tmp_path, model=own.Gate())


def test_a_compiled_model_is_loaded_into_a_compiled_one_only(tmp_path: Path) -> None:
    def compiled() -> Any:
        return torch.compile(own.Gate(), backend="eager")

    run = fitted(compiled(), (bits(), LABELS), out=tmp_path, steps=2)
    assert_same(dict(c.load(tmp_path, model=compiled()).state_dict()), dict(run.model.state_dict()))
    must = (
        "model must be that of the run, got one with another parameter 'gate.weight' and without '_orig_mod.gate.bias'"
    )
    with pytest.raises(ValueError, match=f"^{must}$"):
        c.load(tmp_path, model=own.Gate)


def test_a_model_is_loaded_into_that_of_a_builder_with_the_arguments_of_the_run(tmp_path: Path) -> None:
    run = fitted(lambda width: build(width), arguments={"width": 5}, out=tmp_path)
    assert_same(dict(c.load(tmp_path, model=build).state_dict()), dict(run.model.state_dict()))
    with pytest.raises(ValueError, match=r"^tests.training.own:Gate has no parameter 'width'"):
        c.load(tmp_path, model=own.Gate)


def test_the_model_of_a_script_is_loaded_by_the_name_that_its_function_has_elsewhere(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
from tests.training.own import build as make, fitted

def build(width=5):
    return make(width)

if __name__ == "__main__":
    fitted(build, steps=5, arguments={{"width": 4}}, out={str(tmp_path / "run")!r})
""")
    subprocess.run([sys.executable, script], check=True, cwd=Path.cwd(), env=os.environ | {"PYTHONPATH": PATHS})
    with pytest.raises(
        ValueError, match=r"by its name: 'build' is of the script that trained it, and not in this one;"
    ):
        c.load(tmp_path / "run")
    model = c.load(tmp_path / "run", model=f"{script}:build")
    assert_same(dict(model.state_dict()), own.exported(tmp_path / "run"))


def test_a_program_that_is_a_function_is_loaded_as_one(tmp_path: Path) -> None:
    layer = nn.Linear(6, 2)

    def program(draw: c.Draw, x: Tensor) -> Tensor:
        return draw("z", c.Bernoulli(logits=layer(x))).sum(-1)

    fitted(program, out=tmp_path, estimator=c.RLOO(), samples=2)
    trained = {name: each.clone() for name, each in layer.state_dict().items()}
    nn.init.zeros_(layer.weight)
    assert c.load(tmp_path, model=program) is program
    assert_same(dict(layer.state_dict()), trained)


def test_an_unfinished_run_is_loaded_at_its_last_checkpoint(tmp_path: Path) -> None:
    run = fitted(build, out=tmp_path, callbacks=stopping(13))
    assert_same(dict(c.load(tmp_path).state_dict()), dict(run.model.state_dict()))


def test_a_loaded_model_is_evaluated_and_studied(tmp_path: Path) -> None:
    fitted(build, out=tmp_path)
    model = c.load(tmp_path)
    assert c.evaluate(model, bits(), samples=10).nll > 0
    study = c.gradient_study(model, bits(4), estimators={"rloo": c.RLOO()}, samples=2, repeats=12)
    assert not study["rloo"].is_biased


def test_a_run_says_how_it_stands() -> None:
    run = fitted(build(), valid=lambda model: 1.5, every=30)
    assert isinstance(run, FittedRun)
    assert repr(run).startswith("FittedRun(step 30, finished, objective -")
    assert repr(run).endswith(", best validation 1.5 at step 30)")


def test_functions_of_a_row_are_called_with_every_row(tmp_path: Path) -> None:
    rows, steps = list[Row](), list[int]()
    run = fitted(build(), callbacks=[rows.append, Callbacks(step=steps.append)])
    assert tuple(rows) == run.rows
    assert steps == list(range(1, 31))


def test_functions_that_can_be_mistaken_for_each_other_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional arguments"):
        Callbacks(print, print, print)  # type: ignore[misc]


def test_a_damaged_checkpoint_of_one_of_several_runs_is_noted_with_its_name(tmp_path: Path) -> None:
    given, said = {"out": tmp_path, "seed": range(2)}, list[str]()
    for stop in (13, 21):
        fitted(build, **given, callbacks=stopping(stop))
    (tmp_path / "seed=1" / "checkpoint-000000021.safetensors").write_bytes(b"")
    fitted(build, **given, callbacks=Callbacks(note=said.append))
    assert said == ["seed=1: the checkpoint of step 21 is damaged; going on from step 13"]


def test_a_csv_log_goes_on_after_a_resume(tmp_path: Path) -> None:
    log = c.CSVLog(tmp_path / "log" / "rows.csv")
    given: dict[str, Any] = {"out": tmp_path / "run", "valid": bits()[:9], "every": 20}
    fitted(build, **given, callbacks=[log, stopping(24)])
    run = fitted(build, **given, callbacks=log)
    with (tmp_path / "log" / "rows.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["step"]) for row in table] == [10, 20, 30]
    assert [float(row["kl/code"]) for row in table] == [row.metrics["kl/code"] for row in run.rows]
    assert [row["valid"] != "" for row in table] == [False, True, False]


def test_a_log_has_the_rows_of_each_run(tmp_path: Path) -> None:
    rows, log = list[Row](), c.CSVLog(tmp_path / "rows.csv")
    given: dict[str, Any] = {"lr": [0.01, 0.02], "out": tmp_path / "run", "steps": 40}
    fitted(build, **given, callbacks=[log, stopping(24)])
    runs = fitted(build, **given, callbacks=[log, rows.append])
    assert [row.run for row in rows] == ["lr=0.01", "lr=0.02"] * 2
    with (tmp_path / "rows.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    for run in runs:
        own = [row for row in table if row["run"] == run.folder.name]
        assert [int(row["step"]) for row in own] == [10, 20, 30, 40]
        assert [float(row["objective"]) for row in own] == [row.objective for row in run.rows]
        assert {float(row["lr"]) for row in own} == {run.recipe.lr}


def test_a_log_has_the_rows_of_runs_that_train_one_after_the_other(tmp_path: Path) -> None:
    rows, log = list[Row](), c.CSVLog(tmp_path / "rows.csv")
    given: dict[str, Any] = {"arguments": {"width": [2, 3]}, "out": tmp_path / "run"}
    fitted(build, **given, callbacks=[log, rows.append])
    assert [(row.run, row.step) for row in rows] == [(f"width={k}", step) for k in (2, 3) for step in (10, 20, 30)]
    fitted(build, **given | {"steps": 40}, callbacks=log)  # the first run goes on beside the rows of the other
    with (tmp_path / "rows.csv").open(newline="") as file:
        table = [(row["run"], int(row["step"])) for row in csv.DictReader(file)]
    assert sorted(table) == [(f"width={k}", step) for k in (2, 3) for step in (10, 20, 30, 40)]


def test_a_csv_log_has_columns_for_metrics_of_later_rows(tmp_path: Path) -> None:
    def row(step: int, discrete: float = -3.0, **metrics: float) -> Row:
        return Row(step, 0.5 * step, 0.01, None, objective=-3.0, discrete=discrete, metrics=metrics)

    path = tmp_path / "rows.csv"
    for rows in (
        [row(10, a=1.0), row(20, a=2.0, b=3.0), row(30, -4.0, b=4.0), row(40, a=5.0)],
        [row(40, a=6.0, c=7.0), row(50, b=8.0)],  # resumed
    ):
        with c.CSVLog(path).open(50) as log:
            for each in rows:
                log.row(each)
    with path.open(newline="") as file:
        table = list(csv.reader(file))
    names = ["step", "seconds", "lr", "objective", "discrete", "a", "valid", "b", "gap", "c"]
    assert table == [
        names,
        ["10", "5.0", "0.01", "-3.0", "-3.0", "1.0", "", "", "", ""],
        ["20", "10.0", "0.01", "-3.0", "-3.0", "2.0", "", "3.0", "", ""],
        ["30", "15.0", "0.01", "-3.0", "-4.0", "", "", "4.0", "1.0", ""],
        ["40", "20.0", "0.01", "-3.0", "-3.0", "6.0", "", "", "", "7.0"],
        ["50", "25.0", "0.01", "-3.0", "-3.0", "", "", "8.0", "", ""],
    ]
    assert [each.name for each in tmp_path.iterdir()] == ["rows.csv"]


def test_a_csv_log_holds_the_rows_of_runs_with_other_nodes(tmp_path: Path) -> None:
    class Program(nn.Module):
        def __init__(self, nodes: int) -> None:
            super().__init__()
            self.nodes, self.layer = nodes, nn.Linear(6, 2)

        def forward(self, draw: c.Draw, x: Tensor) -> Tensor:
            logits = self.layer(x)
            return sum((draw(f"z{node}", c.Bernoulli(logits=logits)).sum(-1) for node in range(self.nodes)), x[:, 0])

    fitted(Program, arguments={"nodes": [1, 2]}, steps=20, callbacks=c.CSVLog(tmp_path / "rows.csv"))
    with (tmp_path / "rows.csv").open(newline="") as file:
        table = [(row["step"], row["active/z0"] != "", row["active/z1"] != "") for row in csv.DictReader(file)]
    assert table == [("10", True, False), ("20", True, False), ("10", True, True), ("20", True, True)]


def test_a_csv_log_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("step,seconds,lr,bound,discrete,kl/code,valid\n10,1.0,0.1,-4.0,-5.0,0.5,\n20,2.0\n")
    with c.CSVLog(path).open(30) as log:
        log.row(Row(20, 2.0, 0.1, None, objective=-3.0, discrete=-3.0, metrics={"temperature/code": 0.5}))
    assert path.read_text().splitlines() == [
        "step,seconds,lr,objective,discrete,kl/code,valid,temperature/code",
        "10,1.0,0.1,-4.0,-5.0,0.5,,",
        "20,2.0,0.1,-3.0,-3.0,,,0.5",
    ]


@pytest.mark.parametrize("torn", ["2", "20,2.0,0.1,-3", "\0\0", "seed", "seed\n", ",,\n"])
def test_a_csv_log_whose_last_line_is_damaged_goes_on_without_it(torn: str, tmp_path: Path) -> None:
    path, names = tmp_path / "rows.csv", "step,seconds,lr,objective,discrete,valid"
    path.write_text(f"{names}\n10,1.0,0.1,-4.0,-5.0,\n{torn}")
    with c.CSVLog(path).open(30) as log:
        log.row(Row(30, 3.0, 0.1, None, objective=-3.0, discrete=-3.0))
    assert path.read_text().splitlines() == [names, "10,1.0,0.1,-4.0,-5.0,", "30,3.0,0.1,-3.0,-3.0,"]


def test_a_file_that_is_no_log_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("name,age\nada,36\n")
    (tmp_path / "empty.csv").touch()
    for callback, sentence in (
        (
            c.CSVLog(tmp_path / "other.csv"),
            r"^rows must be added to a log of training, got '.*' without a column 'step': ",
        ),
        (c.CSVLog(tmp_path), r"^rows must be written to a file, got the folder "),
        (c.CSVLog(os.devnull), r"^rows must be written to a regular file, got "),
        (c.TensorBoard(tmp_path / "other.csv"), r"^events must be written into a folder, got the file "),
    ):
        with pytest.raises(ValueError, match=sentence):
            fitted(build, callbacks=callback, out=tmp_path / "run")
    assert (tmp_path / "other.csv").read_text() == "name,age\nada,36\n"
    assert not (tmp_path / "run").exists()
    fitted(build, callbacks=c.CSVLog(tmp_path / "empty.csv"))
    assert len((tmp_path / "empty.csv").read_text().splitlines()) == 4


def test_a_progress_bar_shows_the_last_row(capsys: pytest.CaptureFixture[str]) -> None:
    fitted(build(), callbacks=c.ProgressBar())
    shown = capsys.readouterr().err
    assert "30/30" in shown
    assert re.search(r"loss \d", shown)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what tensorboard imports
def test_events_hold_every_metric(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = fitted(build(), callbacks=c.TensorBoard(tmp_path))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(run.rows[-1].values) - {"step", "seconds"}
    assert [event.step for event in events.Scalars("kl/code")] == [10, 20, 30]
    fitted(build, seed=range(2), callbacks=c.TensorBoard(tmp_path / "several"))
    assert sorted(path.name for path in (tmp_path / "several").iterdir()) == ["seed=0", "seed=1"]


def test_the_curve_holds_every_metric(tmp_path: Path) -> None:
    run = fitted(build, out=tmp_path)
    with (tmp_path / "curve.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [float(row["active/code"]) for row in table] == [row.metrics["active/code"] for row in run.rows]


def test_a_tied_parameter_comes_back(tmp_path: Path) -> None:
    def tied() -> c.Model:
        shared = nn.Linear(6, 6)

        def p(draw: c.Draw, x: Tensor | None = None) -> Tensor:
            z = draw("z", c.Bernoulli(logits=torch.zeros(6)))
            return draw("x", c.Bernoulli(logits=shared(z)), observed=x)

        return c.Model(p, lambda draw, x: draw("z", c.Bernoulli(logits=shared(x))))

    run = fitted(tied, out=tmp_path)
    assert_same(dict(c.load(tmp_path, model=tied()).state_dict()), dict(run.model.state_dict()))


class Settled(own.Gate):
    """A program that keeps an argument of its builder."""

    def __init__(self, setting: Any) -> None:
        super().__init__()
        self.setting = setting


@pytest.mark.parametrize(
    ("setting", "plain"),
    [
        (None, None),
        ({"drop": 0.5, "norm": None, "a b": {}}, {"drop": 0.5, "norm": None, "a b": {}}),
        ([(8, 16)], [8, 16]),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (math.inf, math.inf),
        (math.nan, math.nan),
    ],
    ids=["none", "dictionary", "tuple", "float32", "int64", "infinity", "nan"],
)
def test_a_builder_gets_the_same_argument_in_every_call(setting: Any, plain: Any, tmp_path: Path) -> None:
    given: dict[str, Any] = {"data": {"x": bits(), "y": LABELS}, "arguments": {"setting": setting}, "out": tmp_path}
    made = []
    for steps in (2, 4):
        run = fitted(Settled, **given, estimator=c.RLOO(), samples=2, steps=steps)
        made.append(run[0] if isinstance(run, list) else run)
    assert [run.step for run in made] == [2, 4]
    settings = [*(run.model.setting for run in made), c.load(made[0].folder).setting]
    assert [repr(one) for one in settings] == [repr(plain)] * 3


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (torch.float32, "torch.float32"),
        ([[torch.float32]], "[torch.float32]"),
        ({1: 2}, "{1: 2}"),
        (2**63, "9223372036854775808"),
    ],
)
def test_an_argument_that_files_cannot_hold_is_refused_in_a_folder_only(
    setting: Any, text: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"data": {"x": bits(), "y": LABELS}, "arguments": {"setting": setting}}
    must = "arguments must be numbers, strings, None, or lists or dictionaries of them in a run that is saved"
    with pytest.raises(ValueError, match=f"^{re.escape(f'{must}, got setting={text}: pass a name, or train without')}"):
        fitted(Settled, **given, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    fitted(Settled, **given, steps=2)


def test_overwrite_deletes_a_run_only_once_the_new_one_has_been_checked(tmp_path: Path) -> None:
    fitted(build, out=tmp_path)
    fitted(build, out=tmp_path / "other")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for bad in ({"arguments": {"wide": 3}}, {"data": torch.zeros(9, 5)}, {"schedule": lambda step: "low"}):
        with pytest.raises((ValueError, TypeError)):
            fitted(build, out=tmp_path, overwrite=True, **bad)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert fitted(build, out=tmp_path, lr=0.02, overwrite=True).finished
    assert (tmp_path / "other" / "recipe.toml").exists()
